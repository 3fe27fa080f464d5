-- In the database it is in: whoever still holds it is refused from now on.
update epochfence.fence set epoch = epoch + 1, claim_id = gen_random_uuid(), owner = 'moving to shard 2'
where (group_name, topic, partition) = ('shipping', 'orders', 3);
