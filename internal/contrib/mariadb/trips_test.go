package mariadb_test

import (
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/epochfence/epochfence/internal/servers/mariatest"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

type tripping struct {
	net.Conn
	trips *atomic.Int64
}

func (c *tripping) Write(p []byte) (int, error) {
	const closing = 0x19 // COM_STMT_CLOSE, which has no answer
	if len(p) > 4 && p[4] != closing {
		c.trips.Add(1)
	}
	return c.Conn.Write(p)
}

// The four are SET, SAVEPOINT, RELEASE and SET, which limit the transaction, prove that it is the one that was begun,
// and restore the connection. By hand, the position is moved as well.
func TestAFencedTransactionHasFourRoundTripsMoreThanOneByHand(t *testing.T) {
	t.Parallel()
	dsn := newDatabase(t, mariatest.Start(t))
	var trips atomic.Int64
	mysql.RegisterDialContext("tripping", func(ctx context.Context, address string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, "tcp", address)
		return &tripping{c, &trips}, err
	})
	for parameters, want := range map[string]int64{"": 6, "&interpolateParams=true": 4} {
		db := open(t, strings.Replace(dsn, "@tcp(", "@tripping(", 1)+parameters)
		s, err := sqlsink.Open(t.Context(), db, sqlsink.MariaDB, sqlsink.Options{})
		if err != nil {
			t.Fatal(err)
		}
		seeded(t, s)
		f, err := claim(t.Context(), s, 1)
		if err != nil {
			t.Fatal(err)
		}
		trips.Store(0)
		if err := commit(t.Context(), s, f, func(ctx context.Context, tx *sqlsink.Tx) error { return write(ctx, tx, "v") }); err != nil {
			t.Fatal(err)
		}
		fenced := trips.Swap(0)
		tx, err := db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range []string{`INSERT INTO effects (list, value) VALUES ('byhand', ?)`, `UPDATE epochfence_fence SET mark = mark WHERE group_name = ?`} {
			if _, err := tx.ExecContext(t.Context(), text, "billing"); err != nil {
				t.Fatal(err)
			}
		}
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		if byHand := trips.Load(); byHand != want || fenced != want+4 {
			t.Errorf("with %q, %d round trips by hand and %d fenced, want %d and %d", parameters, byHand, fenced, want, want+4)
		}
	}
}
