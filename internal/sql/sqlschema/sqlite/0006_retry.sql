-- When a dead letter in the state 'deferred' is due, and NULL for others.
ALTER TABLE {{prefix}}ledger ADD COLUMN due_at TEXT;

CREATE INDEX {{prefix}}ledger_due ON {{prefix}}ledger (due_at, group_name, topic, number) WHERE due_at IS NOT NULL;
