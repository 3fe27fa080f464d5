-- What operators see beside the fences: the audit log, dead letters, and signs of life of processes.
CREATE TABLE {{prefix}}ledger (
    id              INTEGER PRIMARY KEY AUTOINCREMENT,
    kind            TEXT    NOT NULL,            -- 'entry' of the audit log, 'dead-letter', 'process'
    name            TEXT    NOT NULL,            -- of an entry the claim; of a process its run
    group_name      TEXT    NOT NULL,
    topic           TEXT    NOT NULL,
    number          INTEGER NOT NULL,            -- of the partition
    epoch           INTEGER NOT NULL,
    message_offset  INTEGER NOT NULL,            -- of an entry the position before; -1: not known, or there was no claim before
    state           TEXT    NOT NULL,            -- of an entry what was decided; of a dead letter 'requested', 'withdrawn', 'failed': a replay
    cause           TEXT    NOT NULL,            -- the reason, the error, the problems
    operator        TEXT    NOT NULL,            -- the person; '': nobody; of a process its name
    role            TEXT    NOT NULL,            -- the user of the database, if it has any
    written_at      TEXT    NOT NULL,            -- UTC, as the next; for people
    changed_at      TEXT    NOT NULL,
    revision        INTEGER NOT NULL DEFAULT 0,  -- counts the changes of a dead letter
    body            TEXT    NOT NULL,            -- JSON: what else there is
    message_key     BLOB,                        -- NULL: the message had none
    message_value   BLOB,
    message_headers TEXT                         -- JSON: [{"key":"…","value":"base64"}], "key_bytes" in base64 for a key that is not UTF-8
) STRICT;

CREATE INDEX {{prefix}}ledger_kind ON {{prefix}}ledger (kind, id);
CREATE INDEX {{prefix}}ledger_operator ON {{prefix}}ledger (kind, operator, id);
CREATE INDEX {{prefix}}ledger_partition ON {{prefix}}ledger (kind, group_name, topic, number, id);
CREATE INDEX {{prefix}}ledger_state ON {{prefix}}ledger (kind, state, group_name, topic, number, id);
