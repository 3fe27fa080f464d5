// Command nightly shows a nightly job at work: two pods wake up at the same second to rebuild a search
// index in object storage, while incidents freeze and kill them. A baseline runs beside it: a lock in
// Redis that has a time to live.
//
//	go run ./examples/nightly # compiles first, silently: up to two minutes on two cores, from then on a second
//
// needs only Go: the S3 server (versitygw), the store of the leases (nats-server) and the baseline's
// Redis (miniredis) are in this process, and the database is a SQLite file in a temporary directory. The
// file system of that directory must have extended attributes. With -lease the leases are in a real
// NATS or PostgreSQL. The exit code is 0 only if the fenced column is exact.
//
// A frozen process usually finds its deadlines passed when it continues, and gives up. This show
// disables the deadlines of the step in hand, so that only the fence and the guard protect the index
// from a zombie.
//
// The code to copy, the job and its wiring, is rebuild/index.go.
package main

import (
	"github.com/epochfence/epochfence/examples/nightly/rebuild"
	"github.com/epochfence/epochfence/internal/show"
)

func main() { show.Main(rebuild.New()) }
