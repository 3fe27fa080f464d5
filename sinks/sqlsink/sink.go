package sqlsink

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/sql/sqlschema"
	"github.com/epochfence/epochfence/internal/sql/sqltx"
	"github.com/epochfence/epochfence/internal/text/inert"
	"github.com/epochfence/epochfence/migrations"
	"github.com/epochfence/epochfence/operate"
)

// This file migrates the tables, and reads, seeds and claims fences under the database's write lock. It
// decides whose fault an error is. Package epoch decides whether a claim is allowed, and sqltx/db.go has
// the scripts applied.

// Options configure a [Sink]. The zero value works.
type Options struct {
	// TablePrefix is the prefix of the sink's table names: at most 32 letters, digits and
	// underscores. Set it to keep several sinks in one database apart. Defaults to "epochfence_".
	TablePrefix string

	// LockTimeout limits each wait for the database's write lock, in MariaDB for a row's or a table's,
	// and for a connection, beside the context of each call. MariaDB counts in seconds. Raise it if other programs hold the write lock for longer. Defaults to
	// 30 s.
	LockTimeout time.Duration
}

const maxLockTimeout = 24 * time.Hour

func (o Options) limits() sqltx.Limits { return sqltx.Limits{Wait: o.LockTimeout} }

func (o Options) withDefaults() (Options, error) {
	if o.TablePrefix == "" {
		o.TablePrefix = sqlschema.DefaultPrefix
	}
	if err := sqlschema.CheckPrefix("Options.TablePrefix", o.TablePrefix); err != nil {
		return o, fmt.Errorf("sqlsink: %w", err)
	}
	if o.LockTimeout == 0 {
		o.LockTimeout = 30 * time.Second
	}
	if o.LockTimeout < 0 || o.LockTimeout > maxLockTimeout {
		return o, fmt.Errorf("sqlsink: Options.LockTimeout is %v; want 0 for the default of 30 s, or up to %v", o.LockTimeout, maxLockTimeout)
	}
	return o, nil
}

// Sink stores fences in tables beside the user's own. It is safe for concurrent use, holds no
// connection between calls, and needs no Close.
type Sink struct {
	db           *sql.DB
	d            Dialect
	transactions *sqltx.DB
	q            queries
}

// The suite skips the histories of what a sink does not implement, so that is said here.
var (
	_ epoch.Sink[*Tx]    = (*Sink)(nil)
	_ epoch.Holding[*Tx] = (*Sink)(nil)
)

// Open returns a sink on db, which the caller owns. It checks the database's settings and the
// version of the tables, and changes nothing: see [Migrate]. It waits for a locked file, up to
// [Options.LockTimeout]. A file that cannot be opened, or is no database, is an error at once.
// Errors match [migrations.ErrNotMigrated], [migrations.ErrOlder] and [migrations.ErrNewer].
func Open(ctx context.Context, db *sql.DB, d Dialect, o Options) (*Sink, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	transactions, err := sqltx.Open(ctx, db, d.transactions(), d.tables(o.TablePrefix), o.limits())
	if err != nil {
		return nil, fmt.Errorf("sqlsink: open %s: %w", d, err)
	}
	schema, err := d.schema(ctx, db)
	if err != nil {
		return nil, fmt.Errorf("sqlsink: open %s: %w", d, err)
	}
	return &Sink{db: db, d: d, transactions: transactions, q: newQueries(d, schema, o.TablePrefix)}, nil
}

// Look implements [epoch.Sink]. It waits for no transaction.
func (s *Sink) Look(ctx context.Context, ps []epoch.Partition) (epoch.Fences, error) {
	found := epoch.Fences{}
	err := s.transactions.Patiently(ctx, func(ctx context.Context) error {
		conn, err := s.db.Conn(ctx)
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		for _, p := range ps {
			f, err := s.read(ctx, conn, s.q.fence, p)
			if errors.Is(err, epoch.ErrMissing) {
				continue
			}
			if err != nil {
				return err
			}
			found[p] = f
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("sqlsink: read fence %s: %w", epoch.Names(ps), s.explain(err))
	}
	return found, nil
}

// Facts implements [epoch.Sink]. The sink notices that the file is another one when it reads it.
func (s *Sink) Facts() epoch.Facts { return epoch.Facts{Guarantee: epoch.Transactional} }

// Seed implements [epoch.Sink].
func (s *Sink) Seed(ctx context.Context, starts []epoch.Start) error {
	if len(starts) == 0 {
		return nil
	}
	if err := s.explain(s.seed(ctx, starts)); err != nil {
		return fmt.Errorf("sqlsink: seed %s and %d more: %w", starts[0].Partition, len(starts)-1, err)
	}
	return nil
}

func (s *Sink) seed(ctx context.Context, starts []epoch.Start) error {
	t, err := s.transactions.Begin(ctx)
	if err != nil {
		return err
	}
	defer t.End()
	within := context.WithoutCancel(ctx) // the commit checks ctx again
	if s.q.lockSeeds != "" {
		if _, err := t.Conn.ExecContext(ctx, s.q.lockSeeds); err != nil {
			return err
		}
	}
	known, err := s.topic(within, t.Conn, starts[0].Partition.Group, starts[0].Partition.Topic)
	if err != nil {
		return err
	}
	after := maps.Clone(known)
	if err := after.Seed(starts); err != nil {
		return err
	}
	for p, f := range after {
		if _, ok := known[p]; ok {
			continue
		}
		if _, err := t.Conn.ExecContext(within, s.q.insert, p.Group, p.Topic, p.Number, f.Log, f.Source, int64(f.Next), int64(f.Mark)); err != nil {
			return err
		}
	}
	return t.Commit(ctx)
}

func (s *Sink) topic(ctx context.Context, conn *sql.Conn, group, topic string) (epoch.Fences, error) {
	rows, err := conn.QueryContext(ctx, s.q.topic, group, topic)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	fs := epoch.Fences{}
	for rows.Next() {
		f := epoch.Fence{Origin: epoch.Origin{Partition: epoch.Partition{Group: group, Topic: topic}}}
		if err := scan(rows, &f, &f.Partition.Number); err != nil {
			return nil, err
		}
		fs[f.Partition] = f
	}
	return fs, rows.Err()
}

// Claim implements [epoch.Sink]. It waits for the database's write lock. It cannot end the
// transaction of another process.
func (s *Sink) Claim(ctx context.Context, seen epoch.Fence, c epoch.Claim) (epoch.Fence, error) {
	f, err := s.claim(ctx, seen, c)
	if err != nil {
		return epoch.Fence{}, fmt.Errorf("sqlsink: claim %s: %w", c.Partition, s.explain(err))
	}
	return f, nil
}

func (s *Sink) claim(ctx context.Context, seen epoch.Fence, c epoch.Claim) (epoch.Fence, error) {
	t, err := s.transactions.Begin(ctx)
	if err != nil {
		return epoch.Fence{}, err
	}
	defer t.End()
	within := context.WithoutCancel(ctx) // the commit checks ctx again
	now, err := s.read(within, t.Conn, s.q.fence+s.d.forUpdate(), c.Partition)
	if err != nil {
		return epoch.Fence{}, err
	}
	f, err := epoch.Fences{c.Partition: now}.Claim(seen, c)
	if err != nil {
		return epoch.Fence{}, err
	}
	var next, mark, applied any // NULL leaves a column as it is
	if c.Adopt != nil {
		next, mark, applied = int64(f.Next), int64(f.Mark), f.Applied
	}
	// The statement compares too: even without the lock it replaces only the claim that was seen.
	r, err := t.Conn.ExecContext(within, s.q.claim,
		f.Generation, f.Owner, int64(f.Epoch), f.Claim[:], next, mark, applied,
		c.Partition.Group, c.Partition.Topic, c.Partition.Number, int64(seen.Epoch), seen.Claim[:])
	if err := oneRow(r, err); err != nil {
		return epoch.Fence{}, err
	}
	if err := s.put(within, t.Conn, []operate.Change{operate.EntryOf(operate.Claimed(now, f, operate.TraceID(ctx)))}); err != nil {
		return epoch.Fence{}, err
	}
	return f, t.Commit(ctx)
}

// errNoRow is returned if a statement changed no row although the row, read under the same lock,
// fits. It should not happen.
var errNoRow = errors.New("the fence changed under the transaction's own lock")

// oneRow returns an error unless an UPDATE has changed one row. If nobody read the count, a refused
// transaction would commit.
func oneRow(r sql.Result, err error) error {
	if err != nil {
		return err
	}
	n, err := r.RowsAffected()
	if err != nil {
		return err
	}
	if n != 1 {
		return errNoRow
	}
	return nil
}

func (s *Sink) read(ctx context.Context, q sqltx.Querier, query string, p epoch.Partition) (epoch.Fence, error) {
	f := epoch.Fence{Origin: epoch.Origin{Partition: p}}
	err := scan(q.QueryRowContext(ctx, query, p.Group, p.Topic, p.Number), &f)
	if errors.Is(err, sql.ErrNoRows) {
		return epoch.Fence{}, &epoch.MissingError{Partition: p}
	}
	return f, err
}

// scan reads the columns of before, and then those of a fence.
func scan(row interface{ Scan(...any) error }, f *epoch.Fence, before ...any) error {
	var (
		claim []byte
		since sql.NullString
	)
	if err := row.Scan(slices.Concat(before, []any{&f.Log, &f.Source, &f.Generation, &f.Owner,
		&f.Epoch, &claim, &f.Next, &f.Mark, &f.Applied,
		&f.SetUnder, &f.Pause.Mode, &f.Pause.By, &f.Pause.Reason, &since})...); err != nil {
		return err
	}
	f.Pause.Since = forPeople(since.String)
	if len(claim) != len(f.Claim) {
		return fmt.Errorf("the claim in the fence of %s has %d bytes, want %d", f.Partition, len(claim), len(f.Claim))
	}
	copy(f.Claim[:], claim)
	return nil
}

// explain marks an error that passes as [epoch.ErrTransient] and one about the state of the
// database as [epoch.ErrUnhealthy], and adds what an operator can do.
func (s *Sink) explain(err error) error {
	safe := inert.Error(err) // an argument's method may have returned it
	for _, settled := range []error{epoch.ErrTransient, epoch.ErrUnhealthy, epoch.ErrTxEndedByHandler} {
		if errors.Is(safe, settled) {
			return err
		}
	}
	var foreign *foreignError
	if errors.As(safe, &foreign) {
		return err
	}
	fault := s.d.transactions().Fault(safe)
	if fault == nil || errors.Is(safe, epoch.ErrInDoubt) && !errors.Is(fault, epoch.ErrUnhealthy) {
		return err
	}
	return fmt.Errorf("%w: %w", fault, safe)
}

// Migrations returns the schema as SQL for your own migration tool: see package migrations.
func Migrations(d Dialect, o Options) ([]migrations.Migration, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	return d.tables(o.TablePrefix).Migrations(), nil
}

// Migrate creates the tables of sinks and of the outbox (package sqloutbox), or brings them up to date. It does so
// in one transaction; in MariaDB, where each CREATE TABLE commits, call it again if it fails. Of concurrent calls,
// one migrates and the others wait. It leaves newer tables as they are; those of a later major number are
// [migrations.ErrNewer]. It needs the privilege to create tables.
func Migrate(ctx context.Context, db *sql.DB, d Dialect, o Options) error {
	o, err := o.withDefaults()
	if err != nil {
		return err
	}
	if err := sqltx.Migrate(ctx, db, d.transactions(), d.tables(o.TablePrefix), o.limits()); err != nil {
		return fmt.Errorf("sqlsink: migrate %s: %w", d, err)
	}
	return nil
}

// OpenDB returns a handler's transaction as a [sql.DB], for gorm, ent, bun, sqlx and other
// libraries that need more than a [Tx]. What they write is committed with the fence. Begin sets a
// savepoint. Commit and Rollback of the [sql.Tx] release it or go back to it.
//
// A [sql.Tx] must be committed or rolled back before the handler returns and before its context
// ends. Otherwise the message fails, and all its handler's writes are rolled back. It also fails if
// the end of a [sql.Tx] would take back, or keep, what was written through another handle meanwhile:
// write through the Tx that was begun last, and end it first. The DB is closed when the handler returns.
func OpenDB(tx *Tx) *sql.DB { return tx.call.OpenDB() }
