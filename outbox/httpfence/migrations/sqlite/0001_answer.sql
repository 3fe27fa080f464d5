CREATE TABLE {{prefix}}migration (
    version    INTEGER NOT NULL PRIMARY KEY,
    name       TEXT    NOT NULL,
    applied_at TEXT    NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
) STRICT;

CREATE TABLE {{prefix}}scope (
    scope TEXT    NOT NULL PRIMARY KEY,
    epoch INTEGER NOT NULL,             -- the highest that was seen; never deleted
    CHECK (epoch > 0)
) STRICT, WITHOUT ROWID;

CREATE TABLE {{prefix}}answer (
    scope           TEXT    NOT NULL,
    idempotency_key TEXT    NOT NULL,
    fingerprint     BLOB    NOT NULL,   -- SHA-256 of the request
    epoch           INTEGER NOT NULL,   -- under which it was answered
    status          INTEGER NOT NULL,
    header          BLOB    NOT NULL,   -- lines "Name: value", each ended by CR LF
    trailer         BLOB    NOT NULL,
    body            BLOB    NOT NULL,
    stored_at       TEXT    NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    PRIMARY KEY (scope, idempotency_key)
) STRICT;

CREATE INDEX {{prefix}}answer_age ON {{prefix}}answer (stored_at);
