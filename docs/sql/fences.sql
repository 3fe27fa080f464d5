select group_name, topic, partition, epoch, owner, next_offset, claimed_at, advanced_at
from epochfence.fence
order by group_name, topic, partition;
