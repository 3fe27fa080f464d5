// Package consumertest judges a handler in the user's own test, on the user's own database: are its effects the
// same, whatever happens to the process that calls it?
//
//	consumertest.Check(t, sink, consumer.Each(take).OnFailure(sink.DeadLetter), consumertest.Values("chair", "table"),
//		consumertest.SQLite(db), consumertest.Options{})
//
// [Check] applies the messages from the rows that it finds, again and again, and compares the rows of all tables. First
// it applies them one by one. Each message, before it is applied,
//
//   - is called twice on the same rows, and has to write the same: this finds clocks, random numbers and memory;
//   - is rolled back, which has to leave nothing: this finds writes on another connection;
//   - is stopped at each of its statements, and called again;
//   - is poison: it fails after its last statement, and OnFailure is called twice on the same rows.
//
// Then it cuts the messages into transactions of many sizes, lets another process take over before, in and after
// messages, loses the answers of commits that landed, and commits that did not, and rewinds. At last it makes every
// second message poison, then the others, then all, and applies what follows them.
//
// The package hides how a database is read and put back. It drives the sink itself, in order, so that with one seed it
// does the same each time. All processes are this one: they share what a handler keeps in memory. Calls of
// [consumer.EachKey] run in order, and Handlers.Background is not called. Not found are the name of a host, and
// partitions that change the same rows at the same time. At most 100 messages are tried alone, spread over all, and each
// is stopped at 12 of its statements.
package consumertest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/internal/handling"
	"github.com/epochfence/epochfence/epoch"
)

// Options configure a [Check]. The zero value works.
type Options struct {
	// Ignore names columns, as "table.column", that may differ. Columns whose default reads a clock or random
	// numbers may differ anyway, and so may the numbers that the database gives to new rows, and references that
	// are declared as foreign keys. Name a column that such a number is copied to without one.
	Ignore []string

	// Tables are the tables that are compared. Defaults to all but the sink's. The outbox is among them, but not that of
	// a cassink.
	Tables []string

	// Rewind fails the test if messages that are applied again after a rewind change the rows. By default that is
	// logged, because a rewind is meant to apply messages again.
	Rewind bool

	// Calls counts calls of other systems. Nil counts none.
	Calls *Calls

	// Seed chooses the sizes of transactions, and where to rewind to.
	Seed uint64

	// Timeout limits each transaction. Defaults to 10 s.
	Timeout time.Duration
}

// Values returns a message of partition 0 for each value.
func Values(values ...string) []consumer.Message {
	ms := make([]consumer.Message, len(values))
	for i, v := range values {
		ms[i].Value = []byte(v)
	}
	return ms
}

// Check fails the test if the effects of h depend on more than the messages and the rows. It reports the first case in
// which they do: what happened, which rows differ, and the usual cause.
//
// messages are applied in order. Check sets their offsets and, where they have none, a group, a topic and a time. It
// puts all rows back as it found them, and with them what anybody else has written meanwhile: give it a database of its
// own. It logs how many messages OnFailure got, as it does not know which must succeed, and fails if that is all. Those
// that the handler defers by [consumer.RetryAfter] go to OnFailure here. It refuses a database that has a table of more
// than 10,000 rows, a fence of another partition or, on PostgreSQL, another Check. It reads all rows after each call.
// [SQLite], [Items] and pgtables.Of return db.
func Check[TX any](t testing.TB, sink epoch.Sink[TX], h consumer.Handlers[TX], messages []consumer.Message, db Database, o Options) {
	t.Helper()
	if o.Timeout == 0 {
		o.Timeout = 10 * time.Second
	}
	w := &world[TX]{ctx: t.Context(), sink: sink, o: o, refused: map[position]bool{}}
	switch db := db.(type) {
	case *ItemStore:
		w.rows, w.items, db.prefix = db, db, ""
	case Tables:
		w.rows = &tables{db: db}
	default:
		t.Fatalf("consumertest: the database is a %T: give what SQLite, Items or pgtables.Of returns", db)
	}
	w.each, w.batch, w.whole, w.onFailure = h.Functions(handling.Key{})
	w.number(messages)
	switch found, err := w.judge(db); {
	case err != nil:
		t.Errorf("consumertest: %v", err)
	case found != nil:
		t.Errorf("consumertest: the effects of the handler depend on more than its messages and the rows\n%sSeed: %d", found, o.Seed)
	case errors.Is(w.refusal, epoch.ErrUnhealthy):
		t.Errorf("consumertest: OnFailure got a message because of an error of the database, for which a consumer halts unless the handler calls it consumer.Permanent: %v", w.refusal)
	case len(w.refused) == len(w.messages):
		t.Errorf("consumertest: OnFailure got all messages, so that none was judged; %v", w.refusal)
	case w.note != nil:
		t.Logf("consumertest: a rewind changes the rows, as it may. Options.Rewind makes this a failure.\n%s", w.note)
	}
	if n := len(w.refused); n > 0 {
		t.Logf("consumertest: OnFailure got %d of %d messages; %v", n, len(w.messages), w.refusal)
	}
	if w.follows != nil {
		t.Logf("consumertest: a message fails if OnFailure has got one before it: %v", w.follows)
	}
}

// number gives each message its place.
func (w *world[TX]) number(messages []consumer.Message) {
	next := map[epoch.Partition]epoch.Offset{}
	for _, m := range messages {
		p := &m.Partition
		if p.Group == "" {
			p.Group = "consumertest"
		}
		if p.Topic == "" {
			p.Topic = "consumertest"
		}
		if m.Time.IsZero() {
			m.Time = time.Date(2001, 2, 3, 4, 5, 6, 0, time.UTC)
		}
		if m.Offset, m.Mark = next[*p], epoch.NoMark; m.Offset == 0 {
			w.partitions = append(w.partitions, *p)
		}
		next[*p]++
		w.messages = append(w.messages, m)
	}
}

// judge plays all histories, until one finds something.
func (w *world[TX]) judge(db Database) (found *finding, err error) {
	if len(w.messages) == 0 {
		return nil, errors.New("there are no messages to judge the handler with")
	}
	unlock, err := db.Lock(w.ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if _, err := w.sink.Look(w.ctx, w.partitions[:1]); err != nil { // one alone, as it sets the prefix of an ItemStore
		return nil, err
	}
	start, err := w.rows.open(w.ctx, w.o, w.partitions)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, w.restart(context.WithoutCancel(w.ctx), start)) }()
	var first [][]string // the rows at its end
	for i, h := range w.histories() {
		if err := w.restart(w.ctx, start); err != nil {
			return nil, err
		}
		w.first, w.fails = i == 0, h.fails
		if found, err = h.play(); found != nil || err != nil {
			if found != nil && h.fails != nil {
				found.story[0] = "The messages before it were applied. " + poison
			}
			return found, err
		}
		end, err := w.rows.read(w.ctx, nil)
		if err != nil {
			return nil, err
		}
		if h.begins {
			first = end
		}
		if ds := w.differences(first, end, false); len(ds) > 0 {
			how := "The messages were applied, each in a transaction of its own."
			if h.fails != nil {
				how += " " + poison
			}
			found := &finding{[]string{how, "They were applied again from the same rows. " + h.story,
				"In the end the rows differ (-: the first time, +: the second time)."}, ds, h.usual.of(ds)}
			if !h.may {
				return found, nil
			}
			w.note = found
		}
	}
	if w.items != nil {
		err = w.items.unknown()
	}
	return nil, err
}
