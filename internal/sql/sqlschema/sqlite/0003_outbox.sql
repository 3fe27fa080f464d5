-- Requests that handlers have added to the outbox.
CREATE TABLE {{prefix}}outbox_entry (
    id              INTEGER PRIMARY KEY AUTOINCREMENT, -- never used again
    group_name      TEXT    NOT NULL,
    topic           TEXT    NOT NULL,
    number          INTEGER NOT NULL,                  -- of the partition
    order_key       TEXT    NOT NULL,                  -- '': no order
    scope           TEXT    NOT NULL,
    idempotency_key TEXT    NOT NULL,
    method          TEXT    NOT NULL,
    url             TEXT    NOT NULL,
    header          TEXT    NOT NULL,                  -- JSON: {"Name":["value"]}
    body            BLOB    NOT NULL,
    added_at        TEXT    NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')), -- for people
    retry_requested INTEGER NOT NULL DEFAULT 0         -- 1: an operator wants it to be sent now
) STRICT;

CREATE INDEX {{prefix}}outbox_entry_partition ON {{prefix}}outbox_entry (group_name, topic, number, id);
CREATE INDEX {{prefix}}outbox_entry_key ON {{prefix}}outbox_entry (group_name, topic, number, order_key, id);
CREATE INDEX {{prefix}}outbox_entry_retry ON {{prefix}}outbox_entry (group_name, topic, number, id) WHERE retry_requested = 1;
