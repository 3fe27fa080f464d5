-- Entries of the audit log about processes that were suspected to have died. An earlier program works beside this, and
-- writes none.

-- recorded says what a consumer writes into the audit log: also who suspected whom, and why. A later script that adds
-- to it replaces this alone.
create function "epochfence".recorded(state text)
returns boolean
language sql immutable
as $$ select state in ('stale', 'halt', 'recovery', 'loss', 'in-doubt', 'hang', 'on-failure-hang', 'tick', 'suspected', 'replay', 'replay-failure') $$;

revoke all on function "epochfence".recorded from public;

create or replace function "epochfence".write_row(in_kind text, in_id bigint, in_revision bigint, in_remove boolean, in_name text,
    in_group text, in_topic text, in_partition integer, in_epoch bigint, in_offset bigint, in_state text, in_cause text, in_operator text,
    in_body text, in_key bytea, in_value bytea, in_headers text)
returns void
language plpgsql security definer set search_path = "epochfence", pg_temp
as $$
declare
    of jsonb := in_body::jsonb;
    was fence_ledger;
begin
    case
    when in_kind = 'process' then
        null;
    when in_kind = 'entry' and in_id = 0 then
        if not recorded(in_state) then
            raise exception using errcode = 'XF013', message = 'a consumer records no ' || in_state;
        end if;
        if in_state not in ('replay', 'replay-failure') or not exists (
            select from fence_ledger l where l.kind = 'entry' and l.group_name = in_group and l.topic = in_topic and l.partition = in_partition
                and l.state = 'replay-request' and l.operator = in_operator and l.message_offset = in_offset)
        then
            in_operator := '';
        end if;
        of := of || jsonb_build_object('owner', case when starts_with(of ->> 'owner', 'operator ') then '' else of ->> 'owner' end);
    when in_kind = 'dead-letter' and in_id = 0 then
        if in_state <> 'deferred' then
            in_state := '';
        end if;
        in_operator := '';
    when in_kind = 'dead-letter' then
        select * into was from fence_ledger l where l.kind = in_kind and l.id = in_id and l.revision = in_revision
            and (l.state = 'requested' or l.state = 'deferred' and exists (select from fence_deferred d where d.id = l.id and d.due_at <= clock_timestamp())) for update;
        if not found then
            raise exception using errcode = 'XF015', message = 'the row has changed';
        end if;
        if in_state = 'deferred' and not in_remove then
            in_operator := '';
        else
            in_state := 'failed';
            in_operator := was.operator;
        end if;
    else
        raise exception using errcode = 'XF013', message = 'a consumer writes no such row';
    end case;
    perform put(in_kind, in_id, in_revision, in_remove, in_name, in_group, in_topic, in_partition, in_epoch, in_offset, in_state, in_cause, in_operator,
        of, in_key, in_value, in_headers);
end
$$;

insert into "epochfence".migration (version, name) values (11, 'suspected');
