create table "epochfence_outbox".outbox_migration (
    version    integer primary key,
    name       text not null,
    applied_at timestamptz not null default clock_timestamp()
);

create table "epochfence_outbox".outbox_entry (
    added_by        bigint not null default pg_current_xact_id()::text::bigint, -- the transaction
    id              bigint generated always as identity primary key,
    group_name      text collate "C" not null,
    topic           text collate "C" not null,
    partition       integer not null,
    order_key       text collate "C" not null, -- '': no order
    scope           text collate "C" not null,
    idempotency_key text collate "C" not null,
    method          text not null,
    url             text not null,
    header          text not null,             -- JSON: {"Name":["value"]}
    body            bytea not null,
    added_at        timestamptz not null default clock_timestamp() -- for people
);

create index outbox_entry_partition on "epochfence_outbox".outbox_entry (group_name, topic, partition, id);
create index outbox_entry_added_by on "epochfence_outbox".outbox_entry (group_name, topic, partition, added_by, id);
create index outbox_entry_key on "epochfence_outbox".outbox_entry (group_name, topic, partition, order_key, id);

-- outbox_behind says what to do about an identity that is behind the rows of its table.
create function "epochfence_outbox".outbox_behind(in_schema text, in_table text) returns text
language sql immutable set search_path = "epochfence_outbox", pg_temp
as $$
    select format('the identity of %1$I.%2$I is behind its rows, as after logical replication, which copies no sequences; '
        || 'run as the owner: select setval(pg_get_serial_sequence(%3$L, ''id''), (select max(id) from %1$I.%2$I))',
        in_schema, in_table, format('%I.%I', in_schema, in_table))
$$;

-- outbox_follow refuses an entry whose identity is not above those that the statement sees: it
-- would overtake them. They were committed, and so numbered, before it. It is STABLE in order
-- to see what the statement does, and no entry that is committed meanwhile. It reads the index where
-- nothing should be, so that it costs the same however long the backlog is; a plan that was
-- made for an empty table would read all of it. Under SERIALIZABLE, transactions that look and
-- add entries at a time fail each other, so that there it looks once in a session, which is
-- one with one server.
create function "epochfence_outbox".outbox_follow() returns trigger
language plpgsql stable set search_path = "epochfence_outbox", pg_temp set enable_seqscan = off
as $$
declare
    once boolean := current_setting('transaction_isolation') = 'serializable';
begin
    if once and current_setting('epochfence.outbox_follows', true) = tg_relid::text then
        return new;
    end if;
    if (select e.id from outbox_entry e where e.id >= new.id order by e.id limit 1) is not null then
        raise exception using errcode = 'XF018', message = outbox_behind(tg_table_schema, tg_table_name);
    end if;
    if once then
        perform set_config('epochfence.outbox_follows', tg_relid::text, false);
    end if;
    return new;
end
$$;

create trigger outbox_entry_follow before insert on "epochfence_outbox".outbox_entry
    for each row execute function "epochfence_outbox".outbox_follow();

insert into "epochfence_outbox".outbox_migration (version, name) values (1, 'outbox_entry');
