-- As the owner of the schema, in each database of the sink, when no process of the group is left.
begin;
delete from epochfence.dead_letter where group_name = 'billing';
delete from epochfence.process where group_name = 'billing';
-- The next two lines only if there is an outbox:
delete from epochfence_outbox.outbox_entry where group_name = 'billing';
delete from epochfence_outbox.outbox_act where group_name = 'billing';
delete from epochfence.fence where group_name = 'billing';
commit;
