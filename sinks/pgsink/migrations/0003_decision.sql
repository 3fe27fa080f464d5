-- The decision log: who was let in, who was not, what people did, and why. What
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
create index decision_attended on "epochfence".decision (id) where operator <> '';

-- decide adds an entry, and takes away some old ones: those that are 90 days old, and of
-- those that no person is in, all but the newest 200,000 or so. It looks at the oldest
-- only, so that it costs the same however long the log is, and leaves those that
-- another transaction is at, so that it waits for nobody.
create function "epochfence".decide(kind text, in_group text, in_topic text, in_partition integer, epoch bigint, claim uuid,
    owner text, from_offset bigint, to_offset bigint, reason text, operator text, trace_id text)
returns void
language plpgsql set search_path = "epochfence", pg_temp
as $$
#variable_conflict use_variable
declare
    latest bigint;
begin
    insert into decision as d (kind, group_name, topic, partition, epoch, claim_id, owner, from_offset, to_offset, reason, operator, trace_id)
    values (kind, in_group, in_topic, in_partition, epoch, claim, owner, from_offset, to_offset, reason, operator, trace_id)
    returning d.id into latest;
    if (select d.id from decision d where d.operator = '' order by d.id limit 1) <= latest - 200000 then
        delete from decision x where x.id in (
            select d.id from decision d where d.operator = '' and d.id <= latest - 200000 order by d.id limit 4 for update skip locked);
    end if;
    if (select out_of_date(d.decided_at) from decision d order by d.id limit 1) then
        delete from decision x where x.id in (
            select d.id from decision d where out_of_date(d.decided_at) order by d.id limit 4 for update skip locked);
    end if;
end
$$;

-- out_of_date says whether an entry of the log is out of date. Nothing else depends on it.
create function "epochfence".out_of_date(at timestamptz) returns boolean
language sql volatile set search_path = "epochfence", pg_temp
as $$
    select at < clock_timestamp() - interval '90 days'
$$;

-- claim is swap_claim, with its entry in the decision log.
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
-- that swap claims, and people, have done.
create function "epochfence".record_decisions(kinds text[], groups text[], topics text[], partitions integer[], epochs bigint[], claims uuid[],
    owners text[], froms bigint[], tos bigint[], reasons text[], trace_ids text[])
returns void
language plpgsql security definer set search_path = "epochfence", pg_temp
as $$
begin
    for i in 1 .. cardinality(kinds) loop
        if kinds[i] not in ('stale', 'halt', 'loss', 'in-doubt') then
            raise exception using errcode = 'XF013', message = 'a consumer records no ' || kinds[i];
        end if;
        perform decide(kinds[i], groups[i], topics[i], partitions[i], epochs[i], claims[i], owners[i], froms[i], tos[i], reasons[i], '', trace_ids[i]);
    end loop;
end
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
revoke all on function "epochfence".decide, "epochfence".out_of_date, "epochfence".claim, "epochfence".record_decisions,
    "epochfence".read_decisions from public;

insert into "epochfence".migration (version, name) values (3, 'decision');
