-- As the owner of the tables, with the schemas' names: new dead letters get numbers above all old ones,
-- because items keep the numbers of replays.
select setval(pg_get_serial_sequence('epochfence2.dead_letter', 'id'), nextval(pg_get_serial_sequence('epochfence.dead_letter', 'id')));
