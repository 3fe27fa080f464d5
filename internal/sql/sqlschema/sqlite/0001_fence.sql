CREATE TABLE {{prefix}}migration (
    version    INTEGER NOT NULL PRIMARY KEY,
    name       TEXT    NOT NULL,
    applied_at TEXT    NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
) STRICT;

CREATE TABLE {{prefix}}fence (
    group_name       TEXT    NOT NULL,
    topic            TEXT    NOT NULL,
    number           INTEGER NOT NULL,            -- of the partition
    log_id           TEXT    NOT NULL,            -- whose offsets are counted
    lease_source     TEXT    NOT NULL,            -- who issues the leases
    lease_generation INTEGER NOT NULL DEFAULT 0,  -- these two are for people
    owner            TEXT    NOT NULL DEFAULT '',
    epoch            INTEGER NOT NULL DEFAULT 0,  -- 0: not yet claimed
    claim_id         BLOB    NOT NULL DEFAULT x'00000000000000000000000000000000',
    next_offset      INTEGER NOT NULL,            -- of the next message to apply
    mark             INTEGER NOT NULL DEFAULT -1, -- what the source recognises its log by at next_offset; -1: nothing
    applied          INTEGER NOT NULL DEFAULT 0,  -- 1: the group has applied what is before next_offset
    set_under        INTEGER NOT NULL DEFAULT 0,  -- the epoch under which an operator has set next_offset last, but by a skip; 0: nobody has
    mode             TEXT    NOT NULL DEFAULT '', -- takes claims where it is empty; 'paused': an operator has paused it
    mode_by          TEXT    NOT NULL DEFAULT '', -- who set the mode, why and when, for people
    mode_reason      TEXT    NOT NULL DEFAULT '',
    mode_at          TEXT,
    claimed_at       TEXT,                        -- UTC; for people, nothing compares them
    advanced_at      TEXT,
    PRIMARY KEY (group_name, topic, number),
    CHECK (epoch >= 0),
    CHECK (length(claim_id) = 16)
) STRICT, WITHOUT ROWID;
