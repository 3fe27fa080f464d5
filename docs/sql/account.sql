create table account (id text primary key, balance bigint not null);

alter table account add column lock_name text, add column lock_epoch bigint;
