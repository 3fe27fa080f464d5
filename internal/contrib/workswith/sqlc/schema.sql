create table stock (item int primary key, left_over int not null);
create table deduction (n bigint generated always as identity, item int not null, quantity int not null, epoch bigint not null);
