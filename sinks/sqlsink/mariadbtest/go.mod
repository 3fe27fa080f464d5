module github.com/epochfence/epochfence/sinks/sqlsink/mariadbtest

go 1.26.0

require (
	github.com/epochfence/epochfence v0.0.0
	github.com/go-sql-driver/mysql v1.10.1
)

require (
	filippo.io/edwards25519 v1.2.0 // indirect
	github.com/cenkalti/backoff/v4 v4.3.0 // indirect
	pgregory.net/rapid v1.3.0 // indirect
)

replace github.com/epochfence/epochfence => ../../..
