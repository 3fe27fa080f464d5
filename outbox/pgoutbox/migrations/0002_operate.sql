-- What people see and do with entries.

alter table "epochfence_outbox".outbox_entry add column retry_requested boolean not null default false;

create index outbox_entry_retry on "epochfence_outbox".outbox_entry (group_name, topic, partition, id) where retry_requested;

-- What people did, each row written in the transaction that did it.
create table "epochfence_outbox".outbox_act (
    id              bigint generated always as identity primary key,
    acted_at        timestamptz not null default clock_timestamp(),
    role            text not null default session_user, -- who was connected
    kind            text not null,
    entry           bigint not null,
    group_name      text collate "C" not null,
    topic           text collate "C" not null,
    partition       integer not null,
    scope           text not null,
    idempotency_key text not null,
    operator        text not null,
    reason          text not null
);

-- outbox_identity_behind says what to do about a table whose identity is behind its rows. Null is nothing.
create function "epochfence_outbox".outbox_identity_behind() returns text
language sql stable security definer set search_path = "epochfence_outbox", pg_temp
as $$
    select outbox_behind(current_schema(), numbered.name) from (
        (select 'outbox_entry', e.id from outbox_entry e
            where e.id > coalesce(pg_sequence_last_value(pg_get_serial_sequence('outbox_entry', 'id')::regclass), 0) order by e.id limit 1)
        union all
        (select 'outbox_act', a.id from outbox_act a
            where a.id > coalesce(pg_sequence_last_value(pg_get_serial_sequence('outbox_act', 'id')::regclass), 0) order by a.id limit 1)
    ) numbered (name, id) limit 1
$$;

-- Entries without what may be secret: of the URL the scheme and the host.
create view "epochfence_outbox".outbox_listing as
    select id, group_name, topic, partition, order_key, scope, idempotency_key, method,
        regexp_replace(url, '^([A-Za-z]+://)([^/?#]*@)?([^/?#]*).*$', '\1\3') as receiver, added_at, retry_requested
    from "epochfence_outbox".outbox_entry;

insert into "epochfence_outbox".outbox_migration (version, name) values (2, 'operate');
