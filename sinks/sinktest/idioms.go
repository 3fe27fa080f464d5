package sinktest

import (
	"context"
	"database/sql"
	"testing"
)

// Idiomatic is one mode of a sink: one way in which handlers send statements.
// [Idioms] plays every idiom that the mode has a use for. The fields that a mode has
// no use for are nil.
type Idiomatic[TX any] struct {
	// Mode is the name of the mode. Column heads its column in the table of outcomes,
	// which modes that differ little share; it is empty where that is the name.
	Mode, Column string

	// Database returns a database for one play. Several plays may use one at the same
	// time: each has a topic and lists of its own. Operator and DeadLetter are required.
	// Where Speaks is set, so is Aside, Append writes to a table effects with the text
	// columns list and value, and the tables of [Dialect.Setup] are there.
	Database func(t testing.TB) Database[TX]

	// Plays chooses what is played, of all that the mode has a use for, unless the flag
	// -idioms.all is set.
	Plays Choice

	// Speaks is the SQL that Exec takes.
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

	// Own are the idioms that only this sink's driver knows.
	Own []Idiom
}

// Choice is a choice of idioms.
type Choice int

// The choices.
const (
	Everything   Choice = iota
	WireMatters         // those to which it matters how the driver sends a statement
	HandlesAlone        // those of Handle, of DB, and the mode's own
)

// Rows are rows of a query that somebody may forget to close.
type Rows interface {
	Next() bool
	Close()
}

// Handle is a transaction as drivers have it: that of a message, or a savepoint in it.
type Handle interface {
	Exec(ctx context.Context, query string, args ...any) error
	Begin(ctx context.Context) (Handle, error)
	Commit(ctx context.Context) error
	Rollback(ctx context.Context) error
}

// Dialect is an SQL.
type Dialect struct {
	Name string

	// Setup makes the tables that the idioms use, beside effects.
	Setup string

	idioms []Idiom
}

// Outcome is what becomes of a message whose handler does what an idiom says.
type Outcome string

// The outcomes. Whatever it is, the messages beside it are applied exactly once, in
// order and without an attempt, and a restart changes nothing.
const (
	// Applied: it is applied exactly once, in the transaction that it shares with others.
	Applied Outcome = "applied"

	// Alone: it is applied exactly once, in a transaction of its own.
	Alone Outcome = "applied alone"

	// Undone: it passes, and nothing of what it wrote is committed.
	Undone Outcome = "undone"

	// Costs: it fails after its attempts and goes to OnFailure. Nothing of what it wrote
	// is committed.
	Costs Outcome = "costs the message"

	// Halts: its partition stops in front of it, and only that one. The others, and a
	// restart, are as above.
	Halts Outcome = "halts"
)

// Idiom is something that people write in a handler.
type Idiom struct {
	// Name is the row of the table of outcomes.
	Name string

	// Do is the handler of the guilty message.
	Do func(c *Call) error

	// Then, if it is set, is the handler of the message behind it, and ThenWant its
	// outcome. The guilty message's is Want.
	Then           func(c *Call) error
	Want, ThenWant Outcome

	// But has the outcomes of modes that differ, by the names of the modes.
	But map[string]Outcome

	// Says are what the error that observers are told contains, beside the offset.
	Says []string

	// Everybody says that all messages do it, and that there are few of them.
	Everybody bool

	// Impatient says that the handler outlives the time of its transaction, which is
	// short for that.
	Impatient bool

	// Wire says that it matters to it how the driver sends a statement.
	Wire bool

	// Answers says that it asks the database something, so that it is not for [Idiomatic.Queued].
	Answers bool

	// Places says that it is also played in Batches and in OnFailure, and
	// in a replay and in Background.
	Places bool

	handle bool // it is one of a Handle or a DB, or a mode's own
}

// want is the outcome in a mode.
func (i *Idiom) want(mode string) Outcome {
	if o, ok := i.But[mode]; ok {
		return o
	}
	return i.Want
}

// Idioms plays every idiom that m has a use for, each through consumer.Run with a broker
// in memory: 20 messages in each of two partitions, of which one is guilty. See
// [Outcome] for what must hold. The outcomes are compared with the table in a file of
// testdata that has the name of the test; the flag -idioms.update writes it.
func Idioms[TX any](t *testing.T, modes ...Idiomatic[TX]) {
	table := newTable(t)
	for _, typed := range modes {
		m := eraseMode(typed)
		table.expect(&m)
		t.Run(m.Mode, func(t *testing.T) {
			t.Parallel()
			playMode(t, m, table)
		})
	}
}
