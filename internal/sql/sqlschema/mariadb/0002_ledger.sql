-- What operators see beside the fences: the audit log, dead letters, and signs of life of processes.
CREATE TABLE IF NOT EXISTS {{prefix}}ledger (
    id              BIGINT          NOT NULL PRIMARY KEY AUTO_INCREMENT,
    kind            VARCHAR(16)     NOT NULL,            -- 'entry' of the audit log, 'dead-letter', 'process'
    name            VARBINARY(1020) NOT NULL,            -- of an entry the claim; of a process its run
    group_name      VARBINARY(1020) NOT NULL,
    topic           VARBINARY(1020) NOT NULL,
    number          BIGINT          NOT NULL,            -- of the partition
    epoch           BIGINT          NOT NULL,
    message_offset  BIGINT          NOT NULL,            -- of an entry the position before; -1: not known, or there was no claim before
    state           VARCHAR(32)     NOT NULL,            -- of an entry what was decided; of a dead letter 'requested', 'withdrawn', 'failed': a replay
    cause           MEDIUMTEXT      NOT NULL,            -- the reason, the error, the problems
    operator        VARBINARY(1020) NOT NULL,            -- the person; '': nobody; of a process its name
    role            VARCHAR(255)    NOT NULL,            -- the user of the database
    written_at      VARCHAR(32)     NOT NULL,            -- UTC, as the next; for people
    changed_at      VARCHAR(32)     NOT NULL,
    revision        BIGINT          NOT NULL DEFAULT 0,  -- counts the changes of a dead letter
    body            LONGTEXT        NOT NULL,            -- JSON: what else there is
    message_key     LONGBLOB,                            -- NULL: the message had none
    message_value   LONGBLOB,
    message_headers LONGTEXT,                            -- JSON: [{"key":"…","value":"base64"}], "key_bytes" in base64 for a key that is not UTF-8
    KEY {{prefix}}ledger_kind (kind, id),
    KEY {{prefix}}ledger_name (kind, name),
    KEY {{prefix}}ledger_operator (kind, operator, id),
    KEY {{prefix}}ledger_partition (kind, group_name, topic, number, id),
    KEY {{prefix}}ledger_state (kind, state, group_name, topic, number, id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
