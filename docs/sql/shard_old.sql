-- In the database it was in.
delete from epochfence.fence
where (group_name, topic, partition) = ('shipping', 'orders', 3);
