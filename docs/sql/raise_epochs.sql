-- As the owner of the tables, with the schemas' names: the epochs of the new fences go on above all old
-- ones. Whoever has claimed a partition is refused as stale, and claims again.
update epochfence2.fence
set claim_id = gen_random_uuid(), epoch = epoch + old.highest, set_under = epoch + old.highest
from (select max(epoch) as highest from epochfence.fence) old
where epoch > 0; -- the first claim of a partition takes over the position that the group has committed
