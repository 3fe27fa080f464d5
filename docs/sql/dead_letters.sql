select topic, partition, message_offset, epoch, error, convert_from(value, 'UTF8') as value
from epochfence.dead_letter
order by failed_at;
