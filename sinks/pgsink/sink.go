package pgsink

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/sql/pgschema"
	"github.com/epochfence/epochfence/operate"
)

// This file has the SQL that the sink sends, and decides at Open whether schema, role and server
// will do. The functions' own SQL is in migrations.

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
	numbers bool        // the role adds rows to tables with identities: see [Sink.follows]
	server  server
	proofs  proofs
	fences  coalescer[epoch.Partition, lookedUp]
	claims  coalescer[bid, epoch.Fence]
	hangs   coalescer[epoch.Partition, []operate.Decision]
}

// The suite skips the histories of what a sink does not implement, so that is said here.
var (
	_ epoch.Sink[Tx]    = (*Sink)(nil)
	_ epoch.Looker      = (*Sink)(nil)
	_ epoch.Replaceable = (*Sink)(nil)
	_ epoch.Holding[Tx] = (*Sink)(nil)
)

// statements are the SQL texts that the sink sends. The casts give the type of each parameter, so
// that pgx neither asks the server nor guesses in any query mode.
type statements struct {
	begin, enter, state, lock, lookEarly string // how a transaction begins
	restore, hold                        string // how it ends, before COMMIT
	shared, alone                        advanceStatements
	server, behind                       string
	read, look, seed, claim, deadLetter  string
	record, hangs, alive, gone           string // see [operate.Operable]
	requests, replayed, replayFailed     string
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
		read:   "select " + fenceColumns + " from " + s + "read_fence($1::text, $2::text, $3::int)",
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
		deadLetter: "select " + s + "dead_letter($1::text, $2::text, $3::int, $4::bigint, $5::bigint, " +
			"$6::bigint, $7::int, $8::bytea, $9::bytea, $10::bytea[], $11::bytea[], $12::bigint[], $13::text)",
		record: "select " + s + "record_decisions($1::text[], $2::text[], $3::text[], $4::int[], $5::bigint[], $6::text[]::uuid[], " +
			"$7::text[], $8::bigint[], $9::bigint[], $10::text[], $11::text[])",
		hangs: "select " + decisionColumns + " from " + s + "hangs($1::text[], $2::text[], $3::int[], $4::bigint)",
		alive: "select " + s + "alive($1::text, $2::text, $3::text, $4::text, $5::bigint, $6::text, $7::text, $8::bigint)",
		gone:  "select " + s + "gone($1::text)",
		requests: "select acts, id, request, group_name, topic, partition, message_offset, message_seconds, message_nanos, key, value, header_keys, header_values from " +
			s + "requests($1::text[], $2::text[], $3::int[], $4::bigint, $5::bigint)",
		replayed:     "select " + s + "replayed($1::bigint, $2::bigint, $3::bigint)",
		replayFailed: "select " + s + "replay_failed($1::bigint, $2::bigint, $3::bigint, $4::text)",
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
	s.fences.many, s.claims.many, s.hangs.many = s.fenceMany, s.claimMany, s.hangsMany
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
		return remedy.NotMigrated()
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
	if err := schema(s.options).CheckOrigin(ctx, s.pool, version); err != nil {
		return err
	}
	for _, f := range functions {
		if !slices.Contains(executable, f) {
			return fmt.Errorf("%w: role %q may not execute %s: %s", ErrPermission, role, f, grants)
		}
	}
	return s.reading(ctx, nil, nil)
}

func (s *Sink) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	d := s.options.CallTimeout
	return context.WithTimeoutCause(ctx, d, fmt.Errorf("no answer within %v: %w", d, context.DeadlineExceeded))
}

// Guarantee returns [epoch.Transactional].
func (s *Sink) Guarantee() epoch.Guarantee { return epoch.Transactional }

// Seed implements [epoch.Sink].
func (s *Sink) Seed(ctx context.Context, starts []epoch.Start) error {
	if err := (epoch.Fences{}).Seed(starts); err != nil {
		return fmt.Errorf("pgsink: %w", err)
	}
	if len(starts) == 0 {
		return nil
	}
	var (
		numbers         []int32
		logs, sources   []string
		nexts, earliest []int64
		nextMarks       []int64
		earliestMarks   []int64
	)
	for _, st := range starts {
		if err := checkOrigin(st.Origin); err != nil {
			return err
		}
		numbers = append(numbers, st.Partition.Number)
		logs = append(logs, st.Log)
		sources = append(sources, st.Source)
		nexts = append(nexts, int64(st.Next.Offset))
		nextMarks = append(nextMarks, int64(st.Next.Mark))
		earliest = append(earliest, int64(st.Earliest.Offset))
		earliestMarks = append(earliestMarks, int64(st.Earliest.Mark))
	}
	group, topic := starts[0].Partition.Group, starts[0].Partition.Topic
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	err := s.transact(ctx, harmless, func(b *pgx.Batch) {
		b.Queue(s.sql.seed, group, topic, ms(s.options.ClaimTimeout), numbers, logs, sources, nexts, nextMarks, earliest, earliestMarks)
	}, func(r pgx.BatchResults) error {
		_, err := r.Exec()
		return err
	})
	if refused := refusedSeed(err, starts); refused != nil {
		err = refused
	} else if err != nil {
		err = ours(ended(ctx, explain(err)))
	}
	if err != nil {
		return fmt.Errorf("pgsink: seed %s and %d more: %w", starts[0].Partition, len(starts)-1, err)
	}
	return nil
}
