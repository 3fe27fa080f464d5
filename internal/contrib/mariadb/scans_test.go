package mariadb_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/servers/mariatest"
	"github.com/epochfence/epochfence/internal/suites/sqlsinktest"
	"github.com/epochfence/epochfence/outbox"
	"github.com/epochfence/epochfence/outbox/sqloutbox"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

type counting struct {
	net.Conn
	read *atomic.Int64
}

func (c *counting) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.read.Add(int64(n))
	return n, err
}

// The driver reads each answer to its end, whatever of it is used.
func TestAScanOfTheOutboxGetsNoMoreBytesThanItReturns(t *testing.T) {
	t.Parallel()
	dsn := newDatabase(t, mariatest.Start(t))
	var read atomic.Int64
	mysql.RegisterDialContext("counting", func(ctx context.Context, address string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, "tcp", address)
		return &counting{c, &read}, err
	})
	db := open(t, strings.Replace(dsn, "@tcp(", "@counting(", 1))
	store, err := sqloutbox.Open[*sqlsink.Tx](t.Context(), db, sqloutbox.MariaDB, sqloutbox.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s := sqlsinktest.MariaDB.Sink(t, db, sqlsink.Options{})
	seeded(t, s)
	f, err := claim(t.Context(), s, 1)
	if err != nil {
		t.Fatal(err)
	}
	in := func(do func(ctx context.Context, tx *sqlsink.Tx) error) {
		t.Helper()
		if err := epoch.CommitHeld(t.Context(), s, epoch.Hold{Partition: f.Partition, Claim: f.Claim}, epoch.TxOptions{}, do); err != nil {
			t.Fatal(err)
		}
	}
	const n, large = 200, 250_000
	in(func(ctx context.Context, tx *sqlsink.Tx) error {
		for i := range n {
			e := outbox.Entry{IdempotencyKey: fmt.Sprint(i), Method: "POST", URL: "http://localhost"}
			if i%2 == 1 {
				e.Body = make([]byte, large)
			}
			if err := store.Add(ctx, tx, epoch.Message{Partition: f.Partition}, e); err != nil {
				return err
			}
		}
		return nil
	})
	in(func(ctx context.Context, tx *sqlsink.Tx) error {
		for at, found := (outbox.Cursor{More: true}), 0; at.More; {
			read.Store(0)
			rows, to, err := store.Scan(ctx, tx, f.Partition, at, 1000)
			if err != nil {
				return err
			}
			if got := read.Load(); got > outbox.ScanBytes+2*large {
				t.Errorf("a scan of %d entries has read %d bytes", len(rows), got)
			}
			for _, row := range rows {
				if row.IdempotencyKey != fmt.Sprint(found) {
					t.Errorf("entry %s came as number %d", row.IdempotencyKey, found)
				}
				found++
			}
			if at = to; !at.More && found != n {
				t.Errorf("the scans have ended behind %d entries, want %d", found, n)
			}
		}
		return nil
	})
}
