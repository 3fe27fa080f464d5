-- As the owner of the tables: the epochs of a partition continue after the highest in the audit log
-- that is not above 2^40. Its owner is refused as stale, and claims again.
update epochfence.fence f
set claim_id = gen_random_uuid(), owner = 'operator ' || session_user, claimed_at = clock_timestamp(),
    epoch = 1 + coalesce((
        select max(l.epoch) from epochfence.fence_ledger l
        where l.kind = 'entry' and l.state = 'claim' and l.epoch <= 1099511627776
            and (l.group_name, l.topic, l.partition) = (f.group_name, f.topic, f.partition)), 0)
where (group_name, topic, partition) = ('billing', 'orders', 3) and epoch > 1099511627776
returning epoch;
