-- Items of package pgstore, in which leases are.

-- One sequence for all items, so that an item that is written again after it was deleted has a
-- higher number than before.
create sequence "epochfence".cas_number;

-- The number is in the key for speed. While any transaction of the database holds a snapshot, no
-- dead version of a row is removed, and who finds it by the item's key alone passes all of them.
create table "epochfence".cas_item (
    key    bytea not null,    -- any bytes
    value  bytea not null,
    note   bytea not null,
    number bigint not null,
    nonce  uuid not null,     -- a restored backup repeats numbers, and no nonce
    primary key (key, number)
);

-- cas_place returns where the item's row is. The highest number comes first, past no dead version.
-- Without sorting, which leaves the planner only the index.
create function "epochfence".cas_place(wanted bytea) returns tid
language plpgsql stable set search_path = "epochfence", pg_temp set enable_sort = off
as $$
begin
    return (select i.ctid from cas_item i where i.key = wanted order by i.number desc limit 1);
end
$$;

-- cas_only_item lets no second row in for an item. Who inserts has locked the item's key, so that
-- the row it sees, or sees none of, is the newest. Only in READ COMMITTED does it see that.
create function "epochfence".cas_only_item() returns trigger
language plpgsql set search_path = "epochfence", pg_temp
as $$
begin
    if current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') then
        raise exception using errcode = 'XF101', message = 'items are created in READ COMMITTED';
    end if;
    if cas_place(new.key) is not null then
        return null;
    end if;
    return new;
end
$$;

create trigger cas_only_item before insert on "epochfence".cas_item
    for each row execute function "epochfence".cas_only_item();

create table "epochfence".cas_source (
    id uuid primary key
);

insert into "epochfence".cas_source values (gen_random_uuid());

revoke all on "epochfence".cas_item, "epochfence".cas_source from public;
revoke all on sequence "epochfence".cas_number from public;
revoke all on function "epochfence".cas_place, "epochfence".cas_only_item from public;

insert into "epochfence".migration (version, name) values (6, 'items');
