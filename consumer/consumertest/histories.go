package consumertest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/epoch"
)

// This file has the histories, and what each of them shows.

// history applies all messages.
type history struct {
	story string // what happened, for a difference at its end
	usual cause
	may   bool // rows may differ at its end
	play  func() (*finding, error)

	fails  func(m epoch.Message) bool // the messages that are poison, or nil
	begins bool                       // the histories behind it are compared with it
}

// histories returns all histories. The others are compared with the last one that begins.
func (w *world[TX]) histories() []history {
	random := rand.New(rand.NewPCG(w.o.Seed, uint64(len(w.messages))))
	n := len(w.messages)
	few := w.cut(nil, func() int { return 1 + random.IntN(7) })
	all := []history{
		{play: w.alone, begins: true},
		{story: "Other processes took over before, in and after messages.", usual: causeOwner, play: w.oneByOne(w.takeover)},
		{story: "All were in one transaction.", usual: causeCut, play: w.cut(nil, func() int { return n })},
		{story: "Each transaction had two.", usual: causeCut, play: w.cut(nil, func() int { return 2 })},
		{story: "Transactions had one to seven.", usual: causeCut, play: few},
		{story: "Transactions had one to thirty.", usual: causeCut, play: w.cut(nil, func() int { return 1 + random.IntN(30) })},
		w.rewind(random.IntN(n)),
	}
	if w.items != nil {
		in := func(at int) *writes { return &writes{keep: some(at)} }
		all = append(all, history{story: "Transactions had one to seven. Others ended before them when a part of the items was written.",
			usual: causeParts, play: w.cut(in, func() int { return 1 + random.IntN(7) })})
	}
	if w.onFailure == nil { // the partition halts at a message that fails
		return all
	}
	takeovers := history{story: "Other processes took over before, in and after messages.", usual: causeAfter, play: w.oneByOne(w.takeover)}
	cuts := history{story: "Transactions had one to seven.", usual: causeAfter, play: few}
	for i, fails := range []func(m epoch.Message) bool{
		func(m epoch.Message) bool { return m.Offset%2 == 0 },
		func(m epoch.Message) bool { return m.Offset%2 == 1 },
		func(epoch.Message) bool { return true },
	} {
		first, then := history{play: w.cut(nil, func() int { return 1 }), begins: true}, []history{cuts, cuts, takeovers}[i]
		first.fails, then.fails = fails, fails
		all = append(all, first, then)
	}
	return all
}

// oneByOne returns a history of one message after another.
func (w *world[TX]) oneByOne(step func(as owner, i int) (owner, error)) func() (*finding, error) {
	return func() (*finding, error) {
		as, err := w.claim()
		for i := 0; err == nil && i < len(w.messages); i++ {
			as, err = step(as, i)
		}
		return found(err)
	}
}

// cut returns a history of transactions of many messages, before each of which another one is in part written.
func (w *world[TX]) cut(in func(at int) *writes, size func() int) func() (*finding, error) {
	return func() (*finding, error) {
		as, err := w.claim()
		for at := 0; err == nil && at < len(w.messages); {
			to := min(at+size(), len(w.messages))
			if in != nil {
				_ = w.commit(&try[TX]{as: as, messages: w.messages[at:min(at+size(), len(w.messages))], writes: in(at)})
			}
			err = w.apply(as, w.messages[at:to]...)
			at = to
		}
		return found(err)
	}
}

// takeover applies a message, and returns the process that has the partitions afterwards.
func (w *world[TX]) takeover(first owner, i int) (second owner, err error) {
	m, applied := w.messages[i], false
	t := &try[TX]{as: first, messages: []epoch.Message{m}}
	takes := func() (err error) {
		second, err = w.claim()
		return err
	}
	ways := []func() error{
		takes, // before the transaction
		func() error { t.before = takes; return nil },
		func() error { // the first process continues when the second one has committed
			t.before = func() error {
				applied = true
				return errors.Join(takes(), w.apply(second, m))
			}
			return nil
		},
		func() error { t.after = func(TX) error { return errRollback }; return nil }, // a commit that did not land
		func() error { // one that did, and has no answer
			applied = true
			return errors.Join(w.apply(first, m), takes())
		},
		func() error { t.after = func(TX) error { return takes() }; return nil },
		func() error { t.writes = &writes{keep: some(i)}; return nil },
	}
	if ts, is := w.rows.(*tables); is {
		ways = ways[:6]
		if !ts.dialect.Parallel {
			ways = ways[:5]
		}
	}
	if err := ways[i%len(ways)](); err != nil {
		return nil, err
	}
	if err := w.commit(t); err == nil {
		return nil, errors.New("the sink has committed under a claim that was replaced: this is a fault of the sink")
	}
	if second == nil {
		err = takes()
	}
	if err != nil || applied {
		return second, err
	}
	return second, w.apply(second, m)
}

// rewind applies all messages, sets the positions back to before one of them, and applies those behind it again.
func (w *world[TX]) rewind(to int) history {
	play := func() (*finding, error) {
		var before [][]string
		as, err := w.claim()
		for i := 0; err == nil && i < len(w.messages); i++ {
			if i == to {
				before, err = w.rows.read(w.ctx, nil)
			}
			err = errors.Join(err, w.apply(as, w.messages[i]))
		}
		if err != nil {
			return found(err)
		}
		rows, err := w.rows.read(w.ctx, nil)
		if ts, is := w.rows.(*tables); is && err == nil {
			for i, t := range ts.all {
				if t.sinks && t.name != "sqlite_sequence" { // the positions
					rows[i] = before[i]
				}
			}
			err = ts.restore(w.ctx, rows)
		} else if err == nil {
			err = w.rewindItems(w.ctx, to)
		}
		if err != nil {
			return nil, err
		}
		as, err = w.claim()
		for i := to; err == nil && i < len(w.messages); i++ {
			err = w.apply(as, w.messages[i])
		}
		f, err := found(err)
		if f != nil && !w.o.Rewind {
			w.note = f
			return nil, nil
		}
		return f, err
	}
	return history{story: fmt.Sprintf("Then the partitions were rewound to before %s.", name(w.messages[to])), usual: causeRewind, may: !w.o.Rewind, play: play}
}

// Limits of what is tried with each message, so that a Check ends in seconds.
const (
	mostTried = 100 // messages
	mostStops = 12  // statements
)

// alone applies the messages one by one, each after what is rolled back.
func (w *world[TX]) alone() (*finding, error) {
	as, err := w.claim()
	if err != nil {
		return nil, err
	}
	before, err := w.rows.read(w.ctx, nil)
	every := (len(w.messages) + mostTried - 1) / mostTried
	for i := 0; err == nil && i < len(w.messages); i++ {
		m := w.messages[i]
		var seen [][]string
		if i%every == 0 {
			var f *finding
			if f, seen, err = w.rolledBack(as, m, before); f != nil || err != nil {
				return f, err
			}
		}
		if err = w.apply(as, m); err != nil {
			return found(err)
		}
		var after [][]string
		if after, err = w.rows.read(w.ctx, nil); err == nil {
			if ds := w.differences(seen, after, true); len(ds) > 0 {
				return about(m, ds, causeAttempts.of(ds), "The handler was called, and again after other attempts at the message had failed. The rows differ (-: first, +: second)."), nil
			}
		}
		before = after
	}
	return nil, err
}

// attempt calls the handler for m, or OnFailure if cause is not nil, and rolls back. rows are those in the
// transaction, or nil if the handler has rolled back.
func (w *world[TX]) attempt(as owner, m epoch.Message, cause error, stop int) (rows [][]string, sent int, err error) {
	var unread error
	t := &try[TX]{as: as, messages: []epoch.Message{m}, cause: cause, stop: stop}
	if w.items == nil {
		t.after = func(tx TX) error {
			rows, unread = w.rows.read(w.ctx, tx)
			return errRollback
		}
	} else {
		t.writes = &writes{items: map[string]cas.Item{}}
	}
	if err = w.commit(t); t.writes != nil && t.writes.complete {
		rows, unread = w.rows.read(w.ctx, t.writes)
		err = errRollback
	}
	if unread != nil && !strings.Contains(unread.Error(), "has rolled its transaction back") { // as a handle of pgsink does
		w.unread = fmt.Errorf("in the handler's transaction: %w", unread)
	}
	if unread != nil || errors.Is(err, errRollback) {
		err = nil
	} else {
		rows = nil
	}
	return rows, t.sent, err
}

// some returns a choice of about half of the items. For n+1 it is the other half.
func some(n int) func(key string) bool {
	return func(key string) bool { return (n+len(key)+int(key[len(key)-1]))%2 == 0 }
}

// inPart calls the handler for m after a transaction that has written a part of the items, and not the position.
func (w *world[TX]) inPart(as owner, m epoch.Message, before, rows [][]string) (*finding, error) {
	ways := []func(key string) bool{func(string) bool { return true }}
	for _, row := range slices.Sorted(slices.Values(rows[0])) {
		if k := itemOf(row).Key; !slices.Contains(before[0], row) && len(ways) < 2*mostStops {
			ways = append(ways, func(key string) bool { return key == k }, func(key string) bool { return key != k })
		}
	}
	for _, keep := range ways {
		_ = w.commit(&try[TX]{as: as, messages: []epoch.Message{m}, writes: &writes{keep: keep}})
		again, _, err := w.attempt(as, m, nil, 0)
		if err != nil { // once more, as the machine may have stalled
			again, _, err = w.attempt(as, m, nil, 0)
		}
		if left := w.rows.restore(w.ctx, before); left != nil {
			return nil, left
		}
		story := "A transaction with the message ended when a part of the items was written. The handler was called again, and "
		if err != nil {
			return about(m, nil, causePart.orFailed(err), fmt.Sprintf("%sfailed: %v.", story, err)), nil
		}
		if ds := w.differences(rows, again, true); len(ds) > 0 {
			c := causePart
			if plain, _, _ := w.attempt(as, m, nil, 0); len(w.differences(rows, plain, true)) > 0 {
				c = causeAttempts // without any item that was written
			}
			return about(m, ds, c, story+"the items differ (-: written at once, +: in two parts)."), nil
		}
	}
	return nil, nil
}

// rolledBack tries m in all ways that leave nothing, and returns the rows that the handler leaves.
func (w *world[TX]) rolledBack(as owner, m epoch.Message, before [][]string) (_ *finding, rows [][]string, _ error) {
	left := func(how string) (*finding, error) {
		now, err := w.rows.read(w.ctx, nil)
		if ds := w.differences(before, now, true); err == nil && len(ds) > 0 {
			return about(m, ds, causeOutside, how+" The transaction was rolled back. The rows are not what they were (-: before, +: now)."), nil
		}
		return nil, err
	}
	calls := len(w.o.Calls.Keys())
	first, _, err := w.attempt(as, m, nil, 0)
	failed, once := err != nil, len(w.o.Calls.Keys())-calls
	if f, err := left("The handler was called."); f != nil || err != nil {
		return f, nil, err
	}
	rows, statements, err := w.attempt(as, m, nil, 0)
	if err != nil && !failed { // once more, as the machine may have stalled
		rows, statements, err = w.attempt(as, m, nil, 0)
	}
	switch ds := w.differences(first, rows, true); {
	case err != nil && !failed:
		return about(m, nil, causeMemory.orFailed(err), fmt.Sprintf("The handler was called, and rolled back. It was called again, and failed: %v.", err)), nil, nil
	case err != nil && w.onFailure == nil:
		f, err := found(&failure{m: m, err: err})
		return f, nil, err
	case len(ds) > 0:
		return about(m, ds, causeMemory.of(ds), "The handler was called twice on the same rows, and rolled back. The rows differ (-: first, +: second)."), nil, nil
	}
	if clock := w.present(m, before, rows); clock != nil {
		return about(m, clock, causeClock, "The handler wrote the present time, or the day, which is in no message (-: before, +: after)."), nil, nil
	}
	if w.items != nil && rows != nil {
		if f, err := w.inPart(as, m, before, rows); f != nil || err != nil {
			return f, nil, err
		}
	}
	for i := range min(statements, mostStops) {
		_, _, _ = w.attempt(as, m, nil, 1+i*statements/min(statements, mostStops))
	}
	called := w.o.Calls.Keys()[calls:]
	if w.onFailure != nil {
		if err == nil {
			err = errPoison
			_ = w.commit(&try[TX]{as: as, messages: []epoch.Message{m}, after: func(TX) error { return errPoison }})
		}
		called = w.o.Calls.Keys()[calls:]
		first, _, _ := w.attempt(as, m, err, 0)
		onceFailed := len(w.o.Calls.Keys()) - calls
		if f, err := left("The handler failed after its last statement, and OnFailure was called."); f != nil || err != nil {
			return f, nil, err
		}
		second, _, err := w.attempt(as, m, err, 0)
		if err != nil {
			return about(m, nil, causeOnFailure, fmt.Sprintf("The handler failed after its last statement. OnFailure failed too, so that the partition halts: %v.", err)), nil, nil
		}
		if ds := w.differences(first, second, true); len(ds) > 0 {
			return about(m, ds, causeMemory.of(ds), "OnFailure was called twice on the same rows, and rolled back. The rows differ (-: first, +: second)."), nil, nil
		}
		if keys := w.o.Calls.Keys()[calls:]; len(keys) > onceFailed {
			return about(m, nil, causeCalls, fmt.Sprintf("OnFailure was called twice, and the second time it called other systems again, with other keys: %.200q.", keys[onceFailed:])), nil, nil
		}
	}
	if !failed && len(called) > once {
		return about(m, nil, causeCalls, fmt.Sprintf("One call of the handler called other systems %d times, and calls that were rolled back %d times together: %.200q.", once, len(called), called)), nil, nil
	}
	f, err := left("The handler was stopped at each of its statements.")
	return f, rows, errors.Join(err, w.unread)
}

// present returns where the handler has written the present time, unless m has it too, or a row has that value. Two calls
// within a second, or a day, may write the same.
func (w *world[TX]) present(m epoch.Message, before, rows [][]string) (ds []difference) {
	if isNow(fmt.Sprintf("%s %s %s %s", m.Key, m.Value, m.Time, m.Headers)) {
		return nil
	}
	old := w.rows.text(before)
	has := func(l line) bool {
		return slices.ContainsFunc(l, func(cell string) bool {
			return isNow(cell) && !strings.Contains(old, strings.Trim(value(cell), "'"))
		})
	}
	for _, d := range w.differences(before, rows, true) {
		if slices.ContainsFunc(d.then, has) && !slices.ContainsFunc(d.first, func(l line) bool { return isNow(l.String()) }) {
			ds = append(ds, d)
		}
	}
	return ds
}
