package sinktest

import (
	"context"
	"database/sql"
	"slices"
	"testing"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/suites/bubble"
)

// This file says what an idiom, its outcomes and a mode of a sink are, and which idioms are played in
// which place. idioms_play.go plays one.

// Idiomatic is one mode of a sink: one way in which handlers send statements. [Idioms] runs every
// idiom that applies to the mode. A field that does not apply is nil.
type Idiomatic[TX any] struct {
	// Mode is the name of the mode. Column is its column in the table of outcomes, which similar
	// modes share. Defaults to Mode.
	Mode, Column string

	// Database returns a database for one play. Concurrent plays may share one, because each has a
	// topic and lists of its own. Operator and DeadLetter are required. If Speaks is set, Aside is
	// required, Append writes to a table effects with the text columns list and value, and the
	// tables of [Dialect.Setup] must exist.
	Database func(t testing.TB) Database[TX]

	// Plays selects the idioms to run. The flag -idioms.all runs all that apply to the mode.
	Plays Choice

	// Speaks is the SQL dialect of Exec.
	Speaks *Dialect

	// Exec sends a statement in the way of this mode.
	Exec func(ctx context.Context, tx TX, query string, args ...any) error

	// Query sends a query in the way of this mode, and leaves its rows open.
	Query func(ctx context.Context, tx TX, query string) (Rows, error)

	// Handle returns tx as a transaction with a Commit and a Rollback of its own.
	Handle func(tx TX) Handle

	// DB returns tx as a DB.
	DB func(tx TX) *sql.DB

	// Queued says that Exec returns before the database has seen the statement.
	Queued bool

	// Virtual says that plays run in a bubble of testing/synctest.
	Virtual bool

	// Own are idioms of this sink's driver only.
	Own []Idiom
}

// Choice selects idioms.
type Choice int

// The choices.
const (
	Everything   Choice = iota
	WireMatters         // those that depend on how the driver sends a statement
	HandlesAlone        // those of Handle, of DB, and the mode's own
	Nothing             // none, unless the flag is set
)

// Rows are the rows of a query, which a handler may forget to close.
type Rows interface {
	Next() bool
	Close()
}

// Handle is a transaction as drivers have it: a message's transaction, or a savepoint in it.
type Handle interface {
	Exec(ctx context.Context, query string, args ...any) error
	Begin(ctx context.Context) (Handle, error)
	Commit(ctx context.Context) error
	Rollback(ctx context.Context) error
}

// Dialect is a dialect of SQL.
type Dialect struct {
	Name string

	// Setup makes the tables that the idioms use beside effects.
	Setup string

	// Idioms are those of this dialect only.
	Idioms []Idiom
}

// Outcome is the result for a guilty message, whose handler runs an idiom.
type Outcome string

// With every outcome, the other messages are applied exactly once, in order and without an attempt
// that counts, and a restart changes nothing.
const (
	// Applied: the message is applied exactly once, in a transaction that it shares with others.
	Applied Outcome = "applied"

	// Alone: the message is applied exactly once, in a transaction of its own.
	Alone Outcome = "applied alone"

	// Undone: the message passes, and none of its writes is committed.
	Undone Outcome = "undone"

	// Costs: the message fails after its attempts and goes to OnFailure. None of its writes is
	// committed.
	Costs Outcome = "costs the message"

	// Halts: the message's partition stops before it. The other partitions continue.
	Halts Outcome = "halts"
)

// Idiom is a piece of code that people write in a handler.
type Idiom struct {
	// Name is the row in the table of outcomes.
	Name string

	// Do is the handler of the guilty message.
	Do func(c *Call) error

	// Want is the outcome of the guilty message. Then, if set, is the handler of the message after
	// it, and ThenWant its outcome.
	Then           func(c *Call) error
	Want, ThenWant Outcome

	// But has different outcomes by mode.
	But map[string]Outcome

	// Says are texts that the observers' error must contain, beside the offset.
	Says []string

	// Everybody says that every message runs the idiom, and that there are few messages.
	Everybody bool

	// Impatient says that the handler outlives its transaction's timeout, which is short for that
	// purpose.
	Impatient bool

	// Wire says that the outcome depends on how the driver sends a statement.
	Wire bool

	// Answers says that the idiom needs an answer from the database, which excludes
	// [Idiomatic.Queued].
	Answers bool

	// Places says that the idiom also runs in Batches, in OnFailure, in a replay and in Background.
	Places bool

	handle bool // it uses a Handle or a DB, or is a mode's own
}

// wantIn returns the outcome in a place and a mode. In OnFailure there is no further handler to decide
// about the message. A message that has failed is retried alone, and a replay and background work have
// transactions of their own.
func (i *Idiom) wantIn(place, mode string) Outcome {
	o, ok := i.But[mode]
	if !ok {
		o = i.Want
	}
	switch {
	case place == inOnFailure && o == Costs:
		return Halts
	case o == Applied && place != inEach && place != inBatches:
		return Alone
	}
	return o
}

// Idioms runs every idiom that applies to each mode; one such run is a play. A play is a
// consumer.Run with a broker in memory and 20 messages in each of two partitions, of which one
// message is guilty. See [Outcome] for the requirements. The file of testdata named after the test has
// the outcomes as a table; the flag -idioms.update writes it.
func Idioms[TX any](t *testing.T, modes ...Idiomatic[TX]) {
	var all []mode
	for _, typed := range modes {
		m := eraseMode(typed)
		all = append(all, m)
		t.Run(m.Mode, func(t *testing.T) {
			t.Parallel()
			playMode(t, m)
		})
	}
	compareTable(t, all)
}

// mode is an [Idiomatic] without the type of its transaction.
type mode struct {
	Idiomatic[any]
	open func(t testing.TB) idiomDatabase
}

type idiomDatabase struct {
	Database[any]

	// run runs one process: a sink with connections of its own, and consumer.Run.
	run func(ctx context.Context, t testing.TB, s consumer.Source, h idiomHandlers, o consumer.Options) error
}

type idiomHandlers struct {
	each       func(ctx context.Context, tx any, m consumer.Message) error
	batch      func(ctx context.Context, tx any, ms []consumer.Message) error
	onFailure  func(ctx context.Context, tx any, m consumer.Message, e epoch.Epoch, cause error) error
	background func(ctx context.Context, p epoch.Partition, do func(ctx context.Context, apply func(ctx context.Context, tx any) error) error)
}

func eraseMode[TX any](m Idiomatic[TX]) mode {
	e := mode{Idiomatic: Idiomatic[any]{
		Mode: m.Mode, Speaks: m.Speaks, Queued: m.Queued, Virtual: m.Virtual, Own: m.Own, Column: m.Column, Plays: m.Plays,
	}}
	if m.Exec != nil {
		e.Exec = func(ctx context.Context, tx any, query string, args ...any) error {
			return m.Exec(ctx, tx.(TX), query, args...)
		}
	}
	if m.Query != nil {
		e.Query = func(ctx context.Context, tx any, query string) (Rows, error) { return m.Query(ctx, tx.(TX), query) }
	}
	if m.Handle != nil {
		e.Handle = func(tx any) Handle { return m.Handle(tx.(TX)) }
	}
	if m.DB != nil {
		e.DB = func(tx any) *sql.DB { return m.DB(tx.(TX)) }
	}
	e.open = func(t testing.TB) idiomDatabase {
		db := m.Database(t)
		return idiomDatabase{erase(db), func(ctx context.Context, t testing.TB, s consumer.Source, h idiomHandlers, o consumer.Options) error {
			return consumer.Run(ctx, s, db.Open(t), typed[TX](h), o)
		}}
	}
	return e
}

func typed[TX any](h idiomHandlers) consumer.Handlers[TX] {
	hs := consumer.Each(func(ctx context.Context, tx TX, m consumer.Message, _ epoch.Epoch) error { return h.each(ctx, tx, m) })
	if h.batch != nil {
		hs = consumer.Batches(func(ctx context.Context, tx TX, ms []consumer.Message, _ epoch.Epoch) error {
			return h.batch(ctx, tx, ms)
		})
	}
	hs = hs.OnFailure(func(ctx context.Context, tx TX, m consumer.Message, e epoch.Epoch, cause error) error {
		return h.onFailure(ctx, tx, m, e, cause)
	})
	if h.background != nil {
		hs = hs.Background(func(ctx context.Context, b consumer.Background[TX]) {
			h.background(ctx, b.Partition(), func(ctx context.Context, apply func(context.Context, any) error) error {
				return b.Do(ctx, func(ctx context.Context, tx TX) error { return apply(ctx, tx) })
			})
		})
	}
	return hs
}

const (
	inEach       = ""
	inBatches    = "Batches"
	inOnFailure  = "OnFailure"
	inReplay     = "a replay"
	inBackground = "Background"
)

func (m *mode) idioms() []Idiom {
	all := slices.Clone(anybody)
	if m.Exec != nil {
		all = slices.Concat(all, statements, m.Speaks.Idioms)
	}
	general := len(all)
	if m.Handle != nil {
		all = append(all, handles...)
	}
	if m.DB != nil {
		all = append(all, dbs...)
	}
	all = append(all, m.Own...)
	for n := range all[general:] {
		all[general+n].handle = true
	}
	return slices.DeleteFunc(all, func(i Idiom) bool {
		return i.Answers && m.Queued
	})
}

func (m *mode) chosen(place string) []Idiom {
	return slices.DeleteFunc(m.idiomsIn(place), func(i Idiom) bool {
		return !*allIdioms && (m.Plays == Nothing || m.Plays == WireMatters && (place != inEach || !i.Wire) || m.Plays == HandlesAlone && !i.handle)
	})
}

func (m *mode) idiomsIn(place string) []Idiom {
	return slices.DeleteFunc(m.idioms(), func(i Idiom) bool { return place != inEach && !i.Places })
}

// playMode runs the idioms of a mode in parallel, in the handler and in the other places.
func playMode(t *testing.T, m mode) {
	for _, i := range m.chosen(inEach) {
		playCell(t, m, i, inEach)
	}
	for _, place := range []string{inBatches, inOnFailure} {
		t.Run(place, func(t *testing.T) {
			for _, i := range m.chosen(place) {
				playCell(t, m, i, place)
			}
		})
	}
	if is := m.chosen(inReplay); len(is) > 0 {
		t.Run(inReplay, func(t *testing.T) { m.plays(t, func(t *testing.T) { playReplays(t, &m, is) }) })
		t.Run(inBackground, func(t *testing.T) { m.plays(t, func(t *testing.T) { playBackground(t, &m, is) }) })
	}
}

func playCell(t *testing.T, m mode, i Idiom, place string) {
	t.Run(i.Name, func(t *testing.T) {
		m.plays(t, func(t *testing.T) { playIn(t, &m, &i, place) })
	})
}

// plays runs play in parallel with others, or in a bubble.
func (m *mode) plays(t *testing.T, play func(t *testing.T)) {
	if m.Virtual {
		bubble.Test(t, play)
		return
	}
	t.Parallel()
	play(t)
}
