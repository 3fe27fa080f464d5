-- Requests that handlers have added to the outbox.
CREATE TABLE IF NOT EXISTS {{prefix}}outbox_entry (
    id              BIGINT          NOT NULL PRIMARY KEY AUTO_INCREMENT,
    group_name      VARBINARY(1020) NOT NULL,
    topic           VARBINARY(1020) NOT NULL,
    number          BIGINT          NOT NULL,            -- of the partition
    message_offset  BIGINT          NOT NULL,            -- of the message that added it
    order_key       VARBINARY(255)  NOT NULL,            -- '': no order
    scope           TEXT            NOT NULL,
    idempotency_key VARBINARY(4096) NOT NULL,
    method          VARCHAR(255)    NOT NULL,
    url             TEXT            NOT NULL,
    header          LONGTEXT        NOT NULL,            -- JSON: {"Name":["value"]}
    body            LONGBLOB        NOT NULL,
    added_at        VARCHAR(32)     NOT NULL DEFAULT (CONCAT(LEFT(DATE_FORMAT(UTC_TIMESTAMP(3), '%Y-%m-%dT%H:%i:%s.%f'), 23), 'Z')), -- for people
    retry_requested BOOLEAN         NOT NULL DEFAULT 0,  -- 1: an operator wants it to be sent now
    KEY {{prefix}}outbox_entry_partition (group_name, topic, number, id),
    KEY {{prefix}}outbox_entry_key (group_name, topic, number, order_key, id),
    KEY {{prefix}}outbox_entry_retry (group_name, topic, number, retry_requested, id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
