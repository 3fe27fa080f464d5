create table "epochfence_cas".cas_migration (
    version    integer primary key,
    name       text not null,
    applied_at timestamptz not null default clock_timestamp()
);

-- One sequence for all items, so that an item that is written again after it was deleted has a
-- higher number than before.
create sequence "epochfence_cas".cas_number;

create table "epochfence_cas".cas_item (
    key    bytea primary key, -- any bytes
    value  bytea not null,
    note   bytea not null,
    number bigint not null,
    nonce  uuid not null      -- a restored backup repeats numbers, and no nonce
);

create table "epochfence_cas".cas_source (
    id uuid primary key
);

insert into "epochfence_cas".cas_source values (gen_random_uuid());
insert into "epochfence_cas".cas_migration (version, name) values (1, 'items');
