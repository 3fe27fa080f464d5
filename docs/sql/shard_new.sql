-- In the database it goes to: the redirect row makes room for the fence.
delete from epochfence.fence
where (group_name, topic, partition) = ('shipping', 'orders', 3) and log_id like 'epochfence/shardsink: %';
