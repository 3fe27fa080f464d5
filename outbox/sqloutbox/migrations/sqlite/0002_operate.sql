-- What people see and do with entries.
ALTER TABLE {{prefix}}entry ADD COLUMN retry_requested INTEGER NOT NULL DEFAULT 0;

CREATE INDEX {{prefix}}entry_retry ON {{prefix}}entry (group_name, topic, number, id) WHERE retry_requested = 1;

-- What people did, each row written in the transaction that did it.
CREATE TABLE {{prefix}}act (
    id              INTEGER PRIMARY KEY AUTOINCREMENT,
    acted_at        TEXT    NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')), -- UTC
    kind            TEXT    NOT NULL,
    entry           INTEGER NOT NULL,
    group_name      TEXT    NOT NULL,
    topic           TEXT    NOT NULL,
    number          INTEGER NOT NULL,
    scope           TEXT    NOT NULL,
    idempotency_key TEXT    NOT NULL,
    operator        TEXT    NOT NULL,
    reason          TEXT    NOT NULL
) STRICT;
