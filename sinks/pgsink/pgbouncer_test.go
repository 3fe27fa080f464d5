package pgsink_test

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/epochfence/epochfence/internal/servers/pgtest"
	"github.com/epochfence/epochfence/sinks/sinktest"
)

// TestSuiteThroughPgBouncer plays the suite through transaction pooling, where
// hardly two transactions in a row of a client share a connection: a part of it where no
// PostgreSQL is named.
func TestSuiteThroughPgBouncer(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	b := pgtest.StartBouncer(t, r.appURL)
	whole := os.Getenv("EPOCHFENCE_LONG") != "" || os.Getenv(pgtest.Env) != ""
	for _, name := range []string{"exec", "cache_describe", "simple_protocol"} {
		if name != "exec" && !whole {
			continue
		}
		mode := modes[name]
		t.Run(name, func(t *testing.T) {
			sinktest.RunUnblocked(t, suiteOn(r, b.URL, mode, neverCancels))
			sinktest.RunUnblocked(t, queuedSuiteOn(r, b.URL, mode, neverCancels))
		})
	}
	if !whole {
		return
	}
	t.Run("queries", func(t *testing.T) { sinktest.Run(t, suiteOn(r, b.URL, modes["exec"], neverCancels)) })
	t.Run("queue", func(t *testing.T) { sinktest.Run(t, queuedSuiteOn(r, b.URL, modes["exec"], neverCancels)) })
}

// neverCancels withholds the cancel request that pgx sends after it has given a
// connection up. PgBouncer from 1.18 to 1.20, and so Debian 12's, may exit with
// "server in bad state" on those: pgbouncer/pgbouncer issue 822.
func neverCancels(c *pgxpool.Config) {
	c.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return uncancelled{conn}, nil
	}
}

type uncancelled struct{ net.Conn }

// cancelCode is that of a CancelRequest, in the PostgreSQL manual's "Message
// Formats".
const cancelCode = 80877102

func (c uncancelled) Write(b []byte) (int, error) {
	if len(b) == 16 && binary.BigEndian.Uint32(b[4:]) == cancelCode {
		return 0, errors.New("cancel request withheld")
	}
	return c.Conn.Write(b)
}
