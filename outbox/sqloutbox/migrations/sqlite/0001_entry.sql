CREATE TABLE {{prefix}}migration (
    version    INTEGER NOT NULL PRIMARY KEY,
    name       TEXT    NOT NULL,
    applied_at TEXT    NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
) STRICT;

CREATE TABLE {{prefix}}entry (
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
    added_at        TEXT    NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')) -- for people
) STRICT;

CREATE INDEX {{prefix}}entry_partition ON {{prefix}}entry (group_name, topic, number, id);
CREATE INDEX {{prefix}}entry_key ON {{prefix}}entry (group_name, topic, number, order_key, id);
