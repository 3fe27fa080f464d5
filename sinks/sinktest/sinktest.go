package sinktest

import (
	"context"
	"testing"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

// Database is what the suite needs of one empty database. The fields are
// called from several goroutines at a time, but for their TX, which is used
// by one.
type Database[TX any] struct {
	// Open returns a sink on this database, as one more process would have it:
	// with connections of its own. It is called a few times for one database.
	// The sink goes when t ends.
	Open func(t testing.TB) epoch.Sink[TX]

	// Append adds value to the named list through tx: the suite's effects. A
	// list need not be made first. Transactions that append to different lists
	// must not disturb each other; those that append to one should not either.
	Append func(ctx context.Context, tx TX, list, value string) error

	// List returns what was appended to a list and committed, in the order it
	// was appended, read beside any transaction.
	List func(ctx context.Context, list string) ([]string, error)

	// Commit ends tx behind the sink's back, as a handler may that sends COMMIT
	// by itself. It is nil where TX gives no way to do so.
	Commit func(ctx context.Context, tx TX) error

	// Lock makes each Append wait until unlock is called, as another transaction
	// does that has locked what they write to. It is nil where nothing can.
	Lock func(t testing.TB) (unlock func())

	// Aside runs a statement on a connection that has nothing to do with the sink. Only
	// [Idioms] needs it.
	Aside func(ctx context.Context, query string) error

	// Operator returns an operator of the sink, and DeadLetter is the
	// sink's, for consumer.Handlers.OnFailure. Only [RunOperated] needs them.
	Operator   func(t testing.TB) operate.Operator
	DeadLetter func(ctx context.Context, tx TX, m epoch.Message, e epoch.Epoch, cause error) error
}

// Run plays every history on one or two databases of its own. create makes an
// empty database, which goes when t ends.
//
// Histories of what only some sinks can do are played where the sink says that it can: of
// commits that hold a claim where it is an [epoch.Holding], and of several partitions in a
// transaction where [epoch.BoundsOf] allows it.
func Run[TX any](t *testing.T, create func(t testing.TB) Database[TX]) {
	for _, h := range suits(create(t).Open(t)) {
		run(t, h, create)
	}
}

// suits returns the histories of Run that the sink can play.
func suits[TX any](sink epoch.Sink[TX]) []history {
	return able(sink, histories, together, concat(held, underHeldClaims(handlers), underHeldClaims(abandoned[:2])))
}

// able returns those that any sink can play, and those of what this one can do.
func able[TX any](sink epoch.Sink[TX], every, together, held []history) []history {
	if epoch.BoundsOf(sink).Partitions != 1 {
		every = concat(every, together)
	}
	if _, ok := epoch.As[epoch.Holding[TX]](sink); ok {
		every = concat(every, held)
	}
	return every
}

// RunUnblocked plays the histories that only a database can pass in which a
// process frozen with its transaction open, effects written, does not hold up
// the next claim, because it locks rows and the fence last (rule R4), or because
// the claim ends the transaction it finds (R12). A database with one lock for
// all writers, such as SQLite, cannot.
func RunUnblocked[TX any](t *testing.T, create func(t testing.TB) Database[TX]) {
	for _, h := range able(create(t).Open(t), unblocked, unblockedTogether, unblockedHeld) {
		run(t, h, create)
	}
}

// RunOperated plays the histories in which operators act on fences and dead letters
// while consumers are at work. The sink is an [operate.Operable].
func RunOperated[TX any](t *testing.T, create func(t testing.TB) Database[TX]) {
	for _, h := range operated {
		run(t, h, create)
	}
}

func run[TX any](t *testing.T, h history, create func(t testing.TB) Database[TX]) {
	t.Run(h.claim, func(t *testing.T) {
		h.playOn(t, patience, func(t testing.TB) Database[any] { return erase(create(t)) })
	})
}

// history is one claim about sinks and the play that shows it.
type history struct {
	claim string // in words
	rules string // of the design that it bears on
	play  func(w *world)
}

// histories are what every sink must pass.
var histories = concat(attacks, claims, seeds, commits, handlers, abandoned, names, random)

func concat(hs ...[]history) []history {
	var all []history
	for _, h := range hs {
		all = append(all, h...)
	}
	return all
}

// erase forgets the type of the transaction, so that histories need no type
// parameter.
func erase[TX any](db Database[TX]) Database[any] {
	e := Database[any]{
		Open: func(t testing.TB) epoch.Sink[any] { return erased[TX]{db.Open(t)} },
		Append: func(ctx context.Context, tx any, list, value string) error {
			return db.Append(ctx, tx.(TX), list, value)
		},
		List:     db.List,
		Lock:     db.Lock,
		Aside:    db.Aside,
		Operator: db.Operator,
	}
	if db.DeadLetter != nil {
		e.DeadLetter = func(ctx context.Context, tx any, m epoch.Message, under epoch.Epoch, cause error) error {
			return db.DeadLetter(ctx, tx.(TX), m, under, cause)
		}
	}
	if db.Commit != nil {
		e.Commit = func(ctx context.Context, tx any) error { return db.Commit(ctx, tx.(TX)) }
	}
	return e
}

type erased[TX any] struct{ epoch.Sink[TX] }

func (e erased[TX]) Commit(ctx context.Context, as []epoch.Advance, calls ...func(context.Context, any) error) error {
	typed := make([]func(context.Context, TX) error, len(calls))
	for i, call := range calls {
		typed[i] = func(ctx context.Context, tx TX) error { return call(ctx, tx) }
	}
	return e.Sink.Commit(ctx, as, typed...)
}

func (e erased[TX]) Look(ctx context.Context, ps []epoch.Partition) (epoch.Fences, error) {
	return epoch.Look(ctx, e.Sink, ps)
}

func (e erased[TX]) Bounds() epoch.Bounds { return epoch.BoundsOf(e.Sink) }

func (e erased[TX]) CommitHeld(ctx context.Context, h epoch.Hold, apply func(context.Context, any) error) error {
	return epoch.CommitHeld(ctx, e.Sink, h, func(ctx context.Context, tx TX) error { return apply(ctx, tx) })
}

// operable is what the sink has for operators, if anything.
func (e erased[TX]) operable() (operate.Operable[any], bool) {
	o, ok := epoch.As[operate.Operable[TX]](e.Sink)
	return erasedOperable[TX]{o}, ok
}

type erasedOperable[TX any] struct{ operate.Operable[TX] }

func (e erasedOperable[TX]) Replayed(ctx context.Context, tx any, r operate.RequestedReplay, under epoch.Epoch) error {
	return e.Operable.Replayed(ctx, tx.(TX), r, under)
}
