-- epochfence_token compares a token with the token in a row, inside the UPDATE that writes the row:
--
--   update account set balance = balance - $4,
--       lock_name = $2, lock_epoch = epochfence_token(lock_name, lock_epoch, $2, $3)
--   where id = $1
--
-- It returns the token, or raises an error that aborts the transaction:
--
--   XF030 refused     the row has a higher token, or with once => true the same one
--   XF031 lock        the row has the token of another lock
--   XF032 no token    the token is not positive, or the lock has no name
--
-- It is volatile, so that it is called for each row that is written, and never at another time.
-- Names are compared byte by byte, whatever the collation of the column is.
create or replace function epochfence_token(row_lock text, row_token bigint, lock text, token bigint, once boolean default false)
returns bigint
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    if lock is null or lock collate "C" = '' or token is null or token <= 0 then
        raise exception using errcode = 'XF032',
            message = 'epochfence: no token: ' || json_build_object('lock', lock, 'token', token),
            hint = 'A token is 1 or more, and its lock has a name.';
    end if;
    if row_lock is null and coalesce(row_token, 0) = 0 then
        return token; -- nobody has written the row under a token
    end if;
    if row_lock collate "C" is distinct from lock collate "C" then
        raise exception using errcode = 'XF031',
            message = 'epochfence: another lock: ' || json_build_object('lock', lock, 'token', token, 'row_lock', row_lock, 'row_token', row_token),
            hint = 'The tokens of two locks have no order. Move the row to the lock that is to write it.';
    end if;
    if row_token > token or row_token = token and once is not false then
        raise exception using errcode = 'XF030',
            message = 'epochfence: token refused: ' || json_build_object('lock', lock, 'token', token, 'row_lock', row_lock, 'row_token', row_token),
            hint = 'The row was written under this token or a later one. Do not repeat the write.';
    end if;
    return token;
end
$$;
