-- In the database it was in: the fence becomes a redirect row.
update epochfence.fence
set log_id = 'epochfence/shardsink: not in this database but in shard 2', lease_source = log_id,
    epoch = default, claim_id = default, lease_generation = default, owner = default, mode = default
where (group_name, topic, partition) = ('shipping', 'orders', 3);
