-- What people see and do. Each act compares what was seen with what is there, goes
-- through a claim where it concerns a fence, and writes its entry in the decision
-- log, in one transaction.

-- act does something to a fence. Epochs continue by one, and the owner is the person; what
-- is null stays as it is. See Act.Apply in operate/act.go, which it agrees with.
create function "epochfence".act(kind text, in_group text, in_topic text, in_partition integer, lock_timeout_ms integer,
    seen_epoch bigint, seen_claim uuid, seen_offset bigint, new_claim uuid, in_operator text, in_reason text, trace_id text,
    set_offset bigint, set_mark bigint, beginning boolean, log text, source text)
returns setof "epochfence".fence
language plpgsql security definer set search_path = "epochfence", pg_temp
as $$
declare
    f fence;
    g fence;
begin
    perform set_config('lock_timeout', lock_timeout_ms::text, true);
    if trim(in_operator) = '' or trim(in_reason) = '' or kind not in ('rewind', 'skip', 'pause', 'resume', 'evict', 'rebase', 'run')
        or (kind in ('rewind', 'skip', 'run') and set_offset is null) or (kind in ('pause', 'resume', 'evict') and set_offset is not null)
        or set_offset < 0 or (kind <> 'rebase' and (log is not null or source is not null))
    then
        raise exception using errcode = 'XF013', message = 'the act makes no sense';
    end if;
    select * into f from fence
    where group_name = in_group and topic = in_topic and partition = in_partition
    for update;
    if not found then
        raise exception using errcode = 'XF003', message = 'no fence',
            detail = json_build_object('group_name', in_group, 'topic', in_topic, 'partition', in_partition);
    end if;
    if starts_with(f.log_id, 'epochfence/shardsink: not in this database but in shard ') then
        raise exception using errcode = 'XF016', message = 'kept in another database', detail = row_to_json(f);
    end if;
    if f.epoch <> seen_epoch or f.claim_id <> seen_claim then
        raise exception using errcode = 'XF001', message = 'stale claim', detail = row_to_json(f);
    end if;
    if new_claim = '00000000-0000-0000-0000-000000000000' or new_claim = f.claim_id then
        raise exception using errcode = 'XF007', message = 'claim id is not a fresh one', detail = row_to_json(f);
    end if;
    if set_offset is not null and f.next_offset <> seen_offset then
        raise exception using errcode = 'XF002', message = 'position moved', detail = row_to_json(f);
    end if;
    if (f.epoch = 0 and set_offset is null) or (kind = 'pause' and f.mode = 'paused') or (kind = 'resume' and f.mode = '') then
        raise exception using errcode = 'XF012', message = 'nothing to do', detail = row_to_json(f);
    end if;
    if f.epoch = 9223372036854775807 then
        raise exception using errcode = 'XF009', message = 'epochs are used up', detail = row_to_json(f);
    end if;
    if kind = 'rebase' and coalesce(log, f.log_id) <> f.log_id and set_offset is null or kind = 'skip' and set_offset <= f.next_offset
        or kind = 'run' and (f.log_id <> 'epochfence/schedule' or beginning or set_mark = -1
            or set_offset < f.next_offset or set_offset - f.next_offset >= 1000000)
    then
        raise exception using errcode = 'XF013', message = 'the act makes no sense', detail = row_to_json(f);
    end if;
    update fence t
    set epoch = t.epoch + 1, claim_id = new_claim, owner = 'operator ' || in_operator, claimed_at = clock_timestamp(),
        next_offset = coalesce(set_offset, t.next_offset),
        mark = case when set_offset is null then t.mark else set_mark end,
        applied = case when set_offset is null then t.applied else not beginning end,
        set_under = case when set_offset is null or kind = 'skip' then t.set_under else t.epoch + 1 end,
        log_id = coalesce(log, t.log_id), lease_source = coalesce(source, t.lease_source),
        mode = case kind when 'pause' then 'paused' when 'resume' then '' else t.mode end,
        mode_by = case kind when 'pause' then in_operator when 'resume' then '' else t.mode_by end,
        mode_reason = case kind when 'pause' then in_reason when 'resume' then '' else t.mode_reason end,
        mode_at = case kind when 'pause' then clock_timestamp() when 'resume' then null else t.mode_at end
    where t.group_name = in_group and t.topic = in_topic and t.partition = in_partition
    returning t.* into g;
    perform decide(kind, in_group, in_topic, in_partition, g.epoch, g.claim_id, g.owner,
        case when f.epoch = 0 then -1 else f.next_offset end, g.next_offset, in_reason, in_operator, trace_id);
    return next g;
end
$$;

-- list_fences returns the fences of a group and a topic, in key order, and what people
-- ask besides. A null is any.
create function "epochfence".list_fences(in_group text, in_topic text, in_partition integer, paused boolean)
returns table (f "epochfence".fence, dead_letters bigint, read_at timestamptz)
language sql stable security definer set search_path = "epochfence", pg_temp
as $$
    select f, coalesce(d.letters, 0), clock_timestamp()
    from fence f left join (
        select l.group_name, l.topic, l.partition, count(*) as letters from dead_letter l group by 1, 2, 3
    ) d using (group_name, topic, partition)
    where (in_group is null or group_name = in_group) and (in_topic is null or topic = in_topic)
        and (in_partition is null or partition = in_partition) and (not paused or f.mode <> '')
    order by group_name, topic, partition
$$;

-- Dead letters that are to be replayed, and what has become of it.
alter table "epochfence".dead_letter
    add column request          bigint not null default 0, -- rises with each request for a replay
    add column requested        boolean not null default false,
    add column requested_by     text not null default '',
    add column requested_at     timestamptz,               -- for people
    add column replay_error     text not null default '',
    add column replay_failed_at timestamptz;               -- for people

create index dead_letter_requested on "epochfence".dead_letter (group_name, topic, partition, id) where requested;

-- requests returns what is asked of the owners of some partitions: a row whose id is null
-- with a number that changes with each act, also with one whose entry is committed after
-- that of a later one, and the replays. Where nothing is requested it reads an index
-- that has nothing in it.
create function "epochfence".requests(groups text[], topics text[], partitions integer[], each bigint, most bigint)
returns table (acts bigint, id bigint, request bigint, group_name text, topic text, partition integer, message_offset bigint,
    message_seconds bigint, message_nanos integer, key bytea, value bytea, header_keys bytea[], header_values bytea[])
language sql stable security definer set search_path = "epochfence", pg_temp
as $$
    select coalesce((select sum(a.id) from (
            select d.id from decision d where d.kind in ('rewind', 'skip', 'pause', 'resume', 'evict', 'rebase', 'run') order by d.id desc limit 8) a)::bigint, 0),
        null::bigint, null::bigint, null::text, null::text, null::integer, null::bigint,
        null::bigint, null::integer, null::bytea, null::bytea, null::bytea[], null::bytea[]
    union all
    (with wanted as materialized (
        select l.group_name, l.topic, l.partition, l.id from dead_letter l where l.requested
    ), ours as materialized (
        select w.id, row_number() over (partition by w.group_name, w.topic, w.partition order by w.id) as place
        from wanted w join unnest(groups, topics, partitions) as k (group_name, topic, partition)
            on w.group_name = k.group_name and w.topic = k.topic and w.partition = k.partition
    )
    select 0::bigint, l.id, l.request, l.group_name, l.topic, l.partition, l.message_offset,
        l.message_seconds, l.message_nanos, l.key, l.value, l.header_keys, l.header_values
    from (select o.id from ours o where o.place <= each order by o.place, o.id limit most) o join dead_letter l on l.id = o.id
    order by l.id)
$$;

-- replayed takes a dead letter away in the transaction in which its message was applied.
create function "epochfence".replayed(in_id bigint, in_request bigint, in_epoch bigint)
returns void
language plpgsql security definer set search_path = "epochfence", pg_temp
as $$
declare
    l dead_letter;
    f fence;
begin
    delete from dead_letter d where d.id = in_id and d.request = in_request and d.requested returning d.* into l;
    if not found then
        raise exception using errcode = 'XF014', message = 'no such dead letter';
    end if;
    select * into f from fence t where t.group_name = l.group_name and t.topic = l.topic and t.partition = l.partition;
    perform decide('replay', l.group_name, l.topic, l.partition, in_epoch, f.claim_id, f.owner,
        l.message_offset, l.message_offset, 'dead letter ' || l.id, l.requested_by, '');
end
$$;

-- replay_failed keeps a dead letter whose replay has failed, unless it is not there, or
-- not requested as it was.
create function "epochfence".replay_failed(in_id bigint, in_request bigint, in_epoch bigint, in_error text)
returns void
language plpgsql security definer set search_path = "epochfence", pg_temp
as $$
declare
    l dead_letter;
    f fence;
begin
    update dead_letter d
    set requested = false, replay_error = in_error, replay_failed_at = clock_timestamp()
    where d.id = in_id and d.request = in_request and d.requested
    returning d.* into l;
    if not found then
        return;
    end if;
    select * into f from fence t where t.group_name = l.group_name and t.topic = l.topic and t.partition = l.partition;
    perform decide('replay-failure', l.group_name, l.topic, l.partition, in_epoch, f.claim_id, f.owner,
        l.message_offset, l.message_offset, 'dead letter ' || l.id || ': ' || left(in_error, 500), l.requested_by, '');
end
$$;

-- list_dead_letters returns dead letters without their messages' content. A null is any.
create function "epochfence".list_dead_letters(in_group text, in_topic text, in_partition integer, only_requested boolean,
    after_id bigint, most bigint)
returns table (id bigint, group_name text, topic text, partition integer, message_offset bigint, epoch bigint,
    message_seconds bigint, message_nanos integer, error text, failed_at timestamptz, request bigint, requested boolean, requested_by text, requested_at timestamptz,
    replay_error text, replay_failed_at timestamptz)
language sql stable security definer set search_path = "epochfence", pg_temp
as $$
    select l.id, l.group_name, l.topic, l.partition, l.message_offset, l.epoch, l.message_seconds, l.message_nanos,
        l.error, l.failed_at, l.request, l.requested, l.requested_by, l.requested_at, l.replay_error, l.replay_failed_at
    from dead_letter l
    where l.id > after_id and (in_group is null or l.group_name = in_group) and (in_topic is null or l.topic = in_topic)
        and (in_partition is null or l.partition = in_partition) and (l.requested or not only_requested)
    order by l.id limit most
$$;

-- show_dead_letter returns one with its message.
create function "epochfence".show_dead_letter(in_id bigint)
returns setof "epochfence".dead_letter
language sql stable security definer set search_path = "epochfence", pg_temp
as $$
    select l.* from dead_letter l where l.id = in_id
$$;

-- act_on_dead_letter asks for a replay, takes that back, or discards a dead letter.
create function "epochfence".act_on_dead_letter(kind text, in_id bigint, seen_request bigint, seen_requested boolean,
    in_operator text, in_reason text, trace_id text)
returns setof "epochfence".dead_letter
language plpgsql security definer set search_path = "epochfence", pg_temp
as $$
declare
    l dead_letter;
    f fence;
begin
    if trim(in_operator) = '' or trim(in_reason) = '' or kind not in ('replay', 'withdraw', 'discard') then
        raise exception using errcode = 'XF013', message = 'the act makes no sense';
    end if;
    select * into l from dead_letter d where d.id = in_id for update;
    if not found then
        raise exception using errcode = 'XF014', message = 'no such dead letter';
    end if;
    if l.request <> seen_request or l.requested <> seen_requested then
        raise exception using errcode = 'XF015', message = 'the dead letter has changed';
    end if;
    if kind = 'replay' and l.requested or kind = 'withdraw' and not l.requested then
        raise exception using errcode = 'XF012', message = 'nothing to do';
    end if;
    if kind = 'discard' then
        delete from dead_letter d where d.id = in_id;
    else
        update dead_letter d
        set requested = kind = 'replay', request = d.request + case when kind = 'replay' then 1 else 0 end,
            requested_by = case when kind = 'replay' then in_operator else d.requested_by end,
            requested_at = case when kind = 'replay' then clock_timestamp() else d.requested_at end
        where d.id = in_id
        returning d.* into l;
    end if;
    select * into f from fence t where t.group_name = l.group_name and t.topic = l.topic and t.partition = l.partition;
    perform decide(case kind when 'replay' then 'replay-request' when 'withdraw' then 'replay-withdraw' else kind end,
        l.group_name, l.topic, l.partition, coalesce(f.epoch, 0), coalesce(f.claim_id, '00000000-0000-0000-0000-000000000000'), coalesce(f.owner, ''),
        l.message_offset, l.message_offset, 'dead letter ' || l.id || ': ' || in_reason, in_operator, trace_id);
    return next l;
end
$$;

-- The processes that consume: each gives a sign of life now and then, so that people tell a
-- partition that is claimed from one whose owner is gone.
create table "epochfence".process (
    run        text primary key, -- of one run of a consumer
    group_name text collate "C" not null,
    name       text not null,    -- what its owners begin with
    host       text not null,
    pid        bigint not null,
    version    text not null,    -- of the program
    problems   text not null,    -- by its own account, a line for each
    every_ms   bigint not null,  -- from one sign to the next
    since      timestamptz not null,
    seen_at    timestamptz not null
) with (fillfactor = 50); -- each sign writes a version of the row

create index process_name on "epochfence".process (group_name, name);

-- alive is a sign of life. With it, or soon, those go that were not seen for a week, and those that were not
-- seen for three times their wait, in the place of which this one is.
create function "epochfence".alive(in_run text, in_group text, in_name text, in_host text, in_pid bigint, in_version text, in_problems text, in_every_ms bigint)
returns void
language sql security definer set search_path = "epochfence", pg_temp
as $$
    insert into process as p (run, group_name, name, host, pid, version, problems, every_ms, since, seen_at)
    values (in_run, in_group, in_name, in_host, in_pid, in_version, in_problems, in_every_ms, clock_timestamp(), clock_timestamp())
    on conflict (run) do update set problems = excluded.problems, every_ms = excluded.every_ms, seen_at = clock_timestamp();

    delete from process x where x.run in (
        select p.run from process p
        where p.group_name = in_group and p.name = in_name and p.run <> in_run
            and p.seen_at < clock_timestamp() - 3 * p.every_ms * interval '1 millisecond'
        limit 64 for update skip locked);

    -- This reads the whole table, with the versions that an old snapshot keeps: one sign in 64 does.
    delete from process x where x.run in (
        select p.run from process p
        where (select random() < 1.0 / 64) and p.seen_at < clock_timestamp() - interval '7 days'
        limit 64 for update skip locked)
$$;

-- gone takes the sign away: the process has ended in good order.
create function "epochfence".gone(in_run text)
returns void
language sql security definer set search_path = "epochfence", pg_temp
as $$
    delete from process p where p.run = in_run
$$;

-- list_processes returns those of a group; null is any.
create function "epochfence".list_processes(in_group text)
returns table (run text, group_name text, name text, host text, pid bigint, version text, problems text, every_ms bigint,
    since timestamptz, seen_at timestamptz, read_at timestamptz)
language sql stable security definer set search_path = "epochfence", pg_temp
as $$
    select p.run, p.group_name, p.name, p.host, p.pid, p.version, p.problems, p.every_ms, p.since, p.seen_at, clock_timestamp()
    from process p where in_group is null or p.group_name = in_group
$$;

revoke all on "epochfence".process from public;
revoke all on function "epochfence".alive, "epochfence".gone, "epochfence".list_processes from public;
revoke all on function "epochfence".act, "epochfence".list_fences, "epochfence".requests, "epochfence".replayed, "epochfence".replay_failed,
    "epochfence".list_dead_letters, "epochfence".show_dead_letter, "epochfence".act_on_dead_letter from public;

insert into "epochfence".migration (version, name) values (4, 'operate');
