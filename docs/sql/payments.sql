create table payment (id text primary key, account text not null, amount text not null, receipt text);
create table refused (payment text not null, status integer not null, reason text not null);
create table reservation (partition integer not null, item text not null, expires_at timestamptz not null);
create table charge (id bigint generated always as identity primary key, account text not null, amount text not null);
create table device (id text primary key, epoch bigint not null, setting text not null);
