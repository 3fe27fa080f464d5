-- As the owner of the tables: the epochs of a partition continue after the highest in the audit log
-- that is not above 2^40. Its owner is refused as stale, and claims again.
update epochfence.fence f
set claim_id = gen_random_uuid(), owner = 'operator ' || session_user, claimed_at = clock_timestamp(),
    epoch = 1 + coalesce((
        select max(d.epoch) from epochfence.decision d
        where (d.group_name, d.topic, d.partition) = (f.group_name, f.topic, f.partition)
            and d.kind = 'claim' and d.epoch <= 1099511627776), 0)
where (group_name, topic, partition) = ('billing', 'orders', 3) and epoch > 1099511627776
returning epoch;
