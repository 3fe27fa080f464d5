package consumertest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"slices"
	"sync"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/sql/stopat"
	"github.com/epochfence/epochfence/operate"
)

// This file does with a sink what a consumer does, a step at a time: claim, commit, narrow down, OnFailure. histories.go
// decides what goes wrong meanwhile. Calls is the other system, which counts how often it was called.

// world is a database with a handler, and the messages to apply.
type world[TX any] struct {
	ctx        context.Context
	sink       epoch.Sink[TX]
	each       consumer.Handler[TX]
	batch      consumer.BatchHandler[TX]
	whole      consumer.TransactionHandler[TX]
	onFailure  consumer.FailureHandler[TX]
	rows       contents
	items      *ItemStore // if rows are items
	o          Options
	messages   []epoch.Message
	partitions []epoch.Partition
	claims     int64 // since the history began
	first      bool  // it is the first one
	note       *finding
	refused    map[position]bool // the messages that OnFailure got
	refusal    error             // why it got the first
	unread     error             // why the rows could not be read in a transaction

	fails   func(m epoch.Message) bool // the messages that are poison in this history, or nil
	follows error                      // why one behind them fails that does not in the first history
}

// firstEpoch makes epochs easy to recognize in rows, where they may differ. They fit into four bytes.
const firstEpoch = 2_031_000_000

var (
	errRollback = errors.New("consumertest: rolled back")
	errPoison   = errors.New("consumertest: this message is poison")
	errStopped  = fmt.Errorf("consumertest: the connection is lost at this statement: %w", epoch.ErrTransient)
)

// owner is a process that holds the partitions: their fences as it knows them.
type owner map[epoch.Partition]epoch.Fence

// restart puts the rows back, and the positions to before the first message.
func (w *world[TX]) restart(ctx context.Context, rows [][]string) error {
	err := w.rows.restore(ctx, rows)
	if err == nil && w.items != nil {
		return w.rewindItems(ctx, 0)
	}
	w.claims = 0 // epochs are the same again
	return err
}

// rewindItems sets the positions to before a message, as an operator does: items have the messages that have changed them.
func (w *world[TX]) rewindItems(ctx context.Context, before int) error {
	fences, err := w.sink.Look(ctx, w.partitions)
	for p, f := range fences {
		to := epoch.Position{Mark: epoch.NoMark}
		for _, m := range w.messages[:before] {
			if m.Partition == p {
				to.Offset = m.Offset + 1
			}
		}
		act := operate.NewAct(operate.ActRewind, f, "consumertest", "messages are applied again")
		act.To = &to
		if err == nil && f.Next != to.Offset {
			_, err = w.sink.(operate.Admin).Act(ctx, act)
		}
	}
	return err
}

// claim returns a process that has taken all partitions over.
func (w *world[TX]) claim() (o owner, err error) {
	w.claims++
	o = owner{}
	for _, p := range w.partitions {
		origin := epoch.Origin{Partition: p, Log: "consumertest", Source: "consumertest"}
		err := w.sink.Seed(w.ctx, []epoch.Start{{Origin: origin}})
		for tries := 0; err == nil; tries++ {
			var seen epoch.Fence
			if seen, err = epoch.FenceOf(w.ctx, w.sink, p); err == nil {
				o[p], err = w.sink.Claim(w.ctx, seen, epoch.NewClaim(epoch.Lease{Origin: origin, Generation: firstEpoch + w.claims, Owner: "consumertest"}))
			}
			if !errors.Is(err, epoch.ErrTransient) || tries == 10 {
				break
			}
			err = nil // the claim before has cost it its connection
		}
		if err != nil {
			return nil, fmt.Errorf("claim %s: %w", p, err)
		}
	}
	return o, nil
}

// try is one transaction.
type try[TX any] struct {
	as       owner
	messages []epoch.Message
	cause    error             // not nil: OnFailure is called
	before   func() error      // called before the first call of a handler
	after    func(tx TX) error // called after the last, if it returned nil
	stop     int               // the statement that is not sent, from 1; 0: none
	writes   *writes           // what becomes of items, if the position is not written
	poison   bool              // a message is

	mu       sync.Mutex // a handler may have goroutines
	stopped  bool
	returned bool // the last call has
	sent     int  // statements of the handler
}

// statement is called before each statement.
func (t *try[TX]) statement() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.returned { // it is ours
		return nil
	}
	t.sent++
	if t.stopped = t.stopped || t.sent == t.stop; t.stopped {
		return errStopped
	}
	return nil
}

// call runs f, the last call of the transaction or another.
func (t *try[TX]) call(ctx context.Context, tx TX, last bool, f func(context.Context, TX) error) error {
	if before := t.before; before != nil {
		t.before = nil
		if err := before(); err != nil {
			return err
		}
	}
	err := recovered(ctx, tx, f)
	t.mu.Lock()
	if t.returned = last; t.stopped { // whatever the handler makes of it
		err = errStopped
	}
	if t.writes != nil {
		t.writes.begun.Store(last)
	}
	t.mu.Unlock()
	if err == nil && last && t.after != nil {
		err = t.after(tx)
	}
	if err == nil && last && t.poison {
		err = errPoison
	}
	return err
}

func recovered[TX any](ctx context.Context, tx TX, f func(context.Context, TX) error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v\n%s", v, debug.Stack())
		}
	}()
	return f(ctx, tx)
}

func (w *world[TX]) commit(t *try[TX]) error {
	ctx, cancel := context.WithTimeout(context.WithValue(stopat.With(w.ctx, t.statement), writesKey{}, t.writes), w.o.Timeout)
	defer cancel()
	var advances []epoch.Advance
	var all []epoch.Message
	var fs, calls []func(context.Context, TX) error
	for _, p := range w.partitions {
		f := t.as[p]
		var ms []epoch.Message
		for _, m := range t.messages {
			if m.Partition == p {
				m.Under = &f
				ms = append(ms, m)
			}
		}
		if len(ms) == 0 {
			continue
		}
		all = append(all, ms...)
		advances = append(advances, epoch.Advance{Partition: p, Claim: f.Claim, From: f.Next, To: ms[len(ms)-1].Offset + 1, Mark: epoch.NoMark})
		switch {
		case t.cause != nil:
			fs = append(fs, func(ctx context.Context, tx TX) error { return w.onFailure(ctx, tx, ms[0], f.Epoch, t.cause) })
		case w.batch != nil:
			fs = append(fs, func(ctx context.Context, tx TX) error { return w.batch(ctx, tx, ms, f.Epoch) })
		case w.each != nil:
			for _, m := range ms {
				fs = append(fs, func(ctx context.Context, tx TX) error { return w.each(ctx, tx, m, f.Epoch) })
			}
		}
	}
	if t.cause == nil && w.whole != nil {
		fs = append(fs, func(ctx context.Context, tx TX) error { return w.whole(ctx, tx, all) })
	}
	t.poison = t.cause == nil && w.fails != nil && slices.ContainsFunc(all, w.fails)
	for i, f := range fs {
		calls = append(calls, func(ctx context.Context, tx TX) error { return t.call(ctx, tx, i == len(fs)-1, f) })
	}
	if err := w.sink.Commit(ctx, advances, epoch.TxOptions{}, calls...); err != nil {
		return err
	}
	for _, a := range advances {
		f := t.as[a.Partition]
		f.Next, f.Mark = a.To, a.Mark
		t.as[a.Partition] = f
	}
	return nil
}

// apply applies messages in one transaction. If that fails it goes on as a consumer does: each message alone, another
// attempt, OnFailure.
func (w *world[TX]) apply(as owner, ms ...epoch.Message) error {
	others := slices.DeleteFunc(slices.Clone(ms), func(m epoch.Message) bool { return m.Partition == ms[0].Partition })
	if len(others) > 0 && w.sink.Facts().Partitions == 1 {
		first := slices.DeleteFunc(slices.Clone(ms), func(m epoch.Message) bool { return m.Partition != ms[0].Partition })
		if err := w.apply(as, first...); err != nil {
			return err
		}
		return w.apply(as, others...)
	}
	err := w.commit(&try[TX]{as: as, messages: ms})
	if err == nil {
		return nil
	}
	if len(ms) > 1 {
		for _, m := range ms {
			if err := w.apply(as, m); err != nil {
				return err
			}
		}
		return nil
	}
	if err = w.commit(&try[TX]{as: as, messages: ms}); err == nil {
		return nil
	}
	if w.onFailure == nil {
		return &failure{m: ms[0], err: err}
	}
	if again := w.commit(&try[TX]{as: as, messages: ms, cause: err}); again != nil {
		return &failure{ms[0], fmt.Errorf("OnFailure: %w, called because of: %w", again, err), true}
	}
	at := position{ms[0].Partition, ms[0].Offset}
	switch why := (&failure{m: ms[0], err: err}); {
	case w.first:
		if w.refused[at] = true; w.refusal == nil || errors.Is(err, epoch.ErrUnhealthy) {
			w.refusal = why
		}
	case w.fails != nil && w.follows == nil && !w.refused[at] && !w.fails(ms[0]):
		w.follows = why
	}
	return nil
}

type position struct {
	p  epoch.Partition
	at epoch.Offset
}

// failure is the error of a message that cannot be applied.
type failure struct {
	m         epoch.Message
	err       error
	onFailure bool // it has failed, too
}

func (f *failure) Unwrap() error { return f.err }

func (f *failure) Error() string { return fmt.Sprintf("%s fails: %v", name(f.m), f.err) }

// name returns a message as a story has it.
func name(m epoch.Message) string {
	return fmt.Sprintf("message %d/%d (%.40q)", m.Partition.Number, m.Offset, m.Value)
}

// Calls is another system, which counts how often it was called. Calls with one idempotency key count once. A handler
// calls it through net/http/httptest, or a fake of the user's calls [Calls.Add]. The zero value works.
type Calls struct {
	mu   sync.Mutex
	keys []string // of the calls that count
	all  int
}

// Add counts a call with an idempotency key. The empty key is none.
func (c *Calls) Add(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all++; key == "" {
		key = fmt.Sprintf("call %d without a key", c.all)
	}
	if !slices.Contains(c.keys, key) {
		c.keys = append(c.keys, key)
	}
}

// ServeHTTP answers 200. It counts a request that is neither GET nor HEAD, with its header Idempotency-Key.
func (c *Calls) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		c.Add(r.Header.Get("Idempotency-Key"))
	}
}

// Keys returns the keys of the calls that count, in the order of the first calls.
func (c *Calls) Keys() []string {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.keys)
}
