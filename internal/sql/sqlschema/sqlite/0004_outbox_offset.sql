-- Of each entry of the outbox, the offset of the message that added it. -1: an earlier version added it.
ALTER TABLE {{prefix}}outbox_entry ADD COLUMN message_offset INTEGER NOT NULL DEFAULT -1;
