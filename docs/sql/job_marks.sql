-- As the owner of the tables, with the schemas' names: a rewind leaves the rest of a job's run out, and a
-- run that was requested. This restores both. Whoever has claimed the job claims again.
update epochfence2.fence
set next_offset = old.next_offset, mark = old.mark, claim_id = gen_random_uuid()
from epochfence.fence old
where (fence.group_name, fence.topic, fence.partition) = (old.group_name, old.topic, old.partition)
    and old.log_id = 'epochfence/schedule' and old.mark <> -1;
