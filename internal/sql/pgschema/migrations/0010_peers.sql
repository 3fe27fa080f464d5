-- What the processes of a group see of each other, so that they notice within a second that one has died. No claim
-- depends on it. The tables are not logged: after a crash of the server they are empty, and everybody signs again.

-- One row per process, which seldom changes.
create unlogged table "epochfence".peer (
    group_name   text collate "C",
    run          text collate "C",
    name         text not null,
    host         text not null,
    member       text not null,
    patience     bigint not null,          -- in microseconds; zero: nobody suspects it
    session_key  bigint,                   -- of the advisory lock that its connection holds; null: it holds none
    suspected    text not null default '', -- the member id under which it was suspected last
    suspected_by text not null default '',
    suspected_at timestamptz,
    primary key (group_name, run)
);

-- The last sign of each process. The time is in the key for speed. While any transaction of the
-- database holds a snapshot, no dead version of a row is removed, and who finds the last sign by the
-- process alone passes all of them.
create unlogged table "epochfence".peer_sign (
    group_name text collate "C",
    run        text collate "C",
    signed_at  timestamptz,
    primary key (group_name, run, signed_at)
);

create unlogged table "epochfence".peer_suspicion (
    group_name text collate "C" primary key,
    last_at    timestamptz not null
);

-- last_sign returns where the row of the last sign is. Without sorting and sequential scans, which
-- leaves the planner only the index.
create function "epochfence".last_sign(in_group text, in_run text, out place tid, out signed_at timestamptz)
language plpgsql stable set search_path = "epochfence", pg_temp set enable_sort = off set enable_seqscan = off
as $$
begin
    select s.ctid, s.signed_at into place, signed_at from peer_sign s
    where s.group_name = in_group and s.run = in_run order by s.signed_at desc limit 1;
end
$$;

-- look_at_peers gives a sign of a process and returns what it sees of its group: a row whose run is empty with
-- the numbers of members, then the peers. They are the next three in the order of run ids, in a ring, that
-- can be suspected, those suspected within a minute, itself included, and those of the same host that are gone. Only of
-- these it tries whether the connection still holds its lock, so that the work of a look hardly grows with the group.
-- One that is silent for a minute more than its patience is not counted any more. Otherwise the few that outlive a
-- majority would suspect nobody until its rows are deleted.
create function "epochfence".look_at_peers(in_group text, in_run text, in_name text, in_host text, in_member text, in_patience bigint, in_key bigint)
returns table (run text, name text, host text, member text, patience bigint, silent bigint, signed bigint, gone boolean,
    suspected text, suspected_by text, members bigint, silents bigint)
language plpgsql security definer set search_path = "epochfence", pg_temp set enable_sort = off set enable_seqscan = off set jit = off set lock_timeout = '1s'
as $$
#variable_conflict use_column
declare
    moment timestamptz := clock_timestamp();
    own record;
    changed boolean := false;
begin
    select p.name, p.host, p.member, p.patience, p.session_key into own from peer p where p.group_name = in_group and p.run = in_run;
    if not found then
        insert into peer values (in_group, in_run, in_name, in_host, in_member, in_patience, in_key);
    elsif own is distinct from row(in_name, in_host, in_member, in_patience, in_key) then
        changed := true;
        update peer p set name = in_name, host = in_host, member = in_member, patience = in_patience, session_key = in_key
        where p.group_name = in_group and p.run = in_run;
    end if;
    select * into own from last_sign(in_group, in_run);
    if own.place is null then
        insert into peer_sign values (in_group, in_run, moment);
    elsif changed or own.signed_at not between moment - interval '500 ms' and moment then
        update peer_sign s set signed_at = moment where s.ctid = own.place and s.signed_at <> moment;
        if random() < 0.01 then
            with old as (
                delete from peer p using (
                    select o.group_name, o.run from peer o where (last_sign(o.group_name, o.run)).signed_at < moment - interval '10 minutes'
                    for update skip locked) o
                where p.group_name = o.group_name and p.run = o.run
                returning p.group_name, p.run)
            delete from peer_sign s using old where s.group_name = old.group_name and s.run = old.run;
        end if;
    end if;
    return query
    with every as materialized (
        select p.*, greatest(extract(epoch from moment - s.signed_at) * 1000000, 0)::bigint as silent,
            (extract(epoch from s.signed_at) * 1000000)::bigint as signed,
            p.member <> '' and p.suspected <> p.member
                and s.signed_at > moment - interval '1 minute' - p.patience * interval '1 microsecond' as counts
        from peer p cross join lateral (
            select l.signed_at from peer_sign l where l.group_name = p.group_name and l.run = p.run order by l.signed_at desc limit 1) s
        where p.group_name = in_group and s.signed_at > moment - interval '10 minutes'
    ), ring as materialized (
        select e.run from every e where e.counts and e.patience > 0 and e.run <> in_run order by e.run < in_run, e.run limit 3
    ), seen as materialized (
        select e.*, e.run <> in_run and e.session_key is not null and pg_try_advisory_xact_lock_shared(e.session_key) as gone,
            r.run is not null or coalesce(e.suspected_at > moment - interval '1 minute', false) as matters
        from every e left join ring r on r.run = e.run
        where r.run is not null or e.suspected_at > moment - interval '1 minute' or e.host = in_host and e.run <> in_run
    )
    select '', '', '', '', 0::bigint, 0::bigint, 0::bigint, false, '', '', count(*) filter (where e.counts),
        count(*) filter (where e.counts and e.run <> in_run and (e.patience > 0 and e.silent > e.patience or s.gone))
    from every e left join seen s on s.run = e.run
    union all
    select s.run, s.name, s.host, s.member, s.patience, s.silent, s.signed, s.gone, s.suspected, s.suspected_by, 0, 0
    from seen s where s.matters or s.gone;
end
$$;

-- suspect_peer records a suspicion and returns true, unless the process is not a member under that id any more, has
-- signed since, or the group's last suspicion is less than a second old.
create function "epochfence".suspect_peer(in_group text, in_run text, in_member text, in_signed bigint, in_by text)
returns boolean
language plpgsql security definer set search_path = "epochfence", pg_temp set lock_timeout = '1s'
as $$
begin
    if not exists (select from peer p where p.group_name = in_group and p.run = in_run and p.member = in_member
        and extract(epoch from (last_sign(in_group, in_run)).signed_at) * 1000000 = in_signed)
    then
        return false;
    end if;
    insert into peer_suspicion as s (group_name, last_at) values (in_group, clock_timestamp())
    on conflict (group_name) do update set last_at = clock_timestamp()
    where s.last_at not between clock_timestamp() - interval '1 s' and clock_timestamp(); -- the lock may have taken time
    if not found then
        return false;
    end if;
    update peer p set suspected = in_member, suspected_by = in_by, suspected_at = clock_timestamp()
    where p.group_name = in_group and p.run = in_run;
    return true;
end
$$;

create function "epochfence".leave_peers(in_group text, in_run text) returns void
language plpgsql security definer set search_path = "epochfence", pg_temp set lock_timeout = '1s'
as $$
begin
    delete from peer_sign s where s.group_name = in_group and s.run = in_run;
    delete from peer p where p.group_name = in_group and p.run = in_run;
end
$$;

revoke all on "epochfence".peer, "epochfence".peer_sign, "epochfence".peer_suspicion from public;
revoke all on function "epochfence".last_sign, "epochfence".look_at_peers, "epochfence".suspect_peer, "epochfence".leave_peers from public;

insert into "epochfence".migration (version, name) values (10, 'peers');
