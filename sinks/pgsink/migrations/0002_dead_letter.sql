-- Messages that a handler could not apply, each stored in the transaction that
-- moved past it.

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
revoke all on function "epochfence".dead_letter from public;

insert into "epochfence".migration (version, name) values (2, 'dead_letter');
