-- Requests that handlers have added to the outbox, and what operators see of them and do to rows.

create table "epochfence".outbox_entry (
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
    added_at        timestamptz not null default clock_timestamp(), -- for people
    retry_requested boolean not null default false -- an operator wants it to be sent now
);

create index outbox_entry_partition on "epochfence".outbox_entry (group_name, topic, partition, id);
create index outbox_entry_added_by on "epochfence".outbox_entry (group_name, topic, partition, added_by, id);
create index outbox_entry_key on "epochfence".outbox_entry (group_name, topic, partition, order_key, id);
create index outbox_entry_retry on "epochfence".outbox_entry (group_name, topic, partition, id) where retry_requested;

-- outbox_follow refuses an entry whose identity is not above those that the statement sees: it
-- would overtake them. They were committed, and so numbered, before it. It is STABLE in order
-- to see what the statement does, and no entry that is committed meanwhile. It reads the index where
-- nothing should be, so that it costs the same however long the backlog is; a plan that was
-- made for an empty table would read all of it. Under SERIALIZABLE, transactions that look and
-- add entries at a time fail each other, so that there it looks once in a session, which is
-- one with one server.
create function "epochfence".outbox_follow() returns trigger
language plpgsql stable security definer set search_path = "epochfence", pg_temp set enable_seqscan = off
as $$
declare
    once boolean := current_setting('transaction_isolation') = 'serializable';
begin
    if once and current_setting('epochfence.outbox_follows', true) = tg_relid::text then
        return new;
    end if;
    if (select e.id from outbox_entry e where e.id >= new.id order by e.id limit 1) is not null then
        raise exception using errcode = 'XF018', message = behind(tg_table_schema, tg_table_name);
    end if;
    if once then
        perform set_config('epochfence.outbox_follows', tg_relid::text, false);
    end if;
    return new;
end
$$;

create trigger outbox_entry_follow before insert on "epochfence".outbox_entry
    for each row execute function "epochfence".outbox_follow();

-- outbox_row has the entries as rows of operators, without what may be secret: of the URL it has the scheme and the host.
create view "epochfence".outbox_row as
    select 'outbox'::text as kind, id, idempotency_key::text as name, group_name, topic, partition, 0::bigint as epoch, 0::bigint as message_offset,
        case when retry_requested then 'requested' else '' end as state,
        coalesce(array_to_string(regexp_match(url, '^([A-Za-z]+://)(?:[^/?#]*@)?([^/?#@]*)(?:[/?#].*)?$'), ''), '') as cause, order_key::text as operator, ''::text as role,
        added_at as written_at, added_at as changed_at, 0::bigint as revision, jsonb_build_object('scope', scope, 'method', method) as body
    from "epochfence".outbox_entry;

-- contents returns the messages of dead letters, and the requests of the outbox. As in outbox_follow, a plan that
-- was made for an empty table would read all of it.
create function "epochfence".contents(in_kind text, ids bigint[])
returns table (id bigint, cause text, message_key bytea, message_value bytea, message_headers text)
language plpgsql stable security definer set search_path = "epochfence", pg_temp set enable_seqscan = off
as $$
begin
    if in_kind = 'outbox' then
        return query select e.id, e.url, null::bytea, e.body, e.header from outbox_entry e where e.id = any (ids);
    else
        return query select l.id, l.cause, l.message_key, l.message_value, l.message_headers from fence_ledger l where l.id = any (ids) and l.kind = 'dead-letter';
    end if;
end
$$;

-- act_on_row changes or removes a dead letter or an entry of the outbox, with the entry about it in the audit log. It is
-- planned as contents is.
create function "epochfence".act_on_row(in_kind text, in_id bigint, in_revision bigint, in_remove boolean, in_name text, in_group text, in_topic text,
    in_partition integer, in_state text, in_cause text, in_body text, entry_claim text, entry_epoch bigint, entry_offset bigint, entry_state text, entry_cause text,
    in_operator text, entry_body text)
returns void
language plpgsql security definer set search_path = "epochfence", pg_temp set enable_seqscan = off
as $$
declare
    changed boolean;
begin
    if trim(in_operator) = '' or trim(entry_cause) = '' or not (case in_kind
        when 'dead-letter' then entry_state = 'discard' and in_remove or not in_remove and (entry_state, in_state) in (('replay-request', 'requested'), ('replay-withdraw', 'withdrawn'))
        when 'outbox' then entry_state = 'outbox-discard' and in_remove or entry_state = 'outbox-retry' and not in_remove
        else false end)
    then
        raise exception using errcode = 'XF013', message = 'the act makes no sense';
    end if;
    if in_kind = 'dead-letter' then
        perform from fence_ledger r where r.kind = in_kind and r.id = in_id and r.revision = in_revision
            and (r.group_name, r.topic, r.partition, r.message_offset) = (in_group, in_topic, in_partition, entry_offset) for update;
        changed := found;
        if changed then
            perform put(in_kind, in_id, in_revision, in_remove, '', '', '', 0, 0, 0, in_state, in_cause, in_operator, in_body::jsonb, null, null, null);
        end if;
    elsif in_remove then
        delete from outbox_entry e where e.id = in_id and (e.group_name, e.topic, e.partition, e.idempotency_key) = (in_group, in_topic, in_partition, in_name);
        changed := found;
    else
        update outbox_entry e set retry_requested = true
        where e.id = in_id and (e.group_name, e.topic, e.partition, e.idempotency_key) = (in_group, in_topic, in_partition, in_name);
        changed := found;
    end if;
    if not changed then
        raise exception using errcode = 'XF015', message = 'the row has changed';
    end if;
    perform put('entry', 0, 0, false, entry_claim, in_group, in_topic, in_partition, entry_epoch, entry_offset, entry_state, entry_cause, in_operator,
        entry_body::jsonb, null, null, null);
end
$$;

revoke all on "epochfence".outbox_entry, "epochfence".outbox_row from public;
revoke all on function "epochfence".outbox_follow, "epochfence".contents, "epochfence".act_on_row from public;

insert into "epochfence".migration (version, name) values (5, 'outbox');
