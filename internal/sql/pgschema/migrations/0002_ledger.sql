-- What operators see beside the fences: the audit log, dead letters, and signs of life of processes. Package
-- operate decides what a row means, and these functions who may write it.

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

create table "epochfence".fence_ledger (
    id              bigint generated always as identity primary key,
    kind            text not null,             -- 'entry' of the audit log, 'dead-letter', 'process'
    name            text not null,             -- of an entry the claim; of a process its run
    group_name      text collate "C" not null,
    topic           text collate "C" not null,
    partition       integer not null,
    epoch           bigint not null,
    message_offset  bigint not null,           -- of an entry the position before; -1: not known, or there was no claim before
    state           text not null,             -- of an entry what was decided; of a dead letter 'requested', 'withdrawn', 'failed': a replay
    cause           text not null,             -- the reason, the error, the problems
    operator        text not null,             -- the person; '': nobody; of a process its name
    role            text not null default session_user,               -- who was connected
    written_at      timestamptz not null default clock_timestamp(), -- for people, as the next
    changed_at      timestamptz not null default clock_timestamp(),
    revision        bigint not null default 0, -- counts the changes of a dead letter, and the signs of a process; of an entry its number in the audit log
    body            jsonb not null,            -- what else there is
    message_key     bytea,                     -- null: the message had none
    message_value   bytea,
    message_headers text                       -- JSON: [{"key":"…","value":"base64"}], "key_bytes" in base64 for a key that is not UTF-8
);

-- The numbers of entries, for what is pruned: ids also number dead letters.
create sequence "epochfence".fence_ledger_entry;

create index fence_ledger_kind on "epochfence".fence_ledger (kind, id);
create index fence_ledger_partition on "epochfence".fence_ledger (kind, group_name, topic, partition, id);
create unique index fence_ledger_process on "epochfence".fence_ledger (name) where kind = 'process';
create index fence_ledger_process_of on "epochfence".fence_ledger (operator, group_name) where kind = 'process'; -- old versions of others are not passed
create index fence_ledger_unattended on "epochfence".fence_ledger (id) where kind = 'entry' and operator = '';
create index fence_ledger_acts on "epochfence".fence_ledger (id) where kind = 'entry' and state in ('rewind', 'skip', 'pause', 'resume', 'evict', 'rebase', 'run');
create index fence_ledger_halts on "epochfence".fence_ledger (id) where kind = 'entry' and state in ('halt', 'recovery');
create index fence_ledger_hangs on "epochfence".fence_ledger (group_name, topic, partition, id)
    where kind = 'entry' and state in ('hang', 'on-failure-hang', 'rewind', 'skip', 'resume', 'rebase', 'run');
create index fence_ledger_replay on "epochfence".fence_ledger (group_name, topic, partition, message_offset) where kind = 'entry' and state = 'replay-request';
create index fence_ledger_requested on "epochfence".fence_ledger (group_name, topic, partition, id) where kind = 'dead-letter' and state = 'requested';

create trigger fence_ledger_follow before insert on "epochfence".fence_ledger for each row execute function "epochfence".follow();

-- identity_behind says what to do about a table whose identity is behind its rows. Null is nothing. It reads the
-- index where nothing should be, however long the table is.
create function "epochfence".identity_behind() returns text
language plpgsql stable security definer set search_path = "epochfence", pg_temp
as $$
declare
    numbered text;
    later bigint;
begin
    foreach numbered in array array['fence_ledger', 'outbox_entry'] loop
        execute format('select t.id from %I t where t.id > $1 order by t.id limit 1', numbered)
            into later using coalesce(pg_sequence_last_value(pg_get_serial_sequence(numbered, 'id')::regclass), 0);
        if later is not null then
            return behind(current_schema(), numbered);
        end if;
    end loop;
    return null;
end
$$;

-- put makes one change: it adds a row whose id is 0, and changes or removes the one with this id and revision.
-- A process has no id: it is the row of its name.
create function "epochfence".put(in_kind text, in_id bigint, in_revision bigint, in_remove boolean, in_name text,
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
        return;
    end if;
    if in_kind = 'entry' then
        in_name := in_name::uuid;
        number := nextval('fence_ledger_entry');
    end if;
    insert into fence_ledger (kind, name, group_name, topic, partition, epoch, message_offset, state, cause, operator, revision, body, message_key, message_value, message_headers)
    values (in_kind, in_name, in_group, in_topic, in_partition, in_epoch, in_offset, in_state, in_cause, in_operator, number, in_body, in_key, in_value, in_headers);
    if in_kind = 'entry' and number % 16 = 0 then
        perform prune(number);
    end if;
end
$$;

-- prune takes entries away: those that are 90 days old, and of those that no
-- person is in, all but the newest 200,000 or so. It looks at the oldest only, so that it
-- costs the same however long the log is, and leaves those that another transaction is
-- at, so that it waits for nobody.
create function "epochfence".prune(latest bigint)
returns void
language plpgsql set search_path = "epochfence", pg_temp
as $$
begin
    if (select l.revision from fence_ledger l where l.kind = 'entry' and l.operator = '' order by l.id limit 1) <= latest - 200000 then
        delete from fence_ledger x where x.id in (
            select l.id from fence_ledger l
            where l.id in (select o.id from fence_ledger o where o.kind = 'entry' and o.operator = '' order by o.id limit 64) and l.revision <= latest - 200000
            for update skip locked);
    end if;
    if (select l.written_at < clock_timestamp() - interval '90 days' from fence_ledger l where l.kind = 'entry' order by l.id limit 1) then
        delete from fence_ledger x where x.id in (
            select l.id from fence_ledger l
            where l.id in (select o.id from fence_ledger o where o.kind = 'entry' order by o.id limit 64) and l.written_at < clock_timestamp() - interval '90 days'
            for update skip locked);
    end if;
end
$$;

-- decide adds an entry to the audit log.
create function "epochfence".decide(in_state text, f "epochfence".fence, in_from bigint, in_reason text, in_operator text, in_trace text)
returns void
language sql set search_path = "epochfence", pg_temp
as $$
    select put('entry', 0, 0, false, f.claim_id::text, f.group_name, f.topic, f.partition, f.epoch, in_from, in_state, in_reason, in_operator,
        jsonb_build_object('owner', f.owner, 'to', f.next_offset, 'trace', in_trace), null, null, null)
$$;

-- write_row is put for consumers. They have no say in what the functions that swap claims, and people, have
-- done, and act in nobody's name: that a replay was carried out is said in the name of who has requested it.
create function "epochfence".write_row(in_kind text, in_id bigint, in_revision bigint, in_remove boolean, in_name text,
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
        in_state := '';
        in_operator := '';
    when in_kind = 'dead-letter' then
        select * into was from fence_ledger l where l.kind = in_kind and l.id = in_id and l.revision = in_revision and l.state = 'requested' for update;
        if not found then
            raise exception using errcode = 'XF015', message = 'the row has changed';
        end if;
        in_state := 'failed';
        in_operator := was.operator;
    else
        raise exception using errcode = 'XF013', message = 'a consumer writes no such row';
    end case;
    perform put(in_kind, in_id, in_revision, in_remove, in_name, in_group, in_topic, in_partition, in_epoch, in_offset, in_state, in_cause, in_operator,
        of, in_key, in_value, in_headers);
end
$$;

-- rows returns the rows of a kind that fit. What is null is not asked for. The entries of the outbox are rows, too
-- (0005_outbox.sql). The content of messages and requests is in another function, for those who may see it.
create function "epochfence".rows(in_kind text, in_id bigint, in_name text, in_operator text, in_group text, in_topic text, in_partition integer,
    states text[], after_id bigint, before_id bigint, until timestamptz, newest boolean, most bigint)
returns table (kind text, id bigint, name text, group_name text, topic text, partition integer, epoch bigint, message_offset bigint,
    state text, cause text, operator text, role text, written_at timestamptz, changed_at timestamptz, read_at timestamptz, revision bigint, body text)
language plpgsql stable security definer set search_path = "epochfence", pg_temp
as $$
begin
    return query execute 'select l.kind, l.id, l.name, l.group_name::text, l.topic::text, l.partition, l.epoch, l.message_offset, l.state, l.cause, l.operator, l.role,
        l.written_at, l.changed_at, clock_timestamp(), l.revision, l.body::text from ' || case when in_kind = 'outbox' then 'outbox_row' else 'fence_ledger' end || ' l where l.kind = $1'
        || case when in_id is not null then ' and l.id = $2' else '' end
        || case when in_name is not null then ' and l.name = $3' else '' end
        || case when in_operator is not null then ' and l.operator = $4' else '' end
        || case when in_group is not null then ' and l.group_name = $5' else '' end
        || case when in_topic is not null then ' and l.topic = $6' else '' end
        || case when in_partition is not null then ' and l.partition = $7' else '' end
        || case when states is not null then ' and l.state = any ($8)' else '' end
        || case when after_id is not null then ' and l.id > $9' else '' end
        || case when before_id is not null then ' and l.id < $10' else '' end
        || case when until is not null then ' and l.written_at <= $11' else '' end
        || ' order by l.id ' || case when newest then 'desc' else '' end || ' limit $12'
    using in_kind, in_id, in_name, in_operator, in_group, in_topic, in_partition, states, after_id, before_id, until, most;
end
$$;

-- requests returns what is asked of the owners of some partitions: a row whose id is null
-- with a number that changes with each act, also with one whose entry is committed after
-- that of a later one, and the dead letters to replay. Where nothing is requested it reads an index
-- that has nothing in it.
create function "epochfence".requests(groups text[], topics text[], partitions integer[], each bigint, most bigint)
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
        select l.group_name, l.topic, l.partition, l.id from fence_ledger l where l.kind = 'dead-letter' and l.state = 'requested'
    ), ours as materialized (
        select w.id, row_number() over (partition by w.group_name, w.topic, w.partition order by w.id) as place
        from wanted w join unnest(groups, topics, partitions) as k (group_name, topic, partition)
            on w.group_name = k.group_name and w.topic = k.topic and w.partition = k.partition
    )
    select 0::bigint, l.id, l.kind, l.name, l.group_name, l.topic, l.partition, l.epoch, l.message_offset,
        l.state, l.cause, l.operator, l.role, l.written_at, l.changed_at, clock_timestamp(), l.revision, l.body::text,
        l.message_key, l.message_value, l.message_headers
    from (select o.id from ours o where o.place <= each order by o.place, o.id limit most) o join fence_ledger l on l.id = o.id
    order by l.id)
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
    perform decide('claim', f, case when seen_epoch = 0 then -1 else f.next_offset end, '', '', trace_id);
    return next f;
end
$$;

revoke all on "epochfence".fence_ledger from public;
revoke all on sequence "epochfence".fence_ledger_entry from public;
revoke all on function "epochfence".behind, "epochfence".follow, "epochfence".identity_behind, "epochfence".put, "epochfence".prune, "epochfence".decide,
    "epochfence".write_row, "epochfence".rows, "epochfence".requests, "epochfence".claim from public;

insert into "epochfence".migration (version, name) values (2, 'ledger');
