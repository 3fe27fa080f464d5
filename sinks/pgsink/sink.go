package pgsink

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/sql/pgschema"
	"github.com/epochfence/epochfence/internal/waits"
)

// This file opens a sink: its options, the server's timeouts that follow from them, the SQL that it
// sends, and whether schema, role and server will do. The functions' own SQL is in migrations.

// Options configure a [Sink]. The zero value works. Use the same Options for [Migrate], [Grant]
// and [Open].
type Options struct {
	// Schema is the schema of the tables and functions. Set it to keep the fences of several
	// applications in one database apart. Defaults to [DefaultSchema].
	Schema string

	// StatementTimeout limits each statement of a Commit on the server (statement_timeout). It is
	// at most the time that the Commit's context leaves when the transaction begins, plus 1 s: that
	// of consumer.Options.BatchTimeout, or of lease.Options.MaxStall. Lower it so that a single
	// slow statement ends before its transaction does. Defaults to that time, and to 30 s for a
	// context without a deadline.
	StatementTimeout time.Duration

	// IdleTimeout limits each pause between two statements of a Commit on the server
	// (idle_in_transaction_session_timeout), with the same default and the same limit as
	// StatementTimeout. So a process that is frozen in its transaction loses the transaction and
	// its row locks, if no claim has ended it before. Lower it so that the locks end sooner. It
	// must be longer than a handler waits for other systems between two statements.
	IdleTimeout time.Duration

	// LockTimeout limits each wait for a lock in a Commit (lock_timeout). It is reduced to nine
	// tenths of the time that StatementTimeout and the Commit's context leave, so that a wait for a
	// lock ends as [epoch.ErrTransient], and reduced further while other messages wait for the
	// transaction ([epoch.TxOptions]). Lower it so that a transaction is tried again sooner if
	// another application holds its locks. Defaults to 10 s.
	LockTimeout time.Duration

	// ClaimTimeout limits how long a Claim waits for the row of its fence, and a Seed for another
	// Seed. Raise it if claims fail because another transaction holds the fence for longer.
	// Defaults to 3 s.
	ClaimTimeout time.Duration

	// CallTimeout limits Fence, Seed and Claim as a whole, and each attempt of Open. Raise it for a
	// database that is slow to connect to. Defaults to 15 s.
	CallTimeout time.Duration

	// StartTimeout limits how long Open, Migrate and Grant wait for a server that cannot be
	// reached. The wait is logged after 1 s and then every 10 s. Raise it if the program starts
	// long before its server. Defaults to 30 s.
	StartTimeout time.Duration

	// Isolation is the isolation level of a Commit. The fence needs no more than READ COMMITTED.
	// With a stricter level, the database may refuse a commit with a serialization failure
	// ([epoch.ErrTransient]). Set it if the invariants of handlers need a stricter level. Defaults
	// to READ COMMITTED.
	Isolation pgx.TxIsoLevel

	// Logger receives lines while the sink waits for a server, and when another server or a
	// restarted one answers. It receives a line, once, if the role may not end the transaction of a
	// replaced claim, and if a handler has rolled back and returned nil. Defaults to [slog.Default].
	Logger *slog.Logger
}

// maxTimeout is the largest timeout, so that a mistyped option still limits something.
const maxTimeout = 24 * time.Hour

func (o Options) withDefaults() (Options, error) {
	o.Schema = cmp.Or(o.Schema, DefaultSchema)
	if err := pgschema.CheckIdentifier("Options.Schema", o.Schema); err != nil {
		return o, fmt.Errorf("pgsink: %w", err)
	}
	for _, d := range []struct {
		name string
		v    *time.Duration
		zero time.Duration
	}{
		{"StatementTimeout", &o.StatementTimeout, 0}, // see limitIn
		{"IdleTimeout", &o.IdleTimeout, 0},
		{"LockTimeout", &o.LockTimeout, 10 * time.Second},
		{"ClaimTimeout", &o.ClaimTimeout, 3 * time.Second},
		{"CallTimeout", &o.CallTimeout, 15 * time.Second},
		{"StartTimeout", &o.StartTimeout, waits.Timeout},
	} {
		if *d.v == 0 {
			*d.v = d.zero
			continue
		}
		if *d.v < time.Millisecond || *d.v > maxTimeout {
			return o, fmt.Errorf("pgsink: Options.%s is %v; want 0 for the default, or 1ms to %v", d.name, *d.v, maxTimeout)
		}
	}
	switch o.Isolation {
	case "":
		o.Isolation = pgx.ReadCommitted
	case pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable:
	default:
		return o, fmt.Errorf("pgsink: Options.Isolation is %q; want %q, %q or %q", o.Isolation, pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable)
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return o, nil
}

func (o *Options) wait() pgschema.Wait { return pgschema.Wait{Timeout: o.StartTimeout, Log: o.Logger} }

// grace is the time from the end of a context to the server's own timeouts, so that a live process
// sees its context end and not an error of the server.
const grace = time.Second

// bounds returns the server's timeouts for a transaction of ctx, in the form of its settings. lockWait
// is that of its [epoch.TxOptions].
func (o *Options) bounds(ctx context.Context, lockWait time.Duration) (statement, idle, lock, whole string) {
	left := o.left(ctx)
	late := min(left+grace, maxTimeout)
	statementLimit := limitIn(ctx, o.StatementTimeout)
	wait := min(o.LockTimeout, min(statementLimit, left)/10*9)
	if lockWait > 0 {
		wait = min(wait, lockWait)
	}
	return setting(min(statementLimit, late)), setting(min(limitIn(ctx, o.IdleTimeout), late)), setting(wait), setting(late)
}

// limitIn returns the limit of an option for a transaction of ctx.
func limitIn(ctx context.Context, limit time.Duration) time.Duration {
	if _, bounded := ctx.Deadline(); limit == 0 && bounded {
		return maxTimeout
	}
	return cmp.Or(limit, 30*time.Second)
}

func (o *Options) left(ctx context.Context) time.Duration {
	if deadline, ok := ctx.Deadline(); ok {
		return min(max(time.Until(deadline), 0), maxTimeout)
	}
	return maxTimeout
}

func ms(d time.Duration) int32 { return int32(max(d.Milliseconds(), 1)) }

// setting formats d as the server shows it: in the largest unit that leaves no remainder.
func setting(d time.Duration) string {
	n, unit := ms(d), "ms"
	for _, larger := range []struct {
		of   int32
		name string
	}{{1000, "s"}, {60, "min"}, {60, "h"}, {24, "d"}} {
		if n%larger.of != 0 {
			break
		}
		n, unit = n/larger.of, larger.name
	}
	return strconv.Itoa(int(n)) + unit
}

// Sink stores fences in a schema of a PostgreSQL database. It is safe for concurrent use. It needs
// no Close, because the caller owns the pool.
type Sink struct {
	pool    *pgxpool.Pool
	options Options
	sql     statements
	denied  sync.Once   // logs once that evict lacks a privilege
	undoing sync.Once   // logs once that a handler rolled back and returned nil
	unnamed atomic.Bool // handlers deallocate prepared statements: see [fenced.commitUnnamed]
	varies  atomic.Bool // a session changed between two transactions: see [Sink.expect]
	numbers bool        // the role is an application's, which adds rows to tables with identities: see [Sink.follows]
	server  server
	proofs  proofs
	fences  coalescer[epoch.Partition, []epoch.Fence]
	claims  coalescer[bid, epoch.Fence]
}

// The suite skips the histories of what a sink does not implement, so that is said here.
var (
	_ epoch.Sink[Tx]    = (*Sink)(nil)
	_ epoch.Holding[Tx] = (*Sink)(nil)
)

// statements are the SQL texts that the sink sends. The casts give the type of each parameter, so
// that pgx neither asks the server nor guesses in any query mode.
type statements struct {
	begin, enter, state, lock, lookEarly string // how a transaction begins
	restore, hold                        string // how it ends, before COMMIT
	shared, alone                        advanceStatements
	server, behind                       string
	look, seed, claim                    string
	write, rows, contents, requests      string // of the ledger
	peers, suspect, leave                string
}

// advanceStatements return the nonce, and whether the session was changed.
type advanceStatements struct{ several, one string }

func newStatements(o Options) statements {
	s := pgschema.Quote(o.Schema) + "."
	several := s + "advance($1::text[], $2::text[], $3::int[], $4::text[]::uuid[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint, $9::bigint, $10::text"
	one := s + "advance_one($1::text, $2::text, $3::int, $4::text::uuid, $5::bigint, $6::bigint, $7::bigint, $8::bigint, $9::bigint, $10::text"
	return statements{
		begin:  "begin isolation level " + string(o.Isolation),
		server: "select system, timeline, started from " + s + "server()",
		behind: "select " + s + "identity_behind()",
		look:   "select " + fenceColumns + " from " + s + "read_fences($1::text[], $2::text[], $3::int[])",
		seed: "select " + s + "seed($1::text, $2::text, $3::int, $4::int[], $5::text[], $6::text[], " +
			"$7::bigint[], $8::bigint[], $9::bigint[], $10::bigint[])",
		claim: "select " + fenceColumns + " from " + s + "claim($1::text, $2::text, $3::int, $4::int, $5::bigint, " +
			"$6::text::uuid, $7::text, $8::text, $9::bigint, $10::bigint, $11::text, $12::text::uuid, $13::bigint, $14::bigint, $15::text)",
		enter: "select pg_catalog.set_config('epochfence.transaction', pg_catalog.pg_current_xact_id()::text, true), " +
			"pg_catalog.set_config('statement_timeout', $1::text, true), " +
			"pg_catalog.set_config('idle_in_transaction_session_timeout', $2::text, true), " +
			"pg_catalog.set_config('lock_timeout', $3::text, true), " +
			"case when pg_catalog.current_setting('transaction_timeout', true) is not null " + // PostgreSQL 17
			"then pg_catalog.set_config('transaction_timeout', $4::text, true) end, " +
			"pg_catalog.pg_advisory_xact_lock_shared($5::bigint)",
		state: "select pg_catalog.set_config('epochfence.session', " + sessionState + ", true), " +
			"pg_catalog.set_config('epochfence.role', pg_catalog.current_setting('role'), true)",
		lock:      "select pg_catalog.pg_advisory_xact_lock_shared(k) from pg_catalog.unnest($1::bigint[]) k",
		lookEarly: "select " + s + "look_early($1::text[], $2::text[], $3::int[], $4::text[]::uuid[], $5::bigint[], $6::text)",
		shared: advanceStatements{
			several: "select " + several + ", " + sessionChanged("$11") + "), 'false'",
			one:     "select " + one + ", " + sessionChanged("$11") + "), 'false'",
		},
		alone: advanceStatements{
			several: "select " + several + ", false), " + sessionChanged("$11") + "::text",
			one:     "select " + one + ", false), " + sessionChanged("$11") + "::text",
		},
		hold:    "select " + s + "hold($1::text, $2::text, $3::int, $4::text::uuid, $5::bigint, $6::bigint, $7::text), " + sessionChanged("$8") + "::text",
		restore: "select pg_catalog.set_config('role', r, true) from (select coalesce($1::text, pg_catalog.current_setting('epochfence.role', true))) s (r) where pg_catalog.length(r) > 0",
		write: "select " + s + "write_row($1::text, $2::bigint, $3::bigint, $4::boolean, $5::text, $6::text, $7::text, $8::int, " +
			"$9::bigint, $10::bigint, $11::text, $12::text, $13::text, $14::text, $15::bytea, $16::bytea, $17::text)",
		rows: "select " + rowColumns + " from " + s + "rows($1::text, $2::bigint, $3::text, $4::text, $5::text, $6::text, $7::int, " +
			"$8::text[], $9::bigint, $10::bigint, $11::timestamptz, $12::boolean, $13::bigint)",
		contents: "select id, cause, message_key, message_value, message_headers from " + s + "contents($1::text, $2::bigint[])",
		requests: "select acts, " + rowColumns + ", message_key, message_value, message_headers from " +
			s + "requests($1::text[], $2::text[], $3::int[], $4::bigint, $5::bigint)",
		peers: "select run, name, host, member, patience, silent, signed, gone, suspected, suspected_by, members, silents from " +
			s + "look_at_peers($1::text, $2::text, $3::text, $4::text, $5::text, $6::bigint, $7::bigint)",
		suspect: "select " + s + "suspect_peer($1::text, $2::text, $3::text, $4::bigint, $5::text)",
		leave:   "select " + s + "leave_peers($1::text, $2::text)",
	}
}

// minServer is PostgreSQL 14, the oldest version that the tests run on.
const minServer = 140000

// Open returns a sink on a pool. It checks that the schema exists and has this program's version,
// and that the role may use it. Its errors match [migrations.ErrNotMigrated],
// [migrations.ErrOlder], [migrations.ErrNewer] and [ErrPermission]. If the sequence of an identity
// column is behind its rows, as after logical replication, the error matches [epoch.ErrUnhealthy]
// and has the statement that fixes it. The sink checks the sequences again when another server is
// behind the pool.
//
// If the server cannot be reached yet, Open waits up to [Options.StartTimeout] and logs the name of
// the server. Refused credentials, a missing database, an encoding other than UTF8 and an unusable
// server, such as a standby, are errors at once.
func Open(ctx context.Context, pool *pgxpool.Pool, o Options) (*Sink, error) {
	return open(ctx, pool, o, appFunctions)
}

func open(ctx context.Context, pool *pgxpool.Pool, o Options, functions []string) (*Sink, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Sink{pool: pool, options: o, sql: newStatements(o), server: newServer(o.Logger), numbers: slices.Contains(functions, "identity_behind")}
	s.fences.many, s.claims.many = s.fenceMany, s.claimMany
	err = o.wait().Reach(ctx, pool, func(ctx context.Context) error {
		ctx, cancel := s.bounded(ctx)
		defer cancel()
		if err := s.check(ctx, functions); err != nil {
			return ended(ctx, explain(err))
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("pgsink: open schema %s: %w", pgschema.Quote(o.Schema), err)
	}
	return s, nil
}

func (s *Sink) check(ctx context.Context, functions []string) error {
	grants := grantApplication
	if !slices.Contains(functions, "claim") {
		grants = grantOperator
	}
	var (
		encoding, role         string
		server                 int
		standby, exists, usage bool
		found, executable      []string
	)
	err := s.pool.QueryRow(ctx, `
		select current_setting('server_encoding'), current_user::text, current_setting('server_version_num')::int,
			pg_catalog.pg_is_in_recovery(), n.oid is not null,
			coalesce(pg_catalog.has_schema_privilege(n.oid, 'USAGE'), false),
			array(select p.proname::text from pg_catalog.pg_proc p where p.pronamespace = n.oid),
			array(select p.proname::text from pg_catalog.pg_proc p
				where p.pronamespace = n.oid and pg_catalog.has_function_privilege(p.oid, 'EXECUTE'))
		from (select) one left join pg_catalog.pg_namespace n on n.nspname = $1::text`, s.options.Schema).
		Scan(&encoding, &role, &server, &standby, &exists, &usage, &found, &executable)
	switch {
	case err != nil:
		return err
	case server < minServer:
		return fmt.Errorf("the server is PostgreSQL %d; want 14 or newer", server/10000)
	case encoding != "UTF8":
		return fmt.Errorf("the database's encoding is %s; want UTF8", encoding)
	case standby:
		return errors.New("the server is a standby, which is read-only: connect to the primary (target_session_attrs=read-write)")
	case !exists || !slices.Contains(found, "schema_version"):
		return pgschema.Remedy.NotMigrated()
	case !usage:
		return fmt.Errorf("%w: role %q has no USAGE on the schema: %s", ErrPermission, role, grants)
	case !slices.Contains(executable, "schema_version"):
		return fmt.Errorf("%w: role %q may not execute schema_version: %s", ErrPermission, role, grants)
	}
	var version int
	if err := s.pool.QueryRow(ctx, "select "+pgschema.Quote(s.options.Schema)+".schema_version()").Scan(&version); err != nil {
		return err
	}
	if err := schema(s.options).Check(version); err != nil {
		return err
	}
	if known := schema(s.options).Known(); version > known {
		s.options.Logger.Info("the schema is newer than this program, which works on it", "schema", s.options.Schema, "version", version, "known", known)
	}
	for _, f := range functions {
		if !slices.Contains(executable, f) {
			return fmt.Errorf("%w: role %q may not execute %s: %s", ErrPermission, role, f, grants)
		}
	}
	return s.reading(ctx, func(*pgx.Batch) {}, func(pgx.BatchResults) error { return nil })
}

func (s *Sink) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	d := s.options.CallTimeout
	return context.WithTimeoutCause(ctx, d, fmt.Errorf("no answer within %v: %w", d, context.DeadlineExceeded))
}
