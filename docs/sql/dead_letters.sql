select topic, partition, message_offset, epoch, cause, convert_from(message_value, 'UTF8') as value
from epochfence.fence_ledger where kind = 'dead-letter' and state <> 'deferred'
order by written_at;
