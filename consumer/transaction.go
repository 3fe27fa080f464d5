package consumer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/epochfence/epochfence/consumer/internal/aside"
	"github.com/epochfence/epochfence/consumer/internal/stacks"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/waits"
	"github.com/epochfence/epochfence/operate"
)

// This file runs one transaction: which calls it makes and in which order, for how long it may take, what ends
// it early, and what is kept of its calls. committer.go decides which messages go into it, handlers.go passes it
// to the sink, and verdict.go decides what its result means.

// transaction applies messages of one or more partitions.
type transaction struct {
	run      *runner
	parts    []part
	lane     *lane
	beside   bool // others of its lane were open when it began
	timeout  time.Duration
	lockWait time.Duration

	// Set as it begins.
	began     time.Time
	goroutine string
	order     order
	places    []place            // of its calls, at least one
	one       [1]place           // where places is, if there is one call
	keyed     *keyed             // if they run byKey
	abandon   context.CancelFunc // ends it although a call may never return
	release   func()             // makes Run no longer wait for it

	// Of its own goroutine, and of its calls.
	mu       sync.Mutex
	result   result
	handling time.Time // since when handlers are called
	last     int       // number of the last call that began, or -1
	failed   error     // what a user's function returned, or how it ended
	at       place     // of the call that failed

	under     underCall
	over      bool          // it has an answer. The committer's lock guards it
	abandoned chan struct{} // closed once hangs is set
	hangs     []*hang
}

// part is what a transaction takes of the work of one partition.
type part struct {
	*work
	messages []Message
	advance  epoch.Advance
	epoch    epoch.Epoch
}

func newPart(w *work, n int) part {
	f, to := &w.fence, w.batch.Position(n)
	return part{work: w, messages: w.batch.Messages[:n], epoch: f.Epoch,
		advance: epoch.Advance{Partition: f.Partition, Claim: f.Claim, From: f.Next, To: to.Offset, Mark: to.Mark}}
}

var errTimeout = errors.New("transaction took longer than BatchTimeout")

// commit runs the transaction. late is called if it runs on long after its context has ended. If a
// handler ends this goroutine, the sink has rolled back, and the result is as it was then.
func (t *transaction) commit(base context.Context, late func()) {
	t.began, t.goroutine, t.last = time.Now(), stacks.Name(), -1
	t.plan()
	t.result = result{at: -1, err: errGoexit, handler: errGoexit}
	abandoned, abandon := context.WithCancel(context.Background())
	defer abandon()
	t.abandon = abandon
	ctx, cancel := context.WithCancelCause(t.withValues(base))
	defer cancel(nil)
	// R12: the sink gives up with the context, and the database by its own timeouts.
	ctx, done := context.WithTimeoutCause(ctx, t.timeout, errTimeout)
	defer done()
	overdue := waits.AfterEnd(ctx, t.run.hangTimeout(t.timeout), late)
	defer overdue.Stop()
	overrun := waits.NewLateness(func() {
		if t.under.running() {
			overdue.Then()
		}
	})
	defer overrun.Stop()
	for i := range t.parts {
		lost := t.parts[i].lost
		// One lost partition aborts all: R13 leaves no time to separate them.
		stop := context.AfterFunc(lost, func() {
			cancel(context.Cause(lost))
			if errors.Is(context.Cause(lost), ErrDrainOverrun) {
				overrun.Within(overrunGrace)
			}
		})
		defer stop()
	}
	// A freeze may cost the transaction its connection or its time, which is then no message's
	// fault (L2).
	watch := waits.AfterAwake(2*t.timeout, func() {})
	defer watch.Stop()
	a := t.parts[0].advance // while Run ends, operators see what it waits for
	defer t.run.underWay.Done(t.run.underWay.Add(&aside.Transaction{Partition: a.Partition, From: a.From, To: a.To, Timeout: t.timeout, Beside: len(t.parts) - 1}))

	r := &t.result
	defer func() { r.took = time.Since(t.began) }()
	// The sink compares the fences after all calls, right before COMMIT (R4).
	o := epoch.TxOptions{LockWait: t.lockWait, Abandoned: abandoned}
	if t.keyed != nil {
		o.Beside = t.keyed.run
	}
	r.err = t.run.effects.commit(ctx, t, o)
	t.conclude()
	r.froze = watch.Stop()
	r.timedOut = r.err != nil && errors.Is(context.Cause(ctx), errTimeout)
}

// order is how the calls of a transaction run.
type order int

const (
	oneByOne order = iota // in the order of the messages
	byKey                 // those of one key are, and others beside them: see [EachKey]
	together              // one call has the messages of several partitions: see [EachTransaction]
)

// plan decides which calls the transaction makes, and in which order. What was narrowed down and has failed
// again runs one by one, so that nothing beside it can be why.
func (t *transaction) plan() {
	if t.run.whole && len(t.parts) > 1 {
		t.order = together
	} else {
		calls := len(t.parts)
		if !t.run.batches {
			calls = t.messages()
		}
		t.places = slices.Grow(t.one[:0], calls)
		for i := range t.parts {
			switch p := &t.parts[i]; {
			case len(p.messages) == 0:
			case p.failed != nil:
				t.places = append(t.places, place{i, 0})
			case t.run.batches:
				t.places = append(t.places, place{i, -1})
			default:
				for at := range p.messages {
					t.places = append(t.places, place{i, at})
				}
			}
		}
	}
	if len(t.places) == 0 { // or only positions move
		t.places = append(t.one[:0], place{0, -1})
	}
	if t.run.beside > 1 && len(t.places) > 1 && !t.parts[0].again {
		t.order, t.keyed = byKey, t.byKey()
	}
}

// conclude says of which message the error of the transaction is.
func (t *transaction) conclude() {
	r := &t.result
	r.at, r.handler, r.limit, r.whole, r.beside = -1, nil, t.timeout, t.order == together, t.order == byKey
	if t.last >= 0 && t.order != byKey { // beside each other, any that were reached may be the one
		r.reached, r.cut = t.places[t.last], t.last < len(t.places)-1
	}
	if t.failed != nil {
		r.batch, r.at, r.handler = t.at.batch, t.at.at, t.failed
	}
	// The sink may know better than the handler's return value which call failed: a handler may
	// hide an error of its transaction, and return nil.
	if c, ok := errors.AsType[*epoch.CallError](r.err); ok && c.Call >= 0 && c.Call < len(t.places) {
		at := t.places[c.Call]
		r.batch, r.at, r.handler = at.batch, at.at, c.Err
	}
	// A commit cannot have begun while calls were left, so the message that was reached is the one
	// to suspect.
	r.cut = r.cut && r.handler == nil
	if ms := t.parts[r.batch].messages; r.handler != nil && len(ms) > 0 {
		r.offset = ms[max(r.at, 0)].Offset
	}
	r.handler = operate.InTrace(r.handler, operate.TraceOf(r.err))
}

// call runs f, a user's function, as call n. The result names its place while it runs: it may end its
// goroutine.
func (t *transaction) call(ctx context.Context, n int, f func() error) error {
	r, at, goroutine := &t.result, t.places[n], t.goroutine
	if t.keyed != nil {
		goroutine = t.keyed.goroutines[n]
	}
	t.mu.Lock()
	if !r.called {
		r.called, t.handling = true, time.Now()
	}
	r.batch, r.at, t.last = at.batch, at.at, n
	t.mu.Unlock()
	if !t.under.enter(n, goroutine) {
		return epoch.ErrAbandoned
	}
	defer t.under.leave(n)
	err := context.Cause(ctx)
	defer func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		r.handling = time.Since(t.handling)
		if err != nil && t.failed == nil { // beside each other, those after the first may fail because of it
			t.failed, t.at = err, at
		}
	}()
	if err == nil || n == 0 { // otherwise its time is up between two messages
		err = errGoexit
		err = guard(f)
	}
	if err != nil {
		return &maskedError{err}
	}
	return nil
}

// withValues puts what the sink does at the end under the trace of the first message.
func (t *transaction) withValues(ctx context.Context) context.Context {
	for _, p := range t.parts {
		if len(p.messages) > 0 {
			return withValues(ctx, p.messages[0])
		}
	}
	return ctx
}

// trials returns what policy.judge needs to know of each partition, as of the end of the
// transaction.
func (t *transaction) trials() []trial {
	ts := make([]trial, len(t.parts))
	for i, p := range t.parts {
		ts[i] = p.trial
		ts[i].messages, ts[i].lost = len(p.messages), p.lost.Err() != nil
		if len(p.messages) > 0 {
			ts[i].first = p.messages[0].Offset
		}
	}
	return ts
}

// messages returns how many messages the transaction has, of all partitions.
func (t *transaction) messages() int {
	n := 0
	for i := range t.parts {
		n += len(t.parts[i].messages)
	}
	return n
}

func (t *transaction) String() string {
	var b strings.Builder
	b.WriteString("transaction of")
	for _, p := range t.parts {
		fmt.Fprintf(&b, " %s [%d, %d)", p.advance.Partition, p.advance.From, p.advance.To)
	}
	return b.String()
}

// underCall are the running calls of a transaction, with their goroutines.
type underCall struct {
	mu   sync.Mutex
	over bool
	runs map[int]string
}

// enter reports whether the call may begin. None may after the transaction was abandoned.
func (u *underCall) enter(call int, goroutine string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.runs == nil {
		u.runs = map[int]string{}
	}
	if !u.over {
		u.runs[call] = goroutine
	}
	return !u.over
}

func (u *underCall) leave(call int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.runs, call)
}

// running reports whether a call is under way. Between two calls, and once abandon was called, it is false.
func (u *underCall) running() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return !u.over && len(u.runs) > 0
}

// abandon stops further calls and returns those under way. open reports whether the transaction was not over
// before.
func (u *underCall) abandon() (calls map[int]string, open bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	open, u.over = !u.over, true
	return maps.Clone(u.runs), open
}

// keyed are the calls of a transaction, of which several may run.
type keyed struct {
	next       []int    // by call: the next one with its key, or 0
	goroutines []string // by call: who runs it
	ready      chan int // calls that may begin; has room for all
	workers    int

	mu   sync.Mutex
	left int // calls that have not returned
	err  error
}

// byKey plans the calls so that those of messages with one key of a partition are in order.
func (t *transaction) byKey() *keyed {
	type key struct {
		part int
		key  string
	}
	n := len(t.places)
	k := &keyed{next: make([]int, n), goroutines: make([]string, n), ready: make(chan int, n), left: n}
	last := map[key]int{}
	for call, at := range t.places {
		of := key{at.batch, string(t.parts[at.batch].messages[at.at].Key)}
		if before, is := last[of]; is {
			k.next[before] = call
		} else {
			k.ready <- call
		}
		last[of] = call
	}
	k.workers = min(t.run.beside, len(last))
	return k
}

// run is [epoch.TxOptions.Beside].
func (k *keyed) run(_ int, call func(i int) error) error {
	var all sync.WaitGroup
	for range k.workers {
		all.Go(func() { k.work(call) })
	}
	all.Wait()
	return k.err
}

// work runs calls until none is left that may begin.
func (k *keyed) work(call func(i int) error) {
	name := stacks.Name()
	for i := range k.ready {
		k.goroutines[i] = name
		err := errGoexit
		func() {
			defer func() { k.ended(i, err) }()
			err = call(i)
		}()
	}
}

// ended lets the next call with the key begin. After a failure, none begins.
func (k *keyed) ended(i int, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.left--
	switch {
	case k.err != nil:
	case err != nil, k.left == 0:
		k.err = err
		close(k.ready)
		for range k.ready { // they may not begin any more
		}
	case k.next[i] > 0:
		k.ready <- k.next[i]
	}
}
