create table stock (item text primary key, present integer not null);
insert into stock values ('chair', 2);
