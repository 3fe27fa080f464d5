-- As the owner of the schema, in each database of the sink, when no process of the group is left.
begin;
delete from epochfence.fence_ledger where group_name = 'billing' and kind in ('dead-letter', 'process');
delete from epochfence.fence_deferred where group_name = 'billing';
delete from epochfence.outbox_entry where group_name = 'billing';
delete from epochfence.fence where group_name = 'billing';
commit;
