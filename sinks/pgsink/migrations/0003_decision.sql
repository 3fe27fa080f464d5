-- The audit log: who was let in, who was not, what people did, and why. What
-- swaps a claim in writes its entry in the same transaction.

create table "epochfence".decision (
    id          bigint generated always as identity primary key,
    decided_at  timestamptz not null default clock_timestamp(), -- for people
    role        text not null default session_user,             -- who was connected
    kind        text not null,
    group_name  text collate "C" not null,
    topic       text collate "C" not null,
    partition   integer not null,
    epoch       bigint not null,
    claim_id    uuid not null,
    owner       text not null,
    from_offset bigint not null, -- -1: not known, or there was no claim before
    to_offset   bigint not null, -- -1: not known
    reason      text not null,
    operator    text not null,   -- the person; '': nobody
    trace_id    text not null
);

create index decision_partition on "epochfence".decision (group_name, topic, partition, id);
create index decision_unattended on "epochfence".decision (id) where operator = '';
create index decision_hangs on "epochfence".decision (group_name, topic, partition, id)
    where kind in ('hang', 'on-failure-hang', 'rewind', 'skip', 'resume', 'rebase', 'run');
create index decision_acts on "epochfence".decision (id) where kind in ('rewind', 'skip', 'pause', 'resume', 'evict', 'rebase', 'run');

create trigger decision_follow before insert on "epochfence".decision for each row execute function "epochfence".follow();

-- identity_behind says what to do about a table whose identity is behind its rows. Null is nothing.
create function "epochfence".identity_behind() returns text
language plpgsql stable security definer set search_path = "epochfence", pg_temp
as $$
declare
    numbered text;
    later bigint;
begin
    foreach numbered in array array['dead_letter', 'decision'] loop
        execute format('select t.id from %I t where t.id > $1 order by t.id limit 1', numbered)
            into later using coalesce(pg_sequence_last_value(pg_get_serial_sequence(numbered, 'id')::regclass), 0);
        if later is not null then
            return behind(current_schema(), numbered);
        end if;
    end loop;
    return null;
end
$$;

-- decide adds an entry, and has old ones taken away now and then.
create function "epochfence".decide(in_kind text, in_group text, in_topic text, in_partition integer, in_epoch bigint, in_claim uuid,
    in_owner text, in_from bigint, in_to bigint, in_reason text, in_operator text, in_trace text)
returns void
language plpgsql set search_path = "epochfence", pg_temp
as $$
declare
    latest bigint;
begin
    insert into decision (kind, group_name, topic, partition, epoch, claim_id, owner, from_offset, to_offset, reason, operator, trace_id)
    values (in_kind, in_group, in_topic, in_partition, in_epoch, in_claim, in_owner, in_from, in_to, in_reason, in_operator, in_trace)
    returning id into latest;
    if latest % 16 = 0 then
        perform prune_decisions(latest);
    end if;
end
$$;

-- prune_decisions takes entries away: those that are 90 days old, and of those that no
-- person is in, all but the newest 200,000 or so. It looks at the oldest only, so that it
-- costs the same however long the log is, and leaves those that another transaction is
-- at, so that it waits for nobody.
create function "epochfence".prune_decisions(latest bigint)
returns void
language plpgsql set search_path = "epochfence", pg_temp
as $$
begin
    if (select d.id from decision d where d.operator = '' order by d.id limit 1) <= latest - 200000 then
        delete from decision x where x.id in (
            select d.id from decision d where d.operator = '' and d.id <= latest - 200000 order by d.id limit 64 for update skip locked);
    end if;
    if (select d.decided_at < clock_timestamp() - interval '90 days' from decision d order by d.id limit 1) then
        delete from decision x where x.id in (
            select d.id from decision d
            where d.id in (select o.id from decision o order by o.id limit 64) and d.decided_at < clock_timestamp() - interval '90 days'
            for update skip locked);
    end if;
end
$$;

-- claim is swap_claim, with its entry in the audit log.
create function "epochfence".claim(in_group text, in_topic text, in_partition integer, lock_timeout_ms integer,
    seen_epoch bigint, seen_claim uuid, log text, source text, generation bigint, above bigint, new_owner text, new_claim uuid,
    adopt_offset bigint, adopt_mark bigint, trace_id text)
returns setof "epochfence".fence
language plpgsql security definer set search_path = "epochfence", pg_temp
as $$
declare
    f fence;
begin
    select * into strict f from swap_claim(in_group, in_topic, in_partition, lock_timeout_ms,
        seen_epoch, seen_claim, log, source, generation, above, new_owner, new_claim, adopt_offset, adopt_mark);
    perform decide('claim', in_group, in_topic, in_partition, f.epoch, f.claim_id, f.owner,
        case when seen_epoch = 0 then -1 else f.next_offset end, f.next_offset, '', '', trace_id);
    return next f;
end
$$;

-- record_decisions adds what consumers have met with. They have no say in what the functions
-- that swap claims, and people, have done, and name nobody as operators are named.
create function "epochfence".record_decisions(kinds text[], groups text[], topics text[], partitions integer[], epochs bigint[], claims uuid[],
    owners text[], froms bigint[], tos bigint[], reasons text[], trace_ids text[])
returns void
language plpgsql security definer set search_path = "epochfence", pg_temp
as $$
begin
    for i in 1 .. cardinality(kinds) loop
        if kinds[i] not in ('stale', 'halt', 'recovery', 'loss', 'in-doubt', 'hang', 'on-failure-hang', 'tick') then
            raise exception using errcode = 'XF013', message = 'a consumer records no ' || kinds[i];
        end if;
        perform decide(kinds[i], groups[i], topics[i], partitions[i], epochs[i], claims[i],
            case when starts_with(owners[i], 'operator ') then '' else owners[i] end, froms[i], tos[i], reasons[i], '', trace_ids[i]);
    end loop;
end
$$;

-- hangs returns what hung on some partitions, newest first, at most so many for each: what has been
-- recorded since an operator has said where the partition continues, or that it does.
create function "epochfence".hangs(groups text[], topics text[], partitions integer[], most bigint)
returns setof "epochfence".decision
language sql stable security definer set search_path = "epochfence", pg_temp
as $$
    select h.*
    from (select distinct * from unnest(groups, topics, partitions)) as k (group_name, topic, partition), lateral (
        select d.* from decision d
        where d.group_name = k.group_name and d.topic = k.topic and d.partition = k.partition and d.kind in ('hang', 'on-failure-hang')
            and d.id > coalesce((
                select a.id from decision a
                where a.group_name = k.group_name and a.topic = k.topic and a.partition = k.partition
                    and a.kind in ('rewind', 'skip', 'resume', 'rebase', 'run')
                order by a.id desc limit 1), 0)
        order by d.id desc limit most) h
    order by h.id desc
$$;

-- read_decisions returns the newest entries that fit, newest first. What is null, or
-- empty, is not asked for.
create function "epochfence".read_decisions(in_group text, in_topic text, in_partition integer, in_claim uuid, in_kinds text[],
    before_id bigint, until timestamptz, most bigint)
returns setof "epochfence".decision
language plpgsql stable security definer set search_path = "epochfence", pg_temp
as $$
begin
    if in_group is not null then
        return query select d.* from decision d
        where d.group_name = in_group and d.topic = in_topic and d.partition = in_partition
            and (before_id is null or d.id < before_id) and (until is null or d.decided_at <= until)
            and (in_claim is null or d.claim_id = in_claim) and (in_kinds is null or d.kind = any (in_kinds))
        order by d.id desc limit most;
    else
        return query select d.* from decision d
        where (before_id is null or d.id < before_id) and (until is null or d.decided_at <= until)
            and (in_claim is null or d.claim_id = in_claim) and (in_kinds is null or d.kind = any (in_kinds))
        order by d.id desc limit most;
    end if;
end
$$;

revoke all on "epochfence".decision from public;
revoke all on function "epochfence".identity_behind, "epochfence".decide, "epochfence".prune_decisions, "epochfence".claim, "epochfence".record_decisions,
    "epochfence".hangs, "epochfence".read_decisions from public;

insert into "epochfence".migration (version, name) values (3, 'decision');
