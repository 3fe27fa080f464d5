// Command inventory shows epochfence at work: reservations arrive on a Kafka topic, and workers
// deduct them from a stock in SQL while incidents freeze and kill the workers. A baseline runs
// beside it, with the same incidents.
//
//	go run ./examples/inventory # compiles first, silently: about a minute on two cores, from then on less than a second
//
// needs only Go: the broker is a fake one in this process, and the database is a SQLite file in a
// temporary directory. With -brokers and -database it runs on real services. With -sink nats the
// stock is in a bucket of NATS instead, and examples/inventory/stores has it in Redis, etcd or
// DynamoDB. The exit code is 0 only if the fenced column is exact.
//
// A frozen process usually finds its deadlines passed when it continues, and gives up. This show
// disables the deadlines of the transaction in hand, so that only the fence protects the database
// from a zombie.
//
// The code to copy is the handler and its wiring, in stock/sqlite.go, stock/postgres.go for PostgreSQL,
// and stock/store.go for a store without SQL.
package main

import (
	"github.com/epochfence/epochfence/examples/inventory/stock"
	"github.com/epochfence/epochfence/internal/show"
)

func main() { show.Main(stock.New()) }
