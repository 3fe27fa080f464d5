package mariadb_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/servers/mariatest"
	"github.com/epochfence/epochfence/internal/servers/proxy"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

// This file attacks a transaction at each of its statements: from outside of it, by kills, takeovers and lost
// answers. attack_test.go attacks it from within.

// hooked is a connection that calls a hook before it sends a statement, and after.
type hooked struct {
	net.Conn
	next *atomic.Pointer[hook]
}

type hook struct {
	statement     string
	before, after func()
}

func (c *hooked) Write(p []byte) (int, error) {
	h := c.next.Load()
	if h == nil || len(p) < 5 || !bytes.HasPrefix(p[5:], []byte(h.statement)) || !c.next.CompareAndSwap(h, nil) {
		return c.Conn.Write(p)
	}
	if h.before != nil {
		h.before()
	}
	n, err := c.Conn.Write(p)
	if h.after != nil {
		h.after()
	}
	return n, err
}

var hookNames atomic.Int64

// hooking returns a DSN whose connections call the hook that is stored, once.
func hooking(dsn string) (string, *atomic.Pointer[hook]) {
	var next atomic.Pointer[hook]
	name := fmt.Sprintf("hook%d", hookNames.Add(1))
	mysql.RegisterDialContext(name, func(ctx context.Context, address string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, "tcp", address)
		return &hooked{c, &next}, err
	})
	return strings.Replace(dsn, "@tcp(", "@"+name+"(", 1), &next
}

// statements are what each transaction of a handler sends, and the ROLLBACK of one that fails.
var statements = []string{"SET @epochfence", "START", "SAVEPOINT", "INSERT INTO effects", "RELEASE", "UPDATE", "COMMIT", "SET SESSION", "ROLLBACK"}

// committed checks that the effects and the position agree with each other and with what Commit has said.
func committed(t *testing.T, what string, s *sqlsink.Sink, db *sql.DB, said error) {
	t.Helper()
	now, err := epoch.FenceOf(t.Context(), s, orders.Partition)
	got, errList := effects(t.Context(), db, "orders")
	landed := now.Next == 1
	if err := errors.Join(err, errList); err != nil || int(now.Next) != len(got) || said == nil && !landed || landed && said != nil && !errors.Is(said, epoch.ErrInDoubt) {
		t.Errorf("%s: Commit said %v; the fence is at %d, effects %q, %v", what, said, now.Next, got, err)
	}
}

// writes is a handler that writes once, and fails if what is attacked is the ROLLBACK.
func writes(at string) func(ctx context.Context, tx *sqlsink.Tx) error {
	return func(ctx context.Context, tx *sqlsink.Tx) error {
		err := write(ctx, tx, "v")
		if at == "ROLLBACK" {
			return errors.New("on purpose")
		}
		return err
	}
}

func TestAKilledStatementOrConnectionLeavesEffectAndPositionTogether(t *testing.T) {
	t.Parallel()
	server := mariatest.Start(t)
	for _, at := range statements {
		for _, kill := range []string{"QUERY", "CONNECTION"} {
			for _, after := range []bool{false, true} {
				dsn := newDatabase(t, server)
				through, next := hooking(dsn)
				side := open(t, dsn)
				s := newSink(t, through+"&interpolateParams=true", sqlsink.Options{})
				seeded(t, s)
				f, err := claim(t.Context(), s, 1)
				if err != nil {
					t.Fatal(err)
				}
				kills := func() {
					_, err := side.ExecContext(t.Context(), `FOR p IN (SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()) DO KILL `+kill+` p.id; END FOR`)
					if err != nil {
						t.Error(err)
					}
				}
				h := &hook{statement: at, before: kills}
				if after {
					h = &hook{statement: at, after: kills}
				}
				next.Store(h)
				err = commit(t.Context(), s, f, writes(at))
				if next.Load() != nil {
					t.Errorf("%s was not sent", at)
				}
				committed(t, fmt.Sprintf("KILL %s at %s, after it is sent: %t", kill, at, after), newSink(t, dsn, sqlsink.Options{}), side, err)
			}
		}
	}
}

// A server that is killed and started again has both or neither.
func TestAServerThatIsKilledWithinATransactionHasEffectAndPositionTogether(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"INSERT INTO effects", "COMMIT"} {
		for _, after := range []bool{false, true} {
			server := mariatest.Start(t, "--innodb-flush-log-at-trx-commit=1")
			dsn := newDatabase(t, server)
			through, next := hooking(dsn)
			s := newSink(t, through+"&interpolateParams=true", sqlsink.Options{})
			seeded(t, s)
			f, err := claim(t.Context(), s, 1)
			if err != nil {
				t.Fatal(err)
			}
			h := &hook{statement: at, before: server.Kill}
			if after {
				h = &hook{statement: at, after: server.Kill}
			}
			next.Store(h)
			err = commit(t.Context(), s, f, writes(at))
			server.Restart(t)
			committed(t, fmt.Sprintf("killed at %s, after it is sent: %t", at, after), newSink(t, dsn, sqlsink.Options{}), open(t, dsn), err)
		}
	}
}

// The server ends the transaction of an owner that is frozen anywhere in it, so that the next claim is granted,
// and what the owner sends after its thaw commits nothing.
func TestAnOwnerThatThawsAfterATakeoverHasCommittedAllOrNothing(t *testing.T) {
	t.Parallel()
	server := mariatest.Start(t)
	for _, at := range statements {
		for _, after := range []bool{false, true} {
			dsn := newDatabase(t, server)
			through, next := hooking(dsn)
			owner := newSink(t, through+"&interpolateParams=true", sqlsink.Options{LockTimeout: time.Second})
			other := newSink(t, dsn, sqlsink.Options{})
			seeded(t, other)
			f, err := claim(t.Context(), owner, 1)
			if err != nil {
				t.Fatal(err)
			}
			name := fmt.Sprintf("frozen at %s, after it is sent: %t", at, after)
			var taken epoch.Fence
			takes := func() {
				if taken, err = claim(t.Context(), other, 2); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
			h := &hook{statement: at, before: takes}
			if after {
				h = &hook{statement: at, after: takes}
			}
			next.Store(h)
			said := commit(t.Context(), owner, f, writes(at))
			if next.Load() != nil {
				t.Errorf("%s was not sent", at)
			}
			committed(t, name, other, open(t, dsn), said)
			if taken.Next == 1 {
				continue // the owner's COMMIT came first
			}
			if err := commit(t.Context(), other, taken, func(ctx context.Context, tx *sqlsink.Tx) error { return write(ctx, tx, "v") }); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			committed(t, name, other, open(t, dsn), nil)
		}
	}
}

// The proxy loses the answer to COMMIT, and the owner finds out at its next claim.
func TestTheOwnerLearnsFromItsNextClaimThatACommitWithoutAnAnswerHasLanded(t *testing.T) {
	t.Parallel()
	server := mariatest.Start(t)
	p, via, err := proxy.Between()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	dsn := newDatabase(t, server)
	through, next := hooking(strings.Replace(dsn, server.Address, via(server.Address), 1))
	s := newSink(t, through, sqlsink.Options{})
	seeded(t, s)
	f, err := claim(t.Context(), s, 1)
	if err != nil {
		t.Fatal(err)
	}
	next.Store(&hook{statement: "COMMIT", before: p.LoseAnswer})
	if err := commit(t.Context(), s, f, writes("COMMIT")); !errors.Is(err, epoch.ErrInDoubt) || p.Struck() != 1 {
		t.Errorf("%v, want %v", err, epoch.ErrInDoubt)
	}
	if got, err := claim(t.Context(), s, 1); err != nil || got.Next != 1 {
		t.Errorf("the claim is at %d, %v", got.Next, err)
	}
}
