-- name: Deduct :one
update stock set left_over = left_over - $2 where item = $1 returning left_over;

-- name: Record :exec
insert into deduction (item, quantity, epoch) values ($1, $2, $3);

-- name: RecordAll :copyfrom
insert into deduction (item, quantity, epoch) values ($1, $2, $3);

-- name: Restock :batchexec
update stock set left_over = left_over + $2 where item = $1;

-- name: Stock :many
select item, left_over from stock order by item;
