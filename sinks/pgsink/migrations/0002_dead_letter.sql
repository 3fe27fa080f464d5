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
    message_seconds bigint,          -- since 1970, with message_nanos; null if the message has no time
    message_nanos  integer,
    message_time   timestamptz generated always as (case -- for people, and null in years that PostgreSQL does not have
        when message_seconds between -210866803200 and 9224318015998
        then to_timestamp(message_seconds + message_nanos / 1e9::double precision) end) stored,
    key            bytea,
    value          bytea,
    header_keys    bytea[] not null, -- in the message's order, with header_values
    header_values  bytea[] not null, -- a null is a header without a value
    error          text not null,
    failed_at      timestamptz not null default clock_timestamp()
);

create index dead_letter_partition on "epochfence".dead_letter (topic, partition, message_offset);
create trigger dead_letter_follow before insert on "epochfence".dead_letter for each row execute function "epochfence".follow();

create function "epochfence".dead_letter(in_group text, in_topic text, in_partition integer, in_offset bigint,
    in_epoch bigint, in_seconds bigint, in_nanos integer, in_key bytea, in_value bytea,
    in_header_keys bytea[], in_header_values bytea[], without_value bigint[], in_error text)
returns void
language sql security definer set search_path = "epochfence", pg_temp
as $$
    insert into dead_letter (group_name, topic, partition, message_offset, epoch, message_seconds, message_nanos,
        key, value, header_keys, header_values, error)
    values (in_group, in_topic, in_partition, in_offset, in_epoch, in_seconds, in_nanos, in_key, in_value, in_header_keys,
        array(select case when h.n <> all (without_value) then h.value end from unnest(in_header_values) with ordinality h (value, n) order by h.n),
        in_error)
$$;

revoke all on "epochfence".dead_letter from public;
revoke all on function "epochfence".behind, "epochfence".follow, "epochfence".dead_letter from public;

insert into "epochfence".migration (version, name) values (2, 'dead_letter');
