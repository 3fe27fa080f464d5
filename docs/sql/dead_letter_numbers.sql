-- As the owner of the tables, with the schemas' names: new dead letters get numbers above all old ones,
-- because items keep the numbers of replays.
select setval(pg_get_serial_sequence('epochfence2.fence_ledger', 'id'), nextval(pg_get_serial_sequence('epochfence.fence_ledger', 'id')));
