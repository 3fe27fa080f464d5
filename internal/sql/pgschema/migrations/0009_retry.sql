-- Messages that their handler wants again later: dead letters in the state 'deferred', which nobody counts as dead, with
-- the time from which the owner of the partition may replay them. Functions of before keep their arguments, so that an
-- earlier program works beside this: it replays what is due, and defers nothing.

-- When each dead letter in the state 'deferred' is due, by this server's clock. It has a table of its own, because to build
-- an index would read all of fence_ledger.
create table "epochfence".fence_deferred (
    id         bigint primary key, -- in fence_ledger
    group_name text collate "C" not null,
    topic      text collate "C" not null,
    partition  integer not null,
    due_at     timestamptz not null
);

create index fence_deferred_due on "epochfence".fence_deferred (group_name, topic, partition, due_at);

-- note_due notes when a dead letter is due, after a change of it.
create function "epochfence".note_due(in_id bigint) returns void
language plpgsql set search_path = "epochfence", pg_temp set enable_seqscan = off
as $$
begin
    delete from fence_deferred d where d.id = in_id;
    insert into fence_deferred (id, group_name, topic, partition, due_at)
    select l.id, l.group_name, l.topic, l.partition, l.changed_at + make_interval(secs => coalesce((l.body ->> 'delay_ms')::double precision, 0) / 1000)
    from fence_ledger l where l.id = in_id and l.kind = 'dead-letter' and l.state = 'deferred';
end
$$;

-- put, now with the time from which a message that is deferred is due.
create or replace function "epochfence".put(in_kind text, in_id bigint, in_revision bigint, in_remove boolean, in_name text,
    in_group text, in_topic text, in_partition integer, in_epoch bigint, in_offset bigint, in_state text, in_cause text, in_operator text,
    in_body jsonb, in_key bytea, in_value bytea, in_headers text)
returns void
language plpgsql set search_path = "epochfence", pg_temp
as $$
declare
    number bigint := case in_kind when 'process' then 1 else 0 end;
begin
    if in_kind = 'process' then
        if in_remove then
            delete from fence_ledger l where l.kind = 'process' and l.name = in_name and (in_revision = 0 or l.revision = in_revision);
            return;
        end if;
        update fence_ledger l set cause = in_cause, body = in_body, revision = l.revision + 1, changed_at = clock_timestamp() where l.kind = 'process' and l.name = in_name;
        if found then
            return;
        end if;
    elsif in_id <> 0 then
        if in_remove then
            delete from fence_ledger l where l.kind = in_kind and l.id = in_id and l.revision = in_revision;
        else
            update fence_ledger l set state = in_state, cause = in_cause, operator = in_operator, body = in_body,
                revision = l.revision + 1, changed_at = clock_timestamp()
            where l.kind = in_kind and l.id = in_id and l.revision = in_revision;
        end if;
        if not found then
            raise exception using errcode = 'XF015', message = 'the row has changed';
        end if;
        perform note_due(in_id);
        return;
    end if;
    if in_kind = 'entry' then
        in_name := in_name::uuid;
        number := nextval('fence_ledger_entry');
    end if;
    insert into fence_ledger (kind, name, group_name, topic, partition, epoch, message_offset, state, cause, operator, revision, body, message_key, message_value, message_headers)
    values (in_kind, in_name, in_group, in_topic, in_partition, in_epoch, in_offset, in_state, in_cause, in_operator, number, in_body, in_key, in_value, in_headers)
    returning id into in_id;
    if in_state = 'deferred' then
        perform note_due(in_id);
    end if;
    if in_kind = 'entry' and number % 16 = 0 then
        perform prune(number);
    end if;
end
$$;

-- write_row also stores the due time of a deferred dead letter, and lets its owner replay one that is due.
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
        if in_state not in ('stale', 'halt', 'recovery', 'loss', 'in-doubt', 'hang', 'on-failure-hang', 'tick', 'replay', 'replay-failure') then
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

-- requests, now with what is due: of each partition the first in an index, after what is requested.
create or replace function "epochfence".requests(groups text[], topics text[], partitions integer[], each bigint, most bigint)
returns table (acts bigint, id bigint, kind text, name text, group_name text, topic text, partition integer, epoch bigint, message_offset bigint,
    state text, cause text, operator text, role text, written_at timestamptz, changed_at timestamptz, read_at timestamptz, revision bigint, body text,
    message_key bytea, message_value bytea, message_headers text)
language sql stable security definer set search_path = "epochfence", pg_temp
as $$
    select coalesce((select sum(a.id) from (
            select e.id from fence_ledger e where e.kind = 'entry' and e.state in ('rewind', 'skip', 'pause', 'resume', 'evict', 'rebase', 'run') order by e.id desc limit 8) a)::bigint, 0),
        null::bigint, null::text, null::text, null::text, null::text, null::integer, null::bigint, null::bigint,
        null::text, null::text, null::text, null::text, null::timestamptz, null::timestamptz, null::timestamptz, null::bigint, null::text,
        null::bytea, null::bytea, null::text
    union all
    (with wanted as materialized (
        select l.group_name, l.topic, l.partition, l.id, l.state from fence_ledger l where l.kind = 'dead-letter' and l.state = 'requested'
        union all
        select k.group_name, k.topic, k.partition, due.id, 'deferred'
        from unnest(groups, topics, partitions) as k (group_name, topic, partition), lateral (
            select d.id from fence_deferred d
            where d.group_name = k.group_name and d.topic = k.topic and d.partition = k.partition
                and d.due_at <= statement_timestamp() -- which an index can be read up to
            order by d.due_at limit each) due
    ), ours as materialized (
        select w.id, row_number() over (partition by w.group_name, w.topic, w.partition order by w.state desc, w.id) as place
        from wanted w join unnest(groups, topics, partitions) as k (group_name, topic, partition)
            on w.group_name = k.group_name and w.topic = k.topic and w.partition = k.partition
    )
    select 0::bigint, l.id, l.kind, l.name, l.group_name, l.topic, l.partition, l.epoch, l.message_offset,
        l.state, l.cause, l.operator, l.role, l.written_at, l.changed_at, clock_timestamp(), l.revision, l.body::text,
        l.message_key, l.message_value, l.message_headers
    from (select o.id from ours o where o.place <= each order by o.place, o.id limit most) o join fence_ledger l on l.id = o.id
    order by l.id)
$$;

-- list_fences, now without what is deferred among the dead letters.
create or replace function "epochfence".list_fences(in_group text, in_topic text, in_partition integer, paused boolean)
returns table (f "epochfence".fence, dead_letters bigint, read_at timestamptz)
language sql stable security definer set search_path = "epochfence", pg_temp
as $$
    select f, coalesce(d.letters, 0), clock_timestamp()
    from fence f left join (
        select l.group_name, l.topic, l.partition, count(*) as letters from fence_ledger l
        where l.kind = 'dead-letter' and l.state <> 'deferred' and (in_group is null or l.group_name = in_group) and (in_topic is null or l.topic = in_topic)
            and (in_partition is null or l.partition = in_partition)
        group by 1, 2, 3
    ) d using (group_name, topic, partition)
    where (in_group is null or group_name = in_group) and (in_topic is null or topic = in_topic)
        and (in_partition is null or partition = in_partition) and (not paused or f.mode <> '')
    order by group_name, topic, partition
$$;

revoke all on "epochfence".fence_deferred from public;
revoke all on function "epochfence".note_due from public;

insert into "epochfence".migration (version, name) values (9, 'retry');
