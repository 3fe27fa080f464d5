package sinktest

import (
	"context"
	"testing"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

// Database is one empty database for the suite. Several goroutines call the fields concurrently,
// but only one uses a TX.
type Database[TX any] struct {
	// Open returns a sink on this database with connections of its own, as another process would.
	// It is called a few times for each database. Open closes the sink with t.Cleanup.
	Open func(t testing.TB) epoch.Sink[TX]

	// Append adds value to the named list through tx: the suite's effects. A list need not exist
	// before. Transactions that append to different lists must not block each other; those that
	// append to the same list should not either.
	Append func(ctx context.Context, tx TX, list, value string) error

	// List returns the committed values of a list in the order of their appends. It reads outside
	// of any transaction.
	List func(ctx context.Context, list string) ([]string, error)

	// Commit ends tx without the sink, like a handler that sends COMMIT. It is nil if TX has no way
	// to do so.
	Commit func(ctx context.Context, tx TX) error

	// Lock makes each Append wait until unlock is called, like another transaction that has locked
	// the table. It is nil if that is impossible.
	Lock func(t testing.TB) (unlock func())

	// Aside runs a statement on a connection unrelated to the sink. Only [Idioms] needs it.
	Aside func(ctx context.Context, query string) error

	// Operator returns an operator of the sink. DeadLetter is the sink's function for
	// consumer.Handlers.OnFailure. Only [RunOperated] and [Idioms] need them.
	Operator   func(t testing.TB) operate.Operator
	DeadLetter func(ctx context.Context, tx TX, m epoch.Message, e epoch.Epoch, cause error) error
}

// Run runs every history on one or two databases of its own. create makes an empty database, which
// is removed when t ends.
//
// Some histories need a capability of the sink. Those of CommitHeld need [epoch.Holding] and
// [epoch.Transactional]: they write without a message, and a sink that gives PerItem
// writes only for messages. Those with several partitions in a transaction need [epoch.Facts] to
// allow that. go test -v shows which histories were left out.
func Run[TX any](t *testing.T, create func(t testing.TB) Database[TX]) {
	runSets(t, sets(), create)
}

// set is histories that need something of the sink which not every sink has.
type set struct {
	needs     string
	has       func(a abilities) bool
	histories []history
}

// abilities are what a sink says that it can do.
type abilities struct {
	guarantee epoch.Guarantee
	bounds    epoch.Facts
	holding   bool
}

func abilitiesOf[TX any](sink epoch.Sink[TX]) abilities {
	_, holding := epoch.As[epoch.Holding[TX]](sink)
	return abilities{sink.Facts().Guarantee, sink.Facts(), holding}
}

func everySink(abilities) bool           { return true }
func commitsWhole(a abilities) bool      { return a.guarantee == epoch.Transactional }
func severalPartitions(a abilities) bool { return a.bounds.Partitions != 1 }
func severalMessages(a abilities) bool   { return a.bounds.Messages != 1 }
func runsBeside(a abilities) bool        { return a.bounds.Beside }
func fewPartitions(a abilities) bool     { return a.bounds.Partitions > 0 }
func holdsClaims(a abilities) bool       { return a.holding && commitsWhole(a) }

// sets are the histories of Run.
func sets() []set {
	return []set{
		{"", everySink, histories},
		{"epoch.Transactional", commitsWhole, whole},
		{"transactions of several partitions", severalPartitions, together},
		{"transactions of several messages", severalMessages, calls},
		{"a bound on partitions (epoch.Facts)", fewPartitions, bounded},
		{"calls beside each other (epoch.Facts)", runsBeside, besides},
		{"epoch.Holding and epoch.Transactional", holdsClaims, concat(held, underHeldClaims(concat(handlers, []history{cutOff})), underHeldClaims(abandoned[:2]))},
	}
}

// runSets runs histories, and skips those that need what the sink does not have.
func runSets[TX any](t *testing.T, sets []set, create func(t testing.TB) Database[TX]) {
	can := abilitiesOf(create(t).Open(t))
	for _, s := range sets {
		for _, h := range s.histories {
			if s.has(can) {
				run(t, h, create)
			} else {
				t.Run(h.claim, func(t *testing.T) { t.Skip("needs " + s.needs) })
			}
		}
	}
}

// RunUnblocked runs histories in which a process is frozen with its transaction open, after its
// writes, and must not block the next claim. A database passes if it locks only rows, and the fence
// last, or if the claim terminates the open transaction. A database with one lock for all writers,
// such as SQLite, cannot pass.
func RunUnblocked[TX any](t *testing.T, create func(t testing.TB) Database[TX]) {
	runSets(t, unblockedSets(), create)
}

func unblockedSets() []set {
	return []set{
		{"", everySink, unblocked},
		{"transactions of several partitions", severalPartitions, unblockedTogether},
		{"epoch.Holding and epoch.Transactional", holdsClaims, unblockedHeld},
	}
}

// RunOperated runs the histories in which operators act on fences and dead letters while consumers
// run. The sink must be an [operate.Ledger].
func RunOperated[TX any](t *testing.T, create func(t testing.TB) Database[TX]) {
	runSets(t, []set{{"", everySink, operated}, {"epoch.Transactional", commitsWhole, operatedWhole}}, create)
}

func run[TX any](t *testing.T, h history, create func(t testing.TB) Database[TX]) {
	t.Run(h.claim, func(t *testing.T) {
		h.playOn(t, patience, func(t testing.TB) Database[any] { return erase(create(t)) })
	})
}

// history is one property of sinks and the play that shows it.
type history struct {
	claim string // in words
	rules string // the rules of the design that it tests
	play  func(w *world)
}

var histories = concat(attacks, claims, seeds, commits, handlers, abandoned, names, random)

func concat(hs ...[]history) []history {
	var all []history
	for _, h := range hs {
		all = append(all, h...)
	}
	return all
}

// erase removes the type of the transaction, so that histories need no type parameter.
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

func (e erased[TX]) Commit(ctx context.Context, as []epoch.Advance, o epoch.TxOptions, calls ...func(context.Context, any) error) error {
	typed := make([]func(context.Context, TX) error, len(calls))
	for i, call := range calls {
		typed[i] = func(ctx context.Context, tx TX) error { return call(ctx, tx) }
	}
	return e.Sink.Commit(ctx, as, o, typed...)
}

func (e erased[TX]) CommitHeld(ctx context.Context, h epoch.Hold, o epoch.TxOptions, apply func(context.Context, any) error) error {
	return epoch.CommitHeld(ctx, e.Sink, h, o, func(ctx context.Context, tx TX) error { return apply(ctx, tx) })
}

func (e erased[TX]) ledger() (operate.Ledger[any], bool) {
	l, ok := epoch.As[operate.Ledger[TX]](e.Sink)
	return erasedLedger[TX]{l}, ok
}

type erasedLedger[TX any] struct{ operate.Ledger[TX] }

func (e erasedLedger[TX]) WriteIn(ctx context.Context, tx any, cs ...operate.Change) error {
	return e.Ledger.WriteIn(ctx, tx.(TX), cs...)
}
