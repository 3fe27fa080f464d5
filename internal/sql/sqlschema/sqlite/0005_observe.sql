-- What consumers without a fence say of their own transactions, before they move over. See docs/move-over.md.
CREATE TABLE {{prefix}}observed (
    id           INTEGER PRIMARY KEY,
    at           TEXT    NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    group_name   TEXT    NOT NULL,
    topic        TEXT    NOT NULL,
    number       INTEGER NOT NULL,            -- of the partition
    first_offset INTEGER NOT NULL,            -- the messages of one transaction
    last_offset  INTEGER NOT NULL,
    generation   INTEGER NOT NULL DEFAULT -1, -- of the group, as the process knows it; -1: not known
    process      TEXT    NOT NULL,
    ids          TEXT,                        -- JSON: the messages' own ids
    caught       INTEGER NOT NULL DEFAULT 0   -- messages that a dedupe table had
) STRICT;

-- Each 128th row deletes up to 256 that are older than two days.
CREATE TRIGGER {{prefix}}observed_prune AFTER INSERT ON {{prefix}}observed WHEN new.id % 128 = 0 BEGIN
    DELETE FROM {{prefix}}observed WHERE id IN (SELECT id FROM (SELECT id, at FROM {{prefix}}observed ORDER BY id LIMIT 256)
        WHERE at < strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-2 days'));
END;
