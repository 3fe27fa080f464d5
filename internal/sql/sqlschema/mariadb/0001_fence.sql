CREATE TABLE IF NOT EXISTS {{prefix}}migration (
    version    INT         NOT NULL PRIMARY KEY,
    name       VARCHAR(64) NOT NULL,
    applied_at TIMESTAMP   NOT NULL DEFAULT CURRENT_TIMESTAMP
) ENGINE = InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Names are bytes: each collation takes some that differ for the same.
CREATE TABLE IF NOT EXISTS {{prefix}}fence (
    group_name       VARBINARY(1020) NOT NULL,
    topic            VARBINARY(1020) NOT NULL,
    number           BIGINT          NOT NULL,            -- of the partition
    log_id           VARBINARY(1020) NOT NULL,            -- whose offsets are counted
    lease_source     VARBINARY(1020) NOT NULL,            -- who issues the leases
    lease_generation BIGINT          NOT NULL DEFAULT 0,  -- these two are for people
    owner            VARBINARY(4096) NOT NULL DEFAULT '',
    epoch            BIGINT          NOT NULL DEFAULT 0,  -- 0: not yet claimed
    claim_id         BINARY(16)      NOT NULL DEFAULT '\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0',
    next_offset      BIGINT          NOT NULL,            -- of the next message to apply
    mark             BIGINT          NOT NULL DEFAULT -1, -- what the source recognises its log by at next_offset; -1: nothing
    applied          BOOLEAN         NOT NULL DEFAULT 0,  -- 1: the group has applied what is before next_offset
    set_under        BIGINT          NOT NULL DEFAULT 0,  -- the epoch under which an operator has set next_offset last, but by a skip; 0: nobody has
    mode             VARCHAR(16)     NOT NULL DEFAULT '', -- takes claims where it is empty; 'paused': an operator has paused it
    mode_by          VARCHAR(1020)   NOT NULL DEFAULT '', -- who set the mode, why and when, for people
    mode_reason      TEXT            NOT NULL DEFAULT (''),
    mode_at          VARCHAR(32),
    claimed_at       VARCHAR(32),                         -- UTC; for people, nothing compares them
    advanced_at      VARCHAR(32),
    PRIMARY KEY (group_name, topic, number),
    CHECK (epoch >= 0)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
