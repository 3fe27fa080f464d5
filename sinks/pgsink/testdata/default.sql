-- 0001_fence.sql
create schema if not exists "epochfence";

-- Fences, and the functions that are the only way to them.
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
-- and those of people's acts, in 0004_operate.sql:
--
--   XF012 nothing     the fence, or the dead letter, is as the act would have it
--   XF013 invalid     the act makes no sense
--   XF014 gone        there is no such dead letter, or its replay is not requested as it was
--   XF015 changed     the requests for the replay of a dead letter are others than seen
--   XF016 elsewhere   the fence only says in which database the partition is
--   XF017 session     one of several calls has changed the session for the others
--
-- and that of tables whose rows are numbered, in 0002_dead_letter.sql:
--
--   XF018 behind      the identity of a table is behind its rows

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
    set_under        bigint not null default 0, -- the epoch under which a person has set next_offset last; zero: nobody has
    mode             text not null default '',  -- takes claims where it is empty; 'paused': a person has paused it
    mode_by          text not null default '',  -- who set the mode, why and when, for people
    mode_reason      text not null default '',
    mode_at          timestamptz,
    claimed_at       timestamptz,               -- for people
    advanced_at      timestamptz,               -- for people
    primary key (group_name, topic, partition)
) with (fillfactor = 50); -- each advance writes a version of the row: let it find room beside the last

create function "epochfence".read_fence(in_group text, in_topic text, in_partition integer)
returns setof "epochfence".fence
language sql stable security definer set search_path = "epochfence", pg_temp
as $$
    select f.* from fence f
    where f.group_name = in_group and f.topic = in_topic and f.partition = in_partition
$$;

create function "epochfence".read_fences(groups text[], topics text[], partitions integer[])
returns setof "epochfence".fence
language sql stable security definer set search_path = "epochfence", pg_temp
as $$
    select f.* from unnest(groups, topics, partitions) as k (group_name, topic, partition)
    join fence f on f.group_name = k.group_name and f.topic = k.topic and f.partition = k.partition
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
begin
    perform set_config('lock_timeout', lock_timeout_ms::text, true);
    perform pg_advisory_xact_lock(hashtextextended(in_group, hashtextextended(in_topic, 0)));
    known := exists (select from fence f where f.group_name = in_group and f.topic = in_topic);
    insert into fence (group_name, topic, partition, log_id, lease_source, next_offset, mark)
    select in_group, in_topic, s.partition, s.log, s.source,
        case when known then s.earliest else s.next end, case when known then s.earliest_mark else s.next_mark end
    from unnest(partitions, logs, sources, nexts, next_marks, earliests, earliest_marks)
        with ordinality as s (partition, log, source, next, next_mark, earliest, earliest_mark, position)
    order by s.position
    on conflict do nothing;
end
$$;

-- swap_claim swaps a claim in if the fence still is as seen. The first claim of a fence
-- may adopt a position; null is none. It relies on READ COMMITTED: the row it locks
-- is the newest. The function claim, in 0003_decision.sql, is the way to it.
create function "epochfence".swap_claim(in_group text, in_topic text, in_partition integer, lock_timeout_ms integer,
    seen_epoch bigint, seen_claim uuid, log text, source text, generation bigint, above bigint, new_owner text, new_claim uuid,
    adopt_offset bigint, adopt_mark bigint)
returns setof "epochfence".fence
language plpgsql set search_path = "epochfence", pg_temp
as $$
declare
    f fence;
    last bigint;
begin
    perform set_config('lock_timeout', lock_timeout_ms::text, true);
    select * into f from fence
    where group_name = in_group and topic = in_topic and partition = in_partition
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
    where t.group_name = in_group and t.topic = in_topic and t.partition = in_partition
    returning t.*;
end
$$;

-- refuse raises what speaks against an advance, if anything does, or, where there is
-- no position to start from, against holding the claim.
create function "epochfence".refuse(in_group text, in_topic text, in_partition integer, in_claim uuid, in_from bigint,
    nonce text)
returns void
language plpgsql set search_path = "epochfence", pg_temp
as $$
declare
    f fence;
begin
    select * into f from fence
    where group_name = in_group and topic = in_topic and partition = in_partition;
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
language plpgsql security definer set search_path = "epochfence", pg_temp
as $$
declare
    i bigint;
begin
    select a.position into i
    from unnest(groups, topics, partitions, claims, froms)
        with ordinality as a (group_name, topic, partition, claim, start, position)
    left join fence f
        on f.group_name = a.group_name and f.topic = a.topic and f.partition = a.partition
    where f.claim_id is distinct from a.claim or f.next_offset <> a.start
        or a.claim = '00000000-0000-0000-0000-000000000000'
    order by a.position limit 1;
    if found then
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
language plpgsql security definer set search_path = "epochfence", pg_temp
as $$
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
            where f.group_name = groups[i] and f.topic = topics[i] and f.partition = partitions[i]
                and f.claim_id = claims[i] and f.next_offset = froms[i]
                and claims[i] <> '00000000-0000-0000-0000-000000000000';
            exit when found;
            -- An UPDATE does not wait for a row whose old version does not
            -- match. Lock it, and judge what it has become.
            perform from fence f
            where f.group_name = groups[i] and f.topic = topics[i] and f.partition = partitions[i]
            for no key update;
            perform refuse(groups[i], topics[i], partitions[i], claims[i], froms[i], nonce);
            if attempt = 2 then
                raise exception 'fence neither advanced nor refused';
            end if;
        end loop;
    end loop;
    return nonce;
end
$$;

-- advance_one is advance for one partition, which most transactions are about, without
-- arrays and without what waits and judges: where it does not move the fence, advance
-- has the word.
create function "epochfence".advance_one(in_group text, in_topic text, in_partition integer, in_claim uuid,
    in_from bigint, in_to bigint, in_mark bigint, xid bigint, lock bigint, nonce text, dirty boolean)
returns text
language plpgsql security definer set search_path = "epochfence", pg_temp
as $$
begin
    if not dirty and pg_current_xact_id()::text = coalesce(xid::text, current_setting('epochfence.transaction', true)) then
        update fence f
        set next_offset = in_to, advanced_at = clock_timestamp(),
            mark = case when in_to > in_from then in_mark else f.mark end,
            applied = f.applied or in_to > in_from
        where f.group_name = in_group and f.topic = in_topic and f.partition = in_partition
            and f.claim_id = in_claim and f.next_offset = in_from
            and in_claim <> '00000000-0000-0000-0000-000000000000';
        if found then
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
-- An advance changes no column of a key, so that it passes beside this lock; claim
-- locks the row FOR UPDATE, so that it waits for it. The look comes after the lock, as
-- a statement of its own: in READ COMMITTED it sees what was committed before it was
-- granted. A stricter transaction sees what its snapshot does, and there the lock is
-- a serialization failure where a claim has replaced that since.
create function "epochfence".hold(in_group text, in_topic text, in_partition integer, in_claim uuid,
    xid bigint, lock bigint, nonce text)
returns text
language plpgsql security definer set search_path = "epochfence", pg_temp
as $$
begin
    if not entered(xid, lock) then
        raise exception using errcode = 'XF004', message = 'handler ended the fenced transaction', hint = nonce;
    end if;
    perform from fence f
    where f.group_name = in_group and f.topic = in_topic and f.partition = in_partition
    for key share;
    perform refuse(in_group, in_topic, in_partition, in_claim, null, nonce);
    return nonce;
end
$$;

revoke all on "epochfence".migration, "epochfence".fence from public;
revoke all on function "epochfence".schema_version, "epochfence".read_fence, "epochfence".read_fences,
    "epochfence".server, "epochfence".seed, "epochfence".swap_claim,
    "epochfence".refuse, "epochfence".look_early, "epochfence".entered,
    "epochfence".advance, "epochfence".advance_one, "epochfence".hold from public;

insert into "epochfence".migration (version, name) values (1, 'fence');

-- 0002_dead_letter.sql
-- Messages that a handler could not apply, each stored in the transaction that
-- moved past it.

-- behind says what to do about an identity that is behind the rows of its table.
create function "epochfence".behind(in_schema text, in_table text) returns text
language sql immutable set search_path = "epochfence", pg_temp
as $$
    select format('the identity of %1$I.%2$I is behind its rows, as after logical replication, which copies no sequences; '
        || 'run as the owner: select setval(pg_get_serial_sequence(%3$L, ''id''), (select max(id) from %1$I.%2$I))',
        in_schema, in_table, format('%I.%I', in_schema, in_table))
$$;

-- follow refuses a row whose identity is not above those that the statement sees: they were
-- committed, and so numbered, before it. It is STABLE in order to see what the statement does,
-- and no row that is committed meanwhile. It reads the index where nothing should be, by a plan
-- for the table as it is, so that it costs the same however long that is. Under SERIALIZABLE it does
-- not look: transactions that add rows at a time would fail each other.
create function "epochfence".follow() returns trigger
language plpgsql stable set search_path = "epochfence", pg_temp
as $$
declare
    later bigint;
begin
    if current_setting('transaction_isolation') <> 'serializable' then
        execute format('select t.id from %I.%I t where t.id >= $1 order by t.id limit 1', tg_table_schema, tg_table_name)
            into later using new.id;
        if later is not null then
            raise exception using errcode = 'XF018', message = behind(tg_table_schema, tg_table_name);
        end if;
    end if;
    return new;
end
$$;

create table "epochfence".dead_letter (
    id             bigint generated always as identity primary key,
    group_name     text collate "C" not null,
    topic          text collate "C" not null,
    partition      integer not null,
    message_offset bigint not null,
    epoch          bigint not null,  -- under which the message was given up
    message_time   timestamptz,
    key            bytea,
    value          bytea,
    header_keys    bytea[] not null, -- in the message's order, with header_values
    header_values  bytea[] not null,
    error          text not null,
    failed_at      timestamptz not null default clock_timestamp()
);

create index dead_letter_partition on "epochfence".dead_letter (topic, partition, message_offset);
create trigger dead_letter_follow before insert on "epochfence".dead_letter for each row execute function "epochfence".follow();

create function "epochfence".dead_letter(in_group text, in_topic text, in_partition integer, in_offset bigint,
    in_epoch bigint, in_time timestamptz, in_key bytea, in_value bytea,
    in_header_keys bytea[], in_header_values bytea[], in_error text)
returns void
language sql security definer set search_path = "epochfence", pg_temp
as $$
    insert into dead_letter (group_name, topic, partition, message_offset, epoch, message_time,
        key, value, header_keys, header_values, error)
    values (in_group, in_topic, in_partition, in_offset, in_epoch, in_time,
        in_key, in_value, in_header_keys, in_header_values, in_error)
$$;

revoke all on "epochfence".dead_letter from public;
revoke all on function "epochfence".behind, "epochfence".follow, "epochfence".dead_letter from public;

insert into "epochfence".migration (version, name) values (2, 'dead_letter');

-- 0003_decision.sql
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
create index decision_hangs on "epochfence".decision (group_name, topic, partition, id)
    where kind in ('hang', 'on-failure-hang', 'rewind', 'skip', 'resume', 'rebase');
create index decision_acts on "epochfence".decision (id) where kind in ('rewind', 'skip', 'pause', 'resume', 'evict', 'rebase');

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
-- that swap claims, and people, have done, and name nobody as operators are named.
create function "epochfence".record_decisions(kinds text[], groups text[], topics text[], partitions integer[], epochs bigint[], claims uuid[],
    owners text[], froms bigint[], tos bigint[], reasons text[], trace_ids text[])
returns void
language plpgsql security definer set search_path = "epochfence", pg_temp
as $$
begin
    for i in 1 .. cardinality(kinds) loop
        if kinds[i] not in ('stale', 'halt', 'recovery', 'loss', 'in-doubt', 'hang', 'on-failure-hang') then
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
                    and a.kind in ('rewind', 'skip', 'resume', 'rebase')
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

-- 0004_operate.sql
-- What people see and do. Each act compares what was seen with what is there, goes
-- through a claim where it concerns a fence, and writes its entry in the decision
-- log, in one transaction.

-- act does something to a fence. Epochs go on by one, and the owner is the person; what
-- is null stays as it is. See Operated in epoch/act.go, which it agrees with.
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
    if trim(in_operator) = '' or trim(in_reason) = '' or kind not in ('rewind', 'skip', 'pause', 'resume', 'evict', 'rebase')
        or (kind in ('rewind', 'skip') and set_offset is null) or (kind in ('pause', 'resume', 'evict') and set_offset is not null)
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
    if kind = 'rebase' and coalesce(log, f.log_id) <> f.log_id and set_offset is null or kind = 'skip' and set_offset <= f.next_offset then
        raise exception using errcode = 'XF013', message = 'the act makes no sense', detail = row_to_json(f);
    end if;
    update fence t
    set epoch = t.epoch + 1, claim_id = new_claim, owner = 'operator ' || in_operator, claimed_at = clock_timestamp(),
        next_offset = coalesce(set_offset, t.next_offset),
        mark = case when set_offset is null then t.mark else set_mark end,
        applied = case when set_offset is null then t.applied else not beginning end,
        set_under = case when set_offset is null then t.set_under else t.epoch + 1 end,
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
    message_time timestamptz, key bytea, value bytea, header_keys bytea[], header_values bytea[])
language sql stable security definer set search_path = "epochfence", pg_temp
as $$
    select coalesce((select sum(a.id) from (
            select d.id from decision d where d.kind in ('rewind', 'skip', 'pause', 'resume', 'evict', 'rebase') order by d.id desc limit 8) a)::bigint, 0),
        null::bigint, null::bigint, null::text, null::text, null::integer, null::bigint,
        null::timestamptz, null::bytea, null::bytea, null::bytea[], null::bytea[]
    union all
    (with wanted as materialized (
        select l.group_name, l.topic, l.partition, l.id from dead_letter l where l.requested
    ), ours as materialized (
        select w.id, row_number() over (partition by w.group_name, w.topic, w.partition order by w.id) as place
        from wanted w join unnest(groups, topics, partitions) as k (group_name, topic, partition)
            on w.group_name = k.group_name and w.topic = k.topic and w.partition = k.partition
    )
    select 0::bigint, l.id, l.request, l.group_name, l.topic, l.partition, l.message_offset,
        l.message_time, l.key, l.value, l.header_keys, l.header_values
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
returns table (id bigint, group_name text, topic text, partition integer, message_offset bigint, epoch bigint, message_time timestamptz,
    error text, failed_at timestamptz, request bigint, requested boolean, requested_by text, requested_at timestamptz,
    replay_error text, replay_failed_at timestamptz)
language sql stable security definer set search_path = "epochfence", pg_temp
as $$
    select l.id, l.group_name, l.topic, l.partition, l.message_offset, l.epoch, l.message_time,
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
    every_ms   bigint not null,  -- from one sign to the next
    since      timestamptz not null,
    seen_at    timestamptz not null
) with (fillfactor = 50); -- each sign writes a version of the row

-- alive is a sign of life. With it, those go that were not seen for a week, and those that were not
-- seen for three times their wait, in the place of which this one is.
create function "epochfence".alive(in_run text, in_group text, in_name text, in_host text, in_pid bigint, in_version text, in_every_ms bigint)
returns void
language sql security definer set search_path = "epochfence", pg_temp
as $$
    insert into process as p (run, group_name, name, host, pid, version, every_ms, since, seen_at)
    values (in_run, in_group, in_name, in_host, in_pid, in_version, in_every_ms, clock_timestamp(), clock_timestamp())
    on conflict (run) do update set every_ms = excluded.every_ms, seen_at = clock_timestamp();

    delete from process x where x.run in (
        select p.run from process p
        where p.seen_at < clock_timestamp() - interval '7 days'
            or p.group_name = in_group and p.name = in_name and p.run <> in_run
                and p.seen_at < clock_timestamp() - 3 * p.every_ms * interval '1 millisecond'
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
returns table (run text, group_name text, name text, host text, pid bigint, version text, every_ms bigint,
    since timestamptz, seen_at timestamptz, read_at timestamptz)
language sql stable security definer set search_path = "epochfence", pg_temp
as $$
    select p.run, p.group_name, p.name, p.host, p.pid, p.version, p.every_ms, p.since, p.seen_at, clock_timestamp()
    from process p where in_group is null or p.group_name = in_group
$$;

revoke all on "epochfence".process from public;
revoke all on function "epochfence".alive, "epochfence".gone, "epochfence".list_processes from public;
revoke all on function "epochfence".act, "epochfence".list_fences, "epochfence".requests, "epochfence".replayed, "epochfence".replay_failed,
    "epochfence".list_dead_letters, "epochfence".show_dead_letter, "epochfence".act_on_dead_letter from public;

insert into "epochfence".migration (version, name) values (4, 'operate');

-- grant
grant usage on schema "epochfence" to "App";
grant execute on function
    "epochfence".schema_version,
    "epochfence".read_fence,
    "epochfence".read_fences,
    "epochfence".server,
    "epochfence".seed,
    "epochfence".claim,
    "epochfence".look_early,
    "epochfence".advance,
    "epochfence".advance_one,
    "epochfence".hold,
    "epochfence".dead_letter,
    "epochfence".record_decisions,
    "epochfence".hangs,
    "epochfence".alive,
    "epochfence".gone,
    "epochfence".requests,
    "epochfence".replayed,
    "epochfence".replay_failed,
    "epochfence".identity_behind
to "App";
