-- In the database it goes to: delete the redirect row in the place of the fence.
delete from epochfence.fence
where (group_name, topic, partition) = ('shipping', 'orders', 3) and log_id like 'epochfence/shardsink: %';
