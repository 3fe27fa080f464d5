-- What people see and do. Each act compares what was seen with what is there, goes
-- through a claim where it concerns a fence, and writes its entry in the audit
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
    perform decide(kind, g, case when f.epoch = 0 then -1 else f.next_offset end, in_reason, in_operator, trace_id);
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
        select l.group_name, l.topic, l.partition, count(*) as letters from fence_ledger l
        where l.kind = 'dead-letter' and (in_group is null or l.group_name = in_group) and (in_topic is null or l.topic = in_topic)
            and (in_partition is null or l.partition = in_partition)
        group by 1, 2, 3
    ) d using (group_name, topic, partition)
    where (in_group is null or group_name = in_group) and (in_topic is null or topic = in_topic)
        and (in_partition is null or partition = in_partition) and (not paused or f.mode <> '')
    order by group_name, topic, partition
$$;

revoke all on function "epochfence".act, "epochfence".list_fences from public;

insert into "epochfence".migration (version, name) values (3, 'operate');
