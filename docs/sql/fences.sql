select topic, partition, epoch, owner, next_offset, claimed_at, advanced_at
from epochfence.fence
where group_name = 'shipping'
order by topic, partition;
