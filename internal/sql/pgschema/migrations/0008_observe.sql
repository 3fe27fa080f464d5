-- What consumers without a fence say of their own transactions, before they move over. The
-- command observe reads it. Nothing here refuses anything.

-- Rows are only added, and only deleted by age: no row is updated, and the one unique index is on
-- a number that nobody chooses, so that no transaction waits for another one.
create table "epochfence".observed (
    id           bigint generated always as identity primary key,
    at           timestamptz not null default clock_timestamp(),
    group_name   text collate "C" not null,
    topic        text collate "C" not null,
    partition    bigint not null,
    first_offset bigint not null, -- the messages of one transaction
    last_offset  bigint not null,
    generation   bigint not null, -- of the group, as the process knows it; -1: not known
    process      text not null,
    tx           xid8 not null,
    snapshot     pg_snapshot not null, -- which transactions were not committed yet
    ids          bigint[],        -- hashes of the messages' own ids, as these may be personal; null: no id
    caught       bigint not null  -- messages that a dedupe table had
);

-- prune_observed deletes rows that are older than the setting epochfence.observe_keep, of the oldest
-- ones at most so many. It passes over rows that another transaction deletes.
create function "epochfence".prune_observed(most integer) returns bigint
language plpgsql security definer set search_path = "epochfence", pg_temp set lock_timeout = '100ms'
as $$
declare
    expired timestamptz := clock_timestamp() - coalesce(nullif(current_setting('epochfence.observe_keep', true), ''), '2 days')::interval;
    n bigint;
begin
    if (select at from observed order by id limit 1) >= expired then
        return 0;
    end if;
    delete from observed where id in (
        select o.id from observed o join (select id from observed order by id limit most) oldest using (id)
        where o.at < expired
        for update of o skip locked
    );
    get diagnostics n = row_count;
    return n;
end
$$;

-- observe notes which messages this transaction applies. It returns null, or why it has noted nothing:
-- none of its errors is one of the transaction, except a cancel and statement_timeout, which the caller wants
-- to see. lock_timeout is for a table that is
-- rewritten or migrated; nothing else makes it wait. Numbers are bigint because a server takes an integer for
-- a bigint and not the other way round.
--
-- Each 128th row deletes up to 256 expired ones. Not above READ COMMITTED: there the scan could make
-- transactions of the caller fail each other.
create function "epochfence".observe(in_group text, in_topic text, in_partition bigint, first_offset bigint, last_offset bigint,
    generation bigint, process text, ids text[] default null, caught bigint default null)
returns text
language plpgsql security definer set search_path = "epochfence", pg_temp set lock_timeout = '100ms'
as $$
#variable_conflict use_variable
declare
    n bigint;
begin
    if first_offset > last_offset then
        return format('not noted: the first offset is %s, the last %s', first_offset, last_offset);
    end if;
    insert into observed (group_name, topic, partition, first_offset, last_offset, generation, process, tx, snapshot, ids, caught)
    values (in_group, in_topic, in_partition, first_offset, last_offset, coalesce(generation, -1), process, pg_current_xact_id(), pg_current_snapshot(),
        (select array_agg(hashtextextended(nullif(i, ''), 0) order by place) from unnest(ids) with ordinality u (i, place)), coalesce(caught, 0))
    returning id into n;
    if n % 128 = 0 and current_setting('transaction_isolation') = 'read committed' then
        begin
            perform prune_observed(256);
        exception when others then
            null; -- the row counts
        end;
    end if;
    return null;
exception when others then
    return 'not noted: ' || sqlerrm;
end
$$;

-- observations returns what was noted since a time. A null is any.
create function "epochfence".observations(in_group text, in_topic text, since timestamptz)
returns setof "epochfence".observed
language sql stable security definer set search_path = "epochfence", pg_temp
as $$
    select * from observed
    where (in_group is null or group_name = in_group) and (in_topic is null or topic = in_topic) and (since is null or at >= since)
    order by group_name, topic, partition, id
$$;

revoke all on "epochfence".observed from public;
revoke all on function "epochfence".prune_observed, "epochfence".observe, "epochfence".observations from public;

insert into "epochfence".migration (version, name) values (8, 'observe');
