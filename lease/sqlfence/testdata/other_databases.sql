-- The form <=. For the form <, write < in place of <=.
update account set balance = balance - ?, lock_name = ?, lock_epoch = ?
where id = ? and (lock_name = ? and (lock_epoch <= ? or lock_epoch is null)
    or lock_name is null and (lock_epoch is null or lock_epoch = 0))

-- Only if that has matched no row, in the same transaction: no row, another lock, or a higher token.
select lock_name, lock_epoch from account where id = ?
