-- In all others: the redirect rows point to where it is now.
update epochfence.fence set log_id = 'epochfence/shardsink: not in this database but in shard 2'
where (group_name, topic, partition) = ('shipping', 'orders', 3) and log_id like 'epochfence/shardsink: %';
