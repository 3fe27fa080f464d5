package sqlsink_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

// Opening a file for a consumer: WAL mode, the sink's tables, the sink.
func Example() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "sqlsink")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)

	db, err := sql.Open("sqlite", "file:"+filepath.Join(dir, "app.db")+"?_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)")
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	if _, err := db.ExecContext(ctx, `CREATE TABLE stock (item TEXT PRIMARY KEY, left INTEGER NOT NULL) STRICT`); err != nil {
		log.Fatal(err)
	}
	if err := sqlsink.Migrate(ctx, db, sqlsink.SQLite, sqlsink.Options{}); err != nil {
		log.Fatal(err)
	}
	sink, err := sqlsink.Open(ctx, db, sqlsink.SQLite, sqlsink.Options{})
	if err != nil {
		log.Fatal(err)
	}

	// From here on consumer.Run does the rest, given a source, this sink and a
	// handler such as this one:
	handle := func(ctx context.Context, tx *sqlsink.Tx, m epoch.Message, _ epoch.Epoch) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO stock VALUES (?, 10) ON CONFLICT (item) DO UPDATE SET left = left - 1`, string(m.Value))
		return err
	}

	// What it does for one message, by hand:
	p := epoch.Partition{Group: "inventory", Topic: "reservations", Number: 0}
	origin := epoch.Origin{Partition: p, Log: "cluster/topic id", Source: "cluster"}
	if err := sink.Seed(ctx, []epoch.Start{{Origin: origin}}); err != nil {
		log.Fatal(err)
	}
	seen, err := epoch.FenceOf(ctx, sink, p)
	if err != nil {
		log.Fatal(err)
	}
	ours, err := sink.Claim(ctx, seen, epoch.NewClaim(epoch.Lease{Origin: origin, Generation: 4, Owner: "worker-1"}))
	if err != nil {
		log.Fatal(err)
	}
	apply := func(ctx context.Context, tx *sqlsink.Tx) error {
		return handle(ctx, tx, epoch.Message{Partition: p, Offset: ours.Next, Value: []byte("lamp")}, ours.Epoch)
	}
	advance := []epoch.Advance{{Partition: p, Claim: ours.Claim, From: 0, To: 1, Mark: epoch.NoMark}}
	fmt.Println(sink.Commit(ctx, advance, epoch.TxOptions{}, apply))

	// Once more, as after a lost acknowledgement: refused, and rolled back.
	err = sink.Commit(ctx, advance, epoch.TxOptions{}, apply)
	fmt.Println(errors.Is(err, epoch.ErrMoved))
	fmt.Println(err)

	var left int
	fmt.Println(db.QueryRowContext(ctx, `SELECT left FROM stock WHERE item = 'lamp'`).Scan(&left), left)
	// Output:
	// <nil>
	// true
	// sqlsink: commit inventory/reservations/0: inventory/reservations/0: position moved: the fence is at offset 1, not 0
	// <nil> 10
}

// The schema for a migration tool of one's own.
func ExampleMigrations() {
	ms, err := sqlsink.Migrations(sqlsink.SQLite, sqlsink.Options{TablePrefix: "fence_"})
	if err != nil {
		log.Fatal(err)
	}
	for _, m := range ms {
		name := fmt.Sprintf("%03d_epochfence.sql", m.Version)
		fmt.Println(name, len(m.SQL) > 0) // write m.SQL to that file
	}
	// Output:
	// 001_epochfence.sql true
	// 002_epochfence.sql true
	// 003_epochfence.sql true
	// 004_epochfence.sql true
	// 005_epochfence.sql true
	// 006_epochfence.sql true
}
