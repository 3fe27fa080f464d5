create table "epochfence_outbox".outbox_migration (
    version    integer primary key,
    name       text not null,
    applied_at timestamptz not null default clock_timestamp()
);

create table "epochfence_outbox".outbox_entry (
    added_by        bigint not null default pg_current_xact_id()::text::bigint, -- the transaction
    id              bigint generated always as identity primary key,
    group_name      text collate "C" not null,
    topic           text collate "C" not null,
    partition       integer not null,
    order_key       text collate "C" not null, -- '': no order
    scope           text collate "C" not null,
    idempotency_key text collate "C" not null,
    method          text not null,
    url             text not null,
    header          text not null,             -- JSON: {"Name":["value"]}
    body            bytea not null,
    added_at        timestamptz not null default clock_timestamp() -- for people
);

create index outbox_entry_partition on "epochfence_outbox".outbox_entry (group_name, topic, partition, id);
create index outbox_entry_added_by on "epochfence_outbox".outbox_entry (group_name, topic, partition, added_by, id);
create index outbox_entry_key on "epochfence_outbox".outbox_entry (group_name, topic, partition, order_key, id);

insert into "epochfence_outbox".outbox_migration (version, name) values (1, 'outbox_entry');
