-- Of each entry of the outbox, the offset of the message that added it.

alter table "epochfence".outbox_entry add column message_offset bigint not null default -1; -- -1: an earlier version added it

create or replace view "epochfence".outbox_row as
    select 'outbox'::text as kind, id, idempotency_key::text as name, group_name, topic, partition, 0::bigint as epoch, message_offset,
        case when retry_requested then 'requested' else '' end as state,
        coalesce(array_to_string(regexp_match(url, '^([A-Za-z]+://)(?:[^/?#]*@)?([^/?#@]*)(?:[/?#].*)?$'), ''), '') as cause, order_key::text as operator, ''::text as role,
        added_at as written_at, added_at as changed_at, 0::bigint as revision, jsonb_build_object('scope', scope, 'method', method) as body
    from "epochfence".outbox_entry;

insert into "epochfence".migration (version, name) values (7, 'outbox_offset');
