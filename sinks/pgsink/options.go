package pgsink

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/sql/pgschema"
	"github.com/epochfence/epochfence/internal/waits"
)

// This file has the options and their defaults, and decides which timeouts of the server a
// transaction gets from them and from its context.

// Options configure a [Sink]. The zero value works. Use the same Options for [Migrate], [Grant]
// and [Open].
type Options struct {
	// Schema is the schema of the tables and functions. Defaults to [DefaultSchema].
	Schema string

	// StatementTimeout limits each statement of a Commit on the server (statement_timeout). It is at
	// most the time that the Commit's context leaves when the transaction begins, plus 1 s: that of
	// consumer.Options.BatchTimeout, or of lease.Options.MaxStall. Defaults to that time, and to 30 s
	// for a context without a deadline.
	StatementTimeout time.Duration

	// IdleTimeout limits each pause between two statements of a Commit on the server
	// (idle_in_transaction_session_timeout), with the same default and the same limit as
	// StatementTimeout. So a process that is frozen in its transaction loses the transaction and its
	// row locks, if no claim has ended it before.
	IdleTimeout time.Duration

	// LockTimeout limits each wait for a lock in a Commit (lock_timeout). It is reduced to nine
	// tenths of the time that StatementTimeout and the Commit's context leave, so that a wait for
	// a lock ends as [epoch.ErrTransient], and reduced further while other messages wait for the
	// transaction ([epoch.WithLockWait]). Defaults to 10 s.
	LockTimeout time.Duration

	// ClaimTimeout limits how long a Claim waits for the row of its fence, and a Seed for another
	// Seed. Defaults to 3 s.
	ClaimTimeout time.Duration

	// CallTimeout limits Fence, Seed and Claim as a whole, and each attempt of Open. Defaults to
	// 15 s.
	CallTimeout time.Duration

	// StartTimeout limits how long Open, Migrate and Grant wait for a server that cannot be
	// reached. The wait is logged after 1 s and then every 10 s. Defaults to 30 s.
	StartTimeout time.Duration

	// Isolation is the isolation level of a Commit. The fence needs no more than READ COMMITTED.
	// With a stricter level, the database may refuse a commit with a serialization failure
	// ([epoch.ErrTransient]). Defaults to READ COMMITTED.
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

// bounds returns the server's timeouts for a transaction of ctx, in the form of its settings.
func (o *Options) bounds(ctx context.Context) (statement, idle, lock, whole string) {
	left := o.left(ctx)
	late := min(left+grace, maxTimeout)
	statementLimit := limitIn(ctx, o.StatementTimeout)
	wait := min(o.LockTimeout, min(statementLimit, left)/10*9)
	if asked, ok := epoch.LockWait(ctx); ok {
		wait = min(wait, asked)
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
