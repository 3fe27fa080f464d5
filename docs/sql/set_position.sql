update epochfence.fence set next_offset = 4711
where (group_name, topic, partition) = ('shipping', 'orders', 3);
