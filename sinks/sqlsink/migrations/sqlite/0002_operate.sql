-- The audit log: who was let in, who was not, what people did, and why.
CREATE TABLE {{prefix}}decision (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    decided_at  TEXT    NOT NULL, -- UTC; for people
    kind        TEXT    NOT NULL,
    group_name  TEXT    NOT NULL,
    topic       TEXT    NOT NULL,
    number      INTEGER NOT NULL,
    epoch       INTEGER NOT NULL,
    claim_id    BLOB    NOT NULL,
    owner       TEXT    NOT NULL,
    from_offset INTEGER NOT NULL, -- -1: not known, or there was no claim before
    to_offset   INTEGER NOT NULL, -- -1: not known
    reason      TEXT    NOT NULL,
    operator    TEXT    NOT NULL, -- the person; '': nobody
    trace_id    TEXT    NOT NULL
) STRICT;

CREATE INDEX {{prefix}}decision_partition ON {{prefix}}decision (group_name, topic, number, id);
CREATE INDEX {{prefix}}decision_unattended ON {{prefix}}decision (id) WHERE operator = '';
CREATE INDEX {{prefix}}decision_hangs ON {{prefix}}decision (group_name, topic, number, id)
    WHERE kind IN ('hang', 'on-failure-hang', 'rewind', 'skip', 'resume', 'rebase', 'run');
CREATE INDEX {{prefix}}decision_attended ON {{prefix}}decision (id) WHERE operator <> '';

-- Dead letters that are to be replayed, and what has become of it.
ALTER TABLE {{prefix}}dead_letter ADD COLUMN request INTEGER NOT NULL DEFAULT 0; -- rises with each request for a replay
ALTER TABLE {{prefix}}dead_letter ADD COLUMN requested INTEGER NOT NULL DEFAULT 0;
ALTER TABLE {{prefix}}dead_letter ADD COLUMN requested_by TEXT NOT NULL DEFAULT '';
ALTER TABLE {{prefix}}dead_letter ADD COLUMN requested_at TEXT; -- UTC; these two are for people
ALTER TABLE {{prefix}}dead_letter ADD COLUMN replay_error TEXT NOT NULL DEFAULT '';
ALTER TABLE {{prefix}}dead_letter ADD COLUMN replay_failed_at TEXT;

CREATE INDEX {{prefix}}dead_letter_requested ON {{prefix}}dead_letter (group_name, topic, number, id) WHERE requested = 1;

-- The processes that consume: each gives a sign of life now and then.
CREATE TABLE {{prefix}}process (
    run        TEXT    NOT NULL PRIMARY KEY, -- of one run of a consumer
    group_name TEXT    NOT NULL,
    name       TEXT    NOT NULL,             -- what its owners begin with
    host       TEXT    NOT NULL,
    pid        INTEGER NOT NULL,
    version    TEXT    NOT NULL,             -- of the program
    problems   TEXT    NOT NULL,             -- by its own account, a line for each
    every_ms   INTEGER NOT NULL,             -- from one sign to the next
    since      TEXT    NOT NULL,             -- UTC, as the next
    seen_at    TEXT    NOT NULL
) STRICT;
