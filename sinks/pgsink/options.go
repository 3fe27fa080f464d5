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
	"github.com/epochfence/epochfence/internal/pgschema"
	"github.com/epochfence/epochfence/internal/reach"
)

// Options say how a [Sink] works, and where its tables are. The zero Options work. [Migrate],
// [Grant] and [Open] are given the same.
type Options struct {
	// Schema is where the tables and functions are. Empty means
	// [DefaultSchema].
	Schema string

	// StatementTimeout bounds each statement of a Commit, on the server
	// (statement_timeout). Zero means 30 s. Where the context of the Commit
	// ends sooner, the server's bound is a second after that.
	StatementTimeout time.Duration

	// IdleTimeout bounds each pause between two statements of a Commit, on the
	// server (idle_in_transaction_session_timeout): a process that is frozen or
	// cut off in its transaction loses it then, with the rows it locked, if
	// the claim that follows could not end it at once. Zero means 30 s. Where
	// the context of the Commit ends sooner, the bound is a second after that.
	IdleTimeout time.Duration

	// LockTimeout bounds each wait for a lock in a Commit (lock_timeout). Zero
	// means 10 s. It is nine tenths of what StatementTimeout and the context of
	// the Commit leave if that is less, so that a wait for a lock ends as one,
	// which is [epoch.ErrTransient], and not as a statement that took too long; and
	// it is less where other messages wait for this transaction ([epoch.WithLockWait]).
	LockTimeout time.Duration

	// ClaimTimeout bounds how long a Claim waits for the row of its fence,
	// and a Seed for another one. Zero means 3 s.
	ClaimTimeout time.Duration

	// CallTimeout bounds Fence, Seed and Claim as a whole, and each try of
	// Open. Zero means 15 s.
	CallTimeout time.Duration

	// StartTimeout bounds how long Open, Migrate and Grant wait for a server that
	// cannot be reached, before they give up. What it waits for is logged after a second,
	// and then every ten. Zero means 30 s.
	StartTimeout time.Duration

	// Isolation is that of a Commit. Empty means READ COMMITTED, which is
	// enough for the fence. A stricter one is for the handler's sake; the
	// database may then refuse a commit with a serialization failure, which is
	// an error like a handler's own.
	Isolation pgx.TxIsoLevel

	// Logger is told of a server that is waited for, and, once, when the role
	// may not end the transaction of a claim that was replaced. Nil means [slog.Default].
	Logger *slog.Logger
}

// maxTimeout keeps a mistyped option from being no bound at all.
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
		{"StatementTimeout", &o.StatementTimeout, 30 * time.Second},
		{"IdleTimeout", &o.IdleTimeout, 30 * time.Second},
		{"LockTimeout", &o.LockTimeout, 10 * time.Second},
		{"ClaimTimeout", &o.ClaimTimeout, 3 * time.Second},
		{"CallTimeout", &o.CallTimeout, 15 * time.Second},
		{"StartTimeout", &o.StartTimeout, reach.Timeout},
	} {
		if *d.v == 0 {
			*d.v = d.zero
		}
		if *d.v < time.Millisecond || *d.v > maxTimeout {
			return o, fmt.Errorf("pgsink: Options.%s is %v; want 0 for the default of %v, or 1ms to %v", d.name, *d.v, d.zero, maxTimeout)
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

// grace is how long after the end of a context the server's own bounds fall, so
// that a process that is alive sees its context end, and not a server's error.
const grace = time.Second

// bounds are the server's bounds for a transaction of ctx, as its settings take them.
func (o *Options) bounds(ctx context.Context) (statement, idle, lock, whole string) {
	left := o.left(ctx)
	late := min(left+grace, maxTimeout)
	wait := min(o.LockTimeout, min(o.StatementTimeout, left)/10*9)
	if asked, ok := epoch.LockWait(ctx); ok {
		wait = min(wait, asked)
	}
	return setting(min(o.StatementTimeout, late)), setting(min(o.IdleTimeout, late)), setting(wait), setting(late)
}

// left is how much time ctx leaves.
func (o *Options) left(ctx context.Context) time.Duration {
	if deadline, ok := ctx.Deadline(); ok {
		return min(max(time.Until(deadline), 0), maxTimeout)
	}
	return maxTimeout
}

func ms(d time.Duration) int32 { return int32(max(d.Milliseconds(), 1)) }

// setting is d as the server shows it: in the largest unit that leaves no rest.
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
