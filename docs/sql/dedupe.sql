create table seen (id text primary key, at timestamptz not null default now());
create table shipment (id bigint generated always as identity primary key, order_id text not null);
