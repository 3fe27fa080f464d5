update account set lock_name = 'billing/orders/11', lock_epoch = null
where lock_name = 'billing/orders/3' and lock_epoch <= $1
    and id in (select account from moved_account)
