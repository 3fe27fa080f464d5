package batches_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/outbox"
)

const patience = time.Minute

// The steps of a relay in the database. kafka_rig_test.go and nats_rig_test.go have those in the servers.
const (
	stepBegin     = -1 // before a transaction of the database
	stepCommitted = -2 // after it
)

// process is one that may run a relay: what it does at a step can be held up, and its connections cut.
type process struct {
	at       func(step int) // called before each step; it may block
	answered func(step int) // called when the answer has come, before the process sees it; it may block
	lose     func(step int) bool

	opening atomic.Bool // a box: its requests are no steps

	mu   sync.Mutex
	dead bool
}

func (p *process) kill()   { p.setDead(true) }
func (p *process) revive() { p.setDead(false) }

func (p *process) setDead(dead bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dead = dead
}

func (p *process) killed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dead
}

func killedAt(step int) *process {
	stop, p := stopAt(step, 0), &process{}
	p.at = func(at int) {
		if stop.is(at) {
			p.kill()
		}
	}
	return p
}

var errKilled = errors.New("the process was killed")

// claim is a consumer.Background.
type claim struct {
	db      *database
	of      *process
	epoch   epoch.Epoch
	applied chan struct{}
	end     context.CancelFunc
}

func (c *claim) Partition() epoch.Partition { return orders }
func (c *claim) Epoch() epoch.Epoch         { return c.epoch }
func (c *claim) Applied() <-chan struct{}   { return c.applied }
func (c *claim) Above(epoch.Epoch) error    { return nil }

func (c *claim) Do(ctx context.Context, apply func(context.Context, *tx) error) error {
	c.of.at(stepBegin)
	if err := ctx.Err(); err != nil {
		return err
	}
	if c.of.killed() {
		return errKilled
	}
	err := c.db.Do(c.epoch, func(t *tx) error { return apply(ctx, t) })
	if errors.Is(err, epoch.ErrStale) {
		c.end()
	}
	c.of.at(stepCommitted)
	if c.of.killed() {
		return errKilled
	}
	return err
}

// destination is what a rig needs of Kafka or NATS.
type destination interface {
	// relay returns Box.Relay of a new box of a process, whose steps begin afterwards.
	relay(p *process) func(context.Context, consumer.Background[*tx])

	// add adds records with these keys, whose values are numbers that rise.
	add(keys ...string)

	// found returns what a reader of the target finds, by key.
	found() map[string][]int
}

// rig is a database, and a server with a target.
type rig struct {
	*testing.T
	destination
	db    *database
	steps map[int]step

	mu      sync.Mutex
	running []*running
	events  []outbox.Event
	added   map[string][]int // by key, in order
	n       int
}

// step is one of a relay.
type step struct {
	name  string
	times int // how often a process that sends some comes there, at least
	again int // which of a successor's is held up, from 0
}

type running struct {
	*claim
	done chan struct{}
}

// startRig returns a rig without a server. Its relays end with the test.
func startRig(t *testing.T, method string, steps map[int]step) *rig {
	r := &rig{T: t, db: newDatabase(method), steps: steps, added: map[string][]int{}}
	t.Cleanup(func() {
		for _, run := range r.all() {
			r.stop(run)
		}
	})
	return r
}

func (r *rig) all() []*running {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.running)
}

// takeOver claims the partition for p, and runs its relay.
func (r *rig) takeOver(p *process) *running {
	r.Helper()
	if p.at == nil {
		p.at = func(int) {}
	}
	relay := r.relay(p)
	r.db.Lock()
	r.db.Owner++
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.Context()))
	run := &running{&claim{db: r.db, of: p, epoch: r.db.Owner, applied: make(chan struct{}, 1), end: cancel}, make(chan struct{})}
	r.db.Unlock()
	r.mu.Lock()
	r.running = append(r.running, run)
	r.mu.Unlock()
	go func() {
		defer close(run.done)
		relay(ctx, run)
	}()
	return run
}

func (r *rig) stop(run *running) {
	r.Helper()
	run.end()
	select {
	case <-run.done:
	case <-time.After(patience):
		r.Error("the relay did not return")
	}
}

// ends waits until a relay has noticed that its claim was replaced.
func (r *rig) ends(run *running) {
	r.Helper()
	select {
	case <-run.done:
	case <-time.After(patience):
		r.Fatal("the relay did not notice that its claim was replaced")
	}
}

// commit runs a handler's transaction, and tells the relays.
func (r *rig) commit(apply func(*tx) error) {
	r.Helper()
	if err := r.db.Do(0, apply); err != nil {
		r.Fatal(err)
	}
	for _, run := range r.all() {
		select {
		case run.applied <- struct{}{}:
		default:
		}
	}
}

func (r *rig) await(what string, ok func() bool) {
	r.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(patience)
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			r.Fatalf("not within %v: %s; left: %+v", patience, what, r.db.Left())
		}
	}
}

func (r *rig) awaitEmpty() {
	r.Helper()
	r.await("an empty outbox", func() bool { return len(r.db.Left()) == 0 })
}

// awaitSent does not wait until the partition is idle.
func (r *rig) awaitSent() {
	r.Helper()
	r.await("all records to be sent", func() bool { return len(r.db.Records()) == 0 })
}

// wantAll checks that the target has what was added, once and in the order of each key.
func (r *rig) wantAll() {
	r.Helper()
	found := r.found()
	for key, want := range r.added {
		if got := found[key]; !slices.Equal(got, want) {
			r.Errorf("key %s: a reader has %v, want %v", key, got, want)
		}
	}
}

func (r *rig) observe(e outbox.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
}

func (r *rig) observed(kind outbox.Kind) (ids []int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.events {
		if e.Kind == kind {
			ids = append(ids, e.ID)
		}
	}
	return ids
}

// batch returns the entry of the assigned batch.
func (r *rig) batch() outbox.Row {
	r.Helper()
	for _, row := range r.db.Left() {
		if row.Method == "BATCH" {
			return row
		}
	}
	r.Fatalf("no batch is assigned; left: %+v", r.db.Left())
	return outbox.Row{}
}

func itoa(id int64) string { return strconv.FormatInt(id, 10) }

// lines is a log that tests read.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// logger is that of a rig's relays.
func logger(t *testing.T) *slog.Logger {
	if testing.Verbose() && os.Getenv("OUTBOX_LOG") != "" {
		return slog.New(slog.NewTextHandler(t.Output(), nil))
	}
	return slog.New(slog.DiscardHandler)
}
