package pgschema

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/epochfence/epochfence/internal/waits"
	"github.com/epochfence/epochfence/operate"
)

// SQLSTATEs of a server that may soon take a connection.
var notYet = []string{
	"57P03", // cannot_connect_now: it is starting, or shutting down
	"57P01", // admin_shutdown
	"57P02", // crash_shutdown
	"53300", // too_many_connections
}

// Wait configures the wait for a server that cannot be reached yet.
type Wait struct {
	Timeout time.Duration
	Log     *slog.Logger
}

// InTx runs f in a [ReadCommitted] transaction. It waits for the server.
func (w Wait) InTx(ctx context.Context, db DB, f func(pgx.Tx) error) error {
	var tx pgx.Tx
	err := w.Reach(ctx, db, func(ctx context.Context) (err error) {
		tx, err = db.BeginTx(ctx, ReadCommitted)
		return err
	})
	if err != nil {
		return Explain(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }() // after a commit it does nothing
	if err := f(tx); err != nil {
		return Explain(err)
	}
	return Explain(tx.Commit(ctx))
}

// Reach repeats try, the first step to be done, until the server of db can be reached.
func (w Wait) Reach(ctx context.Context, db DB, try func(context.Context) error) error {
	server := waits.Server{Name: "PostgreSQL" + at(db), Timeout: w.Timeout, Log: w.Log, Patience: func(err error) time.Duration {
		if unreached(err) {
			return w.Timeout
		}
		return 0
	}}
	after, err := server.Wait(ctx, try)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		if cause := context.Cause(ctx); !errors.Is(err, cause) {
			return fmt.Errorf("%w: %w", cause, err)
		}
	case unreached(err):
		return fmt.Errorf("%s was not reached within %v; does it run, and are address and port right? %w", server.Name, after, err)
	}
	return err
}

// unreached reports whether err means that the server cannot be reached now, and not that it
// refuses us.
func unreached(err error) bool {
	var (
		pg   *pgconn.PgError
		dns  *net.DNSError
		dial *net.OpError
	)
	switch {
	case errors.As(err, &pg):
		return slices.Contains(notYet, pg.Code)
	case waits.IsTLS(err):
		return false
	case errors.Is(err, context.DeadlineExceeded), pgconn.Timeout(err), errors.As(err, &dns):
		return true
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET):
		return true
	case errors.As(err, &dial):
		return dial.Op == "dial" && !errors.Is(err, syscall.EACCES)
	}
	return false
}

func at(db DB) string {
	pool, ok := db.(*pgxpool.Pool)
	if !ok {
		return ""
	}
	c := pool.Config().ConnConfig
	all := []string{address(c.Host, c.Port)}
	for _, f := range c.Fallbacks {
		if a := address(f.Host, f.Port); !slices.Contains(all, a) {
			all = append(all, a)
		}
	}
	return " at " + strings.Join(all, ", ")
}

func address(host string, port uint16) string {
	return net.JoinHostPort(host, strconv.Itoa(int(port)))
}

// Explain adds to an error what to do about it, if known.
func Explain(err error) error {
	if waits.IsTLS(err) {
		return fmt.Errorf("TLS with the server fails; is it the right certificate authority (sslrootcert)? %w", err)
	}
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return err
	}
	switch pg.Code {
	case "25006": // read_only_sql_transaction
		return fmt.Errorf("the server or the session is read-only: connect to the primary (target_session_attrs=read-write): %w", err)
	case "28P01", "28000": // invalid_password, invalid_authorization_specification
		return fmt.Errorf("the server refused the credentials: %w", err)
	default:
		return err
	}
}

// snapshotsSQL reads what each role may see, except for the start of other roles' transactions,
// which only members of pg_read_all_stats see. Autovacuum, which has no role, holds nothing back.
const snapshotsSQL = `
select distinct on (h.holder) h.holder, h.name, coalesce(h.pid, 0), h.transactions, coalesce(extract(epoch from pg_catalog.clock_timestamp() - h.since), 0)::float8
from (
	select '` + operate.HolderSession + `', coalesce(nullif(a.application_name, ''), a.usename, ''), a.pid,
		greatest(pg_catalog.age(a.backend_xid), pg_catalog.age(a.backend_xmin)), a.xact_start
	from pg_catalog.pg_stat_activity a
	where (a.datname = pg_catalog.current_database() or a.datname is null) and a.usesysid is not null and a.pid <> pg_catalog.pg_backend_pid()
	union all
	select '` + operate.HolderPrepared + `', p.gid, null, pg_catalog.age(p.transaction), p.prepared
	from pg_catalog.pg_prepared_xacts p where p.database = pg_catalog.current_database()
	union all
	select '` + operate.HolderSlot + `', s.slot_name, s.active_pid, pg_catalog.age(s.xmin), null from pg_catalog.pg_replication_slots s
) h (holder, name, pid, transactions, since)
where h.transactions is not null order by h.holder, h.transactions desc`

// OldestSnapshots returns the oldest snapshot of each kind of holder that keeps row versions of the
// database.
func OldestSnapshots(ctx context.Context, db interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
},
) ([]operate.Snapshot, error) {
	rows, err := db.Query(ctx, snapshotsSQL)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (s operate.Snapshot, err error) {
		var seconds float64
		err = row.Scan(&s.Holder, &s.Name, &s.PID, &s.Transactions, &seconds)
		s.Age = time.Duration(seconds * float64(time.Second))
		return s, err
	})
}
