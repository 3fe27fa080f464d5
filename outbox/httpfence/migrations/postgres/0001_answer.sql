CREATE TABLE {{prefix}}migration (
    version    integer NOT NULL PRIMARY KEY,
    name       text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE {{prefix}}scope (
    scope text COLLATE "C" NOT NULL PRIMARY KEY,
    epoch bigint NOT NULL CHECK (epoch > 0) -- the highest that was seen; never deleted
) WITH (fillfactor = 50); -- each call locks its row: let the next version find room beside the last

CREATE TABLE {{prefix}}answer (
    scope           text COLLATE "C" NOT NULL,
    idempotency_key text COLLATE "C" NOT NULL,
    fingerprint     bytea NOT NULL,         -- SHA-256 of the request
    epoch           bigint NOT NULL,        -- under which it was answered
    status          integer NOT NULL,
    header          bytea NOT NULL,         -- lines "Name: value", each ended by CR LF
    trailer         bytea NOT NULL,
    body            bytea NOT NULL,
    stored_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (scope, idempotency_key)
);

CREATE INDEX {{prefix}}answer_age ON {{prefix}}answer (stored_at);
