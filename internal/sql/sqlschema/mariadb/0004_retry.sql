-- When a dead letter in the state 'deferred' is due, and NULL for others.
ALTER TABLE {{prefix}}ledger ADD COLUMN IF NOT EXISTS due_at VARCHAR(32), ADD KEY IF NOT EXISTS {{prefix}}ledger_due (due_at, group_name, topic, number);
