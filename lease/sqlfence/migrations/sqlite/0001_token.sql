-- Each UPDATE that sets lock_name or lock_epoch is compared with the row that it replaces. A refusal
-- undoes the whole statement. The transaction stays open: RAISE(ROLLBACK) would end it, and the
-- statements after it would be committed one by one.
--
-- A null lock_epoch under another name moves the row to that lock.
CREATE TRIGGER IF NOT EXISTS {{trigger}} BEFORE UPDATE OF lock_name, lock_epoch ON {{table}}
FOR EACH ROW
WHEN NOT (new.lock_epoch IS NULL AND typeof(new.lock_name) = 'text' AND new.lock_name <> ''
    AND old.lock_name IS NOT NULL AND old.lock_name IS NOT new.lock_name COLLATE BINARY)
BEGIN
    SELECT raise(ABORT, 'epochfence: no token: '
            || json_object('lock', CAST(new.lock_name AS TEXT), 'token', CAST(new.lock_epoch AS INTEGER)))
        WHERE typeof(new.lock_name) <> 'text' OR new.lock_name = '' OR typeof(new.lock_epoch) <> 'integer' OR new.lock_epoch <= 0;
    SELECT raise(ABORT, 'epochfence: another lock: '
            || json_object('lock', new.lock_name, 'token', new.lock_epoch,
                'row_lock', CAST(old.lock_name AS TEXT), 'row_token', CAST(old.lock_epoch AS INTEGER)))
        WHERE old.lock_name IS NOT new.lock_name COLLATE BINARY
            AND NOT (old.lock_name IS NULL AND coalesce(old.lock_epoch, 0) = 0);
    SELECT raise(ABORT, 'epochfence: token refused: '
            || json_object('lock', new.lock_name, 'token', new.lock_epoch,
                'row_lock', old.lock_name, 'row_token', CAST(old.lock_epoch AS INTEGER)))
        WHERE old.lock_epoch {{refused}} new.lock_epoch;
END;
