-- Fences, and the functions that are the only way to them: seed adds them, swap_claim gives one to a claim or
-- refuses it, and advance, the last statement before COMMIT, moves the position or refuses.
--
-- Every function is SECURITY DEFINER with a pinned search_path: an application
-- role needs USAGE on the schema and EXECUTE on the functions, and cannot read
-- or write the tables. Refusals are errors with a SQLSTATE of their own, so that
-- they abort the transaction, and carry the fence as found as JSON in DETAIL. Those
-- of a transaction with statements of a handler, which may raise the same SQLSTATE,
-- carry the transaction's nonce in HINT:
--
--   XF001 stale       another claim holds the fence
--   XF002 moved       the claim holds, the position is another
--   XF003 missing     there is no such fence
--   XF004 escaped     the transaction is not the one that was entered
--   XF005 log         the fence counts the offsets of another log
--   XF006 source      the fence is leased from another issuer
--   XF007 claim id    the new claim id is not a fresh one
--   XF008 no lease    the generation of the lease is not positive
--   XF009 exhausted   epochs are used up
--   XF010 adopted     a claim adopts a position, and is not the first of its fence
--   XF011 paused      the mode of the fence takes no claims
--   XF019 reach       the next epoch would be out of reach from the last one
--   XF020 operator    a claim has an owner that is named as operators are
--
-- and those of people's acts, in 0003_operate.sql:
--
--   XF012 nothing     the fence is as the act would have it
--   XF013 invalid     the act makes no sense
--   XF015 changed     a row has changed since it was read, or is gone
--   XF016 elsewhere   the fence only says in which database the partition is
--   XF017 session     one of several calls has changed the session for the others
--
-- and that of tables whose rows are numbered, in 0002_ledger.sql:
--
--   XF018 behind      the identity of a table is behind its rows
--
-- and that of tables that an operator has protected, in 0004_outside.sql:
--
--   XF021 outside     a write to the table is from outside a fenced transaction

create table "epochfence".migration (
    version    integer primary key,
    name       text not null,
    applied_at timestamptz not null default clock_timestamp()
);

create function "epochfence".schema_version() returns integer
language sql stable security definer set search_path = "epochfence", pg_temp
as $$
    select coalesce(max(version), 0) from migration
$$;

-- One row per partition. It is never deleted: a group whose fence is gone would
-- begin again at the earliest message.
create table "epochfence".fence (
    group_name       text collate "C" not null,
    topic            text collate "C" not null,
    partition        integer not null,
    log_id           text collate "C" not null, -- whose offsets next_offset counts
    lease_source     text collate "C" not null, -- who issued lease_generation
    lease_generation bigint not null default 0, -- for people
    owner            text not null default '',  -- for people
    epoch            bigint not null default 0, -- zero: seeded, never claimed
    claim_id         uuid not null default '00000000-0000-0000-0000-000000000000',
    next_offset      bigint not null,           -- the next message to apply
    mark             bigint not null default -1, -- what the source recognises its log by at next_offset; -1: nothing
    applied          boolean not null default false, -- the group has applied what is before next_offset
    set_under        bigint not null default 0, -- epoch of the last operator action, other than a skip, that set next_offset; zero: none
    mode             text not null default '',  -- empty: accepts claims; 'paused': an operator has paused it
    mode_by          text not null default '',  -- who set the mode, why and when, for people
    mode_reason      text not null default '',
    mode_at          timestamptz,
    claimed_at       timestamptz,               -- for people
    advanced_at      timestamptz,               -- for people
    lap              bigint not null default 0, -- rises as the row leaves a page of the table, to keep dead versions apart
    primary key (group_name, topic, partition, lap)
) with (fillfactor = 50); -- each advance writes a version of the row: let it find room beside the last

-- only_fence lets no second row in for a partition.
create function "epochfence".only_fence() returns trigger
language plpgsql set search_path = "epochfence", pg_temp
as $$
begin
    if exists (select from fence f where f.group_name = new.group_name and f.topic = new.topic and f.partition = new.partition) then
        raise exception using errcode = 'unique_violation', schema = tg_table_schema, table = tg_table_name,
            message = format('there is a fence of %s/%s/%s', new.group_name, new.topic, new.partition);
    end if;
    return new;
end
$$;

create trigger fence_only before insert on "epochfence".fence for each row execute function "epochfence".only_fence();

-- turn begins another lap of the row that is at a place, which it has found on another page.
--
-- While any transaction of the database holds a snapshot, no dead version of a row is removed, and
-- whoever finds the row by its key, or adds an entry for it to a unique index, passes all of them.
-- The number of the lap in the key keeps the versions of one page, or two, together, and the
-- highest is the row's. Functions look for it there, without sorting, which leaves the planner only
-- the index. Where nobody holds a snapshot, the row stays on its page, and in its lap.
--
-- A change of the key would wait for a transaction that holds the claim. Then the row turns on a
-- later page.
create function "epochfence".turn(place tid)
returns void
language plpgsql set search_path = "epochfence", pg_temp
as $$
begin
    perform from fence f where f.ctid = place for update skip locked;
    if found then
        update fence f set lap = f.lap + 1 where f.ctid = place;
    end if;
end
$$;

create function "epochfence".read_fence(in_group text, in_topic text, in_partition integer)
returns setof "epochfence".fence
language sql stable security definer set search_path = "epochfence", pg_temp set enable_sort = off
as $$
    select f.* from fence f
    where f.group_name = in_group and f.topic = in_topic and f.partition = in_partition
    order by f.lap desc limit 1
$$;

create function "epochfence".read_fences(groups text[], topics text[], partitions integer[])
returns setof "epochfence".fence
language sql stable security definer set search_path = "epochfence", pg_temp set enable_sort = off
as $$
    select f.* from unnest(groups, topics, partitions) as k (group_name, topic, partition), lateral (
        select l.* from fence l
        where l.group_name = k.group_name and l.topic = k.topic and l.partition = k.partition
        order by l.lap desc limit 1) f
$$;

-- server says which server this is: after a failover the timeline is another,
-- behind another cluster the system identifier is, and any other server, or this
-- one restored, was started at another time. What a hosted PostgreSQL does not
-- tell is zero. A standby may lag behind, so its fences are none to go by.
create function "epochfence".server(out system bigint, out timeline bigint, out started timestamptz)
language plpgsql stable security definer set search_path = "epochfence", pg_temp
as $$
begin
    if pg_is_in_recovery() then
        raise exception using errcode = 'read_only_sql_transaction', message = 'the server is a standby';
    end if;
    started := pg_postmaster_start_time();
    begin
        system := (select c.system_identifier from pg_control_system() c);
        timeline := ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::bigint;
    exception when others then
        system := coalesce(system, 0);
        timeline := 0;
    end;
end
$$;

-- seed adds a fence for each partition that has none: at nexts if the group has
-- no fence of the topic yet, otherwise at earliests. Concurrent calls for one
-- group and topic come one after the other. It relies on READ COMMITTED: the
-- statements after the lock see what the call before it did.
create function "epochfence".seed(in_group text, in_topic text, lock_timeout_ms integer,
    partitions integer[], logs text[], sources text[], nexts bigint[], next_marks bigint[],
    earliests bigint[], earliest_marks bigint[])
returns void
language plpgsql security definer set search_path = "epochfence", pg_temp
as $$
declare
    known boolean;
    changed fence;
begin
    perform set_config('lock_timeout', lock_timeout_ms::text, true);
    perform pg_advisory_xact_lock(hashtextextended(in_group, hashtextextended(in_topic, 0)));
    known := exists (select from fence f where f.group_name = in_group and f.topic = in_topic);
    if exists (
        select from unnest(partitions) s (partition)
        where not exists (select from fence f where f.group_name = in_group and f.topic = in_topic and f.partition = s.partition)
    ) then
        select f.* into changed from unnest(partitions, logs) with ordinality as s (partition, log, position)
            join fence f on f.group_name = in_group and f.topic = in_topic and f.partition = s.partition
        where f.log_id <> s.log
        order by s.position limit 1;
        if found then
            raise exception using errcode = 'XF005', message = 'log changed', detail = row_to_json(changed);
        end if;
    end if;
    insert into fence (group_name, topic, partition, log_id, lease_source, next_offset, mark)
    select in_group, in_topic, s.partition, s.log, s.source,
        case when known then s.earliest else s.next end, case when known then s.earliest_mark else s.next_mark end
    from unnest(partitions, logs, sources, nexts, next_marks, earliests, earliest_marks)
        with ordinality as s (partition, log, source, next, next_mark, earliest, earliest_mark, position)
    where not exists (select from fence f where f.group_name = in_group and f.topic = in_topic and f.partition = s.partition)
    order by s.position;
end
$$;

-- swap_claim swaps a claim in if the fence still is as seen. The first claim of a fence
-- may adopt a position; null is none. It relies on READ COMMITTED: the row it locks
-- is the newest. The function claim, in 0002_ledger.sql, is the way to it.
create function "epochfence".swap_claim(in_group text, in_topic text, in_partition integer, lock_timeout_ms integer,
    seen_epoch bigint, seen_claim uuid, log text, source text, generation bigint, above bigint, new_owner text, new_claim uuid,
    adopt_offset bigint, adopt_mark bigint)
returns setof "epochfence".fence
language plpgsql set search_path = "epochfence", pg_temp set enable_sort = off
as $$
declare
    f fence;
    last bigint;
begin
    perform set_config('lock_timeout', lock_timeout_ms::text, true);
    select * into f from fence
    where group_name = in_group and topic = in_topic and partition = in_partition
    order by lap desc limit 1
    for update;
    if not found then
        raise exception using errcode = 'XF003', message = 'no fence',
            detail = json_build_object('group_name', in_group, 'topic', in_topic, 'partition', in_partition);
    end if;
    if f.epoch <> seen_epoch or f.claim_id <> seen_claim then
        raise exception using errcode = 'XF001', message = 'stale claim', detail = row_to_json(f);
    end if;
    if new_claim = '00000000-0000-0000-0000-000000000000' or new_claim = f.claim_id then
        raise exception using errcode = 'XF007', message = 'claim id is not a fresh one', detail = row_to_json(f);
    end if;
    if generation <= 0 then
        raise exception using errcode = 'XF008', message = 'no lease', detail = row_to_json(f);
    end if;
    if f.log_id <> log then
        raise exception using errcode = 'XF005', message = 'log changed', detail = row_to_json(f);
    end if;
    if f.lease_source <> source then
        raise exception using errcode = 'XF006', message = 'foreign lease source', detail = row_to_json(f);
    end if;
    if f.mode <> '' then
        raise exception using errcode = 'XF011', message = 'paused', detail = row_to_json(f);
    end if;
    if starts_with(new_owner, 'operator ') then
        raise exception using errcode = 'XF020', message = 'owner is named as operators are', detail = row_to_json(f);
    end if;
    if f.epoch = 9223372036854775807 then
        raise exception using errcode = 'XF009', message = 'epochs are used up', detail = row_to_json(f);
    end if;
    last := greatest(f.epoch, above, generation - 1);
    if last > f.epoch and (last > 9007199254740992 or last - f.epoch > 1099511627776) then -- MaxAbove and MaxStep in epoch/claim.go
        raise exception using errcode = 'XF019', message = 'epoch out of reach', detail = row_to_json(f);
    end if;
    if adopt_offset < 0 or adopt_offset is not null and f.epoch > 0 then
        raise exception using errcode = 'XF010', message = 'only the first claim adopts a position', detail = row_to_json(f);
    end if;
    return query
    update fence t
    set lease_generation = generation, owner = new_owner, epoch = last + 1,
        claim_id = new_claim, claimed_at = clock_timestamp(),
        next_offset = coalesce(adopt_offset, t.next_offset), applied = t.applied or adopt_offset is not null,
        mark = case when adopt_offset is null then t.mark else adopt_mark end
    where t.group_name = in_group and t.topic = in_topic and t.partition = in_partition and t.lap = f.lap
    returning t.*;
end
$$;

-- refuse raises what speaks against an advance, if anything does, or, where there is
-- no position to start from, against holding the claim.
create function "epochfence".refuse(in_group text, in_topic text, in_partition integer, in_claim uuid, in_from bigint,
    nonce text)
returns void
language plpgsql set search_path = "epochfence", pg_temp set enable_sort = off
as $$
declare
    f fence;
begin
    select * into f from fence
    where group_name = in_group and topic = in_topic and partition = in_partition
    order by lap desc limit 1;
    if not found then
        raise exception using errcode = 'XF003', message = 'no fence', hint = nonce,
            detail = json_build_object('group_name', in_group, 'topic', in_topic, 'partition', in_partition);
    end if;
    if f.claim_id <> in_claim or in_claim = '00000000-0000-0000-0000-000000000000' then
        raise exception using errcode = 'XF001', message = 'stale claim', hint = nonce, detail = row_to_json(f);
    end if;
    if f.next_offset <> in_from then
        raise exception using errcode = 'XF002', message = 'position moved', hint = nonce, detail = row_to_json(f);
    end if;
end
$$;

-- look_early refuses at once what advance would refuse now, or hold, for which froms
-- is null. It spares a process that has lost its claim the work of its handler, and
-- holds no lock on a fence.
create function "epochfence".look_early(groups text[], topics text[], partitions integer[], claims uuid[], froms bigint[],
    nonce text)
returns void
language plpgsql security definer set search_path = "epochfence", pg_temp set enable_sort = off
as $$
declare
    i bigint;
begin
    select min(a.position) into i
    from unnest(groups, topics, partitions, claims, froms)
        with ordinality as a (group_name, topic, partition, claim, start, position)
    left join lateral (
        select l.claim_id, l.next_offset from fence l
        where l.group_name = a.group_name and l.topic = a.topic and l.partition = a.partition
        order by l.lap desc limit 1) f on true
    where f.claim_id is distinct from a.claim or f.next_offset <> a.start
        or a.claim = '00000000-0000-0000-0000-000000000000';
    if i is not null then
        perform refuse(groups[i], topics[i], partitions[i], claims[i], froms[i], nonce);
    end if;
end
$$;

-- entered tells whether the transaction is the one that was entered, and not one
-- that the handler has begun after it. It is if it has the id that it was entered with.
-- Where who asks has not seen that, it is told by the setting epochfence.transaction,
-- or, as a handler can take that away with RESET ALL, by the lock that was taken with it.
create function "epochfence".entered(xid bigint, lock bigint) returns boolean
language plpgsql set search_path = "epochfence", pg_temp
as $$
declare
    now_xid text := pg_current_xact_id()::text;
begin
    if xid is not null then
        return now_xid = xid::text;
    end if;
    return current_setting('epochfence.transaction', true) is not distinct from now_xid
        or exists (select from pg_locks l
            where l.locktype = 'advisory' and l.objsubid = 1 and l.granted and l.mode = 'ShareLock'
                and l.classid = ((lock >> 32) & 4294967295)::oid and l.objid = (lock & 4294967295)::oid
                and l.database = (select d.oid from pg_database d where d.datname = current_database())
                and l.pid = pg_backend_pid());
end
$$;

-- advance is the last statement before COMMIT: for each partition in the order
-- given, which must be key order, the fence's claim is mine and its next_offset
-- is where I started, or it raises. It returns the nonce: who reads that knows
-- that the answer is this one's, and not that of a statement of the handler's. dirty says
-- that one of several calls has changed the session for the others.
create function "epochfence".advance(groups text[], topics text[], partitions integer[], claims uuid[],
    froms bigint[], tos bigint[], marks bigint[], xid bigint, lock bigint, nonce text, dirty boolean)
returns text
language plpgsql security definer set search_path = "epochfence", pg_temp set enable_sort = off
as $$
declare
    was tid;
    became tid;
    fenced text;
begin
    if not entered(xid, lock) then
        raise exception using errcode = 'XF004', message = 'handler ended the fenced transaction', hint = nonce;
    end if;
    if dirty then
        raise exception using errcode = 'XF017', message = 'the session was changed', hint = nonce;
    end if;
    for i in 1 .. cardinality(groups) loop
        for attempt in 1 .. 2 loop
            update fence f
            set next_offset = tos[i], advanced_at = clock_timestamp(),
                mark = case when tos[i] > froms[i] then marks[i] else f.mark end,
                applied = f.applied or tos[i] > froms[i]
            from (select l.ctid as place from fence l
                where l.group_name = groups[i] and l.topic = topics[i] and l.partition = partitions[i]
                order by l.lap desc limit 1) seen
            where f.ctid = seen.place
                and f.claim_id = claims[i] and f.next_offset = froms[i]
                and claims[i] <> '00000000-0000-0000-0000-000000000000'
            returning seen.place, f.ctid into was, became;
            if found then
                if (was::text::point)[0] <> (became::text::point)[0] then
                    perform turn(became);
                end if;
                exit;
            end if;
            -- An UPDATE does not wait for a row whose old version does not
            -- match, or may find its place left. Lock it, and judge what it has become.
            perform from fence f
            where f.group_name = groups[i] and f.topic = topics[i] and f.partition = partitions[i]
            order by f.lap desc limit 1
            for no key update;
            perform refuse(groups[i], topics[i], partitions[i], claims[i], froms[i], nonce);
            if attempt = 2 then
                raise exception 'fence neither advanced nor refused';
            end if;
        end loop;
    end loop;
    fenced := set_config('epochfence.fenced', pg_current_xact_id()::text, true); -- for 0004_outside.sql
    return nonce;
end
$$;

-- advance_one is advance for one partition, which most transactions are about, without
-- arrays and without what waits and judges: where it does not move the fence, advance
-- has the word.
create function "epochfence".advance_one(in_group text, in_topic text, in_partition integer, in_claim uuid,
    in_from bigint, in_to bigint, in_mark bigint, xid bigint, lock bigint, nonce text, dirty boolean)
returns text
language plpgsql security definer set search_path = "epochfence", pg_temp set enable_sort = off
as $$
declare
    was tid;
    became tid;
    fenced text;
begin
    if not dirty and pg_current_xact_id()::text = coalesce(xid::text, current_setting('epochfence.transaction', true)) then
        update fence f
        set next_offset = in_to, advanced_at = clock_timestamp(),
            mark = case when in_to > in_from then in_mark else f.mark end,
            applied = f.applied or in_to > in_from
        from (select l.ctid as place from fence l
            where l.group_name = in_group and l.topic = in_topic and l.partition = in_partition
            order by l.lap desc limit 1) seen
        where f.ctid = seen.place
            and f.claim_id = in_claim and f.next_offset = in_from
            and in_claim <> '00000000-0000-0000-0000-000000000000'
        returning seen.place, f.ctid into was, became;
        if found then
            if (was::text::point)[0] <> (became::text::point)[0] then
                perform turn(became);
            end if;
            fenced := set_config('epochfence.fenced', pg_current_xact_id()::text, true);
            return nonce;
        end if;
    end if;
    return advance(array[in_group], array[in_topic], array[in_partition], array[in_claim],
        array[in_from], array[in_to], array[in_mark], xid, lock, nonce, dirty);
end
$$;

-- hold is the last statement before COMMIT where no position is moved: the fence's
-- claim is mine, until the transaction has ended, or it raises. It returns the nonce, as
-- advance does.
--
-- An advance changes no column of a key, unless the lock is free, so that it passes beside it; claim
-- locks the row FOR UPDATE, so that it waits for it. The look comes after the lock, as
-- a statement of its own: in READ COMMITTED it sees what was committed before it was
-- granted. A stricter transaction sees what its snapshot does, and there the lock is
-- a serialization failure where a claim has replaced that since.
create function "epochfence".hold(in_group text, in_topic text, in_partition integer, in_claim uuid,
    xid bigint, lock bigint, nonce text)
returns text
language plpgsql security definer set search_path = "epochfence", pg_temp set enable_sort = off
as $$
declare
    fenced text;
begin
    if not entered(xid, lock) then
        raise exception using errcode = 'XF004', message = 'handler ended the fenced transaction', hint = nonce;
    end if;
    perform from fence f
    where f.group_name = in_group and f.topic = in_topic and f.partition = in_partition
    order by f.lap desc limit 1
    for key share;
    perform refuse(in_group, in_topic, in_partition, in_claim, null, nonce);
    fenced := set_config('epochfence.fenced', pg_current_xact_id()::text, true);
    return nonce;
end
$$;

revoke all on "epochfence".migration, "epochfence".fence from public;
revoke all on function "epochfence".only_fence, "epochfence".turn, "epochfence".schema_version, "epochfence".read_fence, "epochfence".read_fences,
    "epochfence".server, "epochfence".seed, "epochfence".swap_claim,
    "epochfence".refuse, "epochfence".look_early, "epochfence".entered,
    "epochfence".advance, "epochfence".advance_one, "epochfence".hold from public;

insert into "epochfence".migration (version, name) values (1, 'fence');
