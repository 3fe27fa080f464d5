-- Writes to protected tables from outside a fenced transaction: pgsink.Protect creates triggers on
-- the users' tables, and these functions count such transactions, or refuse them.
--
-- A transaction is fenced once advance, advance_one or hold has passed in it. They set
-- epochfence.fenced to the id of the transaction, as its last statement. So the trigger is a
-- deferred one. What a savepoint has set goes with the savepoint, as its writes do.

-- Transactions from outside, by table and role. Each adds a row of its own, so that writers neither
-- wait for each other nor deadlock. Now and then one of them merges rows.
create table "epochfence".outside_write (
    id           uuid primary key default gen_random_uuid(),
    table_schema text collate "C" not null,
    table_name   text collate "C" not null,
    role         text collate "C" not null,
    transactions bigint not null,
    first_at     timestamptz not null,
    last_at      timestamptz not null,
    application  text not null -- application_name of the last one
);

-- A row queues an event for the end of the transaction, and is deleted at once.
create unlogged table "epochfence".postponed (
    written oid not null, -- the protected table
    refuse  boolean not null,
    times   integer not null
);

-- postpone decides at the end of the transaction, also where SET CONSTRAINTS ALL IMMEDIATE has
-- made all triggers fire at once. It finds its row by ctid: under SERIALIZABLE a scan of the table
-- would make writers fail each other.
create function "epochfence".postpone(in_written oid, in_refuse boolean, in_times integer)
returns void
language plpgsql set search_path = "epochfence", pg_temp set enable_seqscan = off
as $$
declare
    at tid;
begin
    set constraints postponed_decide deferred;
    insert into postponed (written, refuse, times) values (in_written, in_refuse, in_times) returning ctid into at;
    delete from postponed p where p.ctid = at;
end
$$;

-- first_write is the condition of the trigger, for each row: it queues one event in a transaction,
-- whatever the number of rows. A savepoint that is rolled back takes the event and the setting away.
-- It runs as the writer, under any search_path. An expression of built-in functions would cost
-- less for each row and more for each statement, which prepares it anew.
create function "epochfence".first_write(setting text) returns boolean
language plpgsql
as $$
begin
    if pg_catalog.current_setting(setting, true) operator(pg_catalog.=) '1' then
        return false;
    end if;
    return pg_catalog.set_config(setting, '1', true) is not null;
end
$$;

-- outside is the trigger on a protected table, and on its partitions. Its arguments are count or
-- refuse, an id of the protection, and the roles that may write.
create function "epochfence".outside() returns trigger
language plpgsql security definer set search_path = "epochfence", pg_temp
as $$
declare
    root oid;
begin
    if current_setting('epochfence.fenced', true) = pg_current_xact_id()::text or session_user = any (tg_argv[2:]) then
        return null;
    end if;
    -- The trigger of a partition is a copy with the same arguments.
    select t.tgrelid into root
    from pg_trigger own join pg_trigger t on t.tgfoid = own.tgfoid and t.tgargs = own.tgargs and t.tgparentid = 0 and t.tgtype & 1 = 1
    where own.tgrelid = tg_relid and own.tgname = tg_name and t.tgrelid in (select a.relid from pg_partition_ancestors(tg_relid) a);
    perform postpone(coalesce(root, tg_relid), tg_argv[0] = 'refuse', 0);
    return null;
end
$$;

-- decide_outside decides. A transaction that a sink has begun, and that is not fenced yet, gets more time: its
-- handler may have sent SET CONSTRAINTS ALL IMMEDIATE once more. At the end of the transaction
-- that time is over at once.
create function "epochfence".decide_outside() returns trigger
language plpgsql security definer set search_path = "epochfence", pg_temp
as $$
declare
    now_xid text := pg_current_xact_id()::text;
    in_schema text;
    in_table text;
begin
    if current_setting('epochfence.fenced', true) = now_xid then
        return null;
    end if;
    if new.times < 10 and current_setting('epochfence.transaction', true) = now_xid then
        perform postpone(new.written, new.refuse, new.times + 1);
        return null;
    end if;
    select n.nspname, c.relname into in_schema, in_table
    from pg_class c join pg_namespace n on n.oid = c.relnamespace where c.oid = new.written;
    if not found then -- the transaction has dropped the table
        return null;
    end if;
    if new.refuse then
        raise exception using errcode = 'XF021', schema = in_schema, table = in_table,
            message = format('table %I.%I takes writes only in a fenced transaction, and role %I has written outside of one', in_schema, in_table, session_user),
            hint = format('Write through a sink of epochfence. To let this role write: epochfence protect %I.%I --refuse --except %I', in_schema, in_table, session_user);
    end if;
    perform count_outside(in_schema, in_table);
    return null;
end
$$;

create function "epochfence".count_outside(in_schema text, in_table text)
returns void
language plpgsql set search_path = "epochfence", pg_temp
as $$
declare
    added uuid;
begin
    insert into outside_write (table_schema, table_name, role, transactions, first_at, last_at, application)
    values (in_schema, in_table, session_user, 1, clock_timestamp(), clock_timestamp(), current_setting('application_name'))
    returning id into added;
    -- One in 16 merges. It skips rows that another transaction is at. A stricter transaction could
    -- fail on a row that was merged since its snapshot.
    if left(added::text, 1) = '0' and current_setting('transaction_isolation') = 'read committed' then
        with old as (
            delete from outside_write w where w.id in (
                select o.id from outside_write o
                where o.table_schema = in_schema and o.table_name = in_table and o.role = session_user
                limit 1024 for update skip locked)
            returning w.*
        )
        insert into outside_write (table_schema, table_name, role, transactions, first_at, last_at, application)
        select in_schema, in_table, session_user, sum(o.transactions), min(o.first_at), max(o.last_at),
            (array_agg(o.application order by o.last_at desc))[1]
        from old o having count(*) > 0;
    end if;
end
$$;

-- outside_writes sums the rows up.
create function "epochfence".outside_writes()
returns table (table_schema text, table_name text, role text, transactions bigint, first_at timestamptz, last_at timestamptz,
    application text, read_at timestamptz)
language sql stable security definer set search_path = "epochfence", pg_temp
as $$
    select w.table_schema, w.table_name, w.role, sum(w.transactions)::bigint, min(w.first_at), max(w.last_at),
        (array_agg(w.application order by w.last_at desc))[1], clock_timestamp()
    from outside_write w group by 1, 2, 3 order by 1, 2, 3
$$;

-- protections lists the tables with the trigger.
create function "epochfence".protections()
returns table (relation oid, table_schema text, table_name text, mode text, id text, roles text[], enabled boolean)
language sql stable security definer set search_path = "epochfence", pg_temp
as $$
    select c.oid, n.nspname::text, c.relname::text, a.args[1], a.args[2], a.args[3:], t.tgenabled in ('O', 'A')
    from pg_trigger t join pg_class c on c.oid = t.tgrelid join pg_namespace n on n.oid = c.relnamespace, lateral (
        -- Each argument ends with a zero byte.
        select array_agg(convert_from(decode(replace(s.hex, ' ', ''), 'hex'), 'UTF8') order by s.place) as args
        from unnest(string_to_array(regexp_replace(encode(t.tgargs, 'hex'), '(..)', '\1 ', 'g'), '00 ')) with ordinality as s (hex, place)
        where s.place <= t.tgnargs
    ) a
    where t.tgfoid = (select p.oid from pg_proc p join pg_namespace o on o.oid = p.pronamespace where o.nspname = current_schema() and p.proname = 'outside')
        and t.tgparentid = 0 and t.tgtype & 1 = 1
    order by n.nspname, c.relname
$$;

-- forget_outside removes the counts of a table.
create function "epochfence".forget_outside(in_schema text, in_table text)
returns void
language sql security definer set search_path = "epochfence", pg_temp
as $$
    delete from outside_write w where w.table_schema = in_schema and w.table_name = in_table
$$;

create constraint trigger postponed_decide after insert on "epochfence".postponed deferrable initially deferred
    for each row execute function "epochfence".decide_outside();

revoke all on "epochfence".outside_write, "epochfence".postponed from public;
revoke all on function "epochfence".postpone, "epochfence".outside, "epochfence".decide_outside, "epochfence".count_outside,
    "epochfence".outside_writes, "epochfence".protections, "epochfence".forget_outside from public;

grant execute on function "epochfence".first_write to public;

insert into "epochfence".migration (version, name) values (4, 'outside');
