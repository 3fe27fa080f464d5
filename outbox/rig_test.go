package outbox_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/outbox"
	"github.com/epochfence/epochfence/outbox/httpfence"
)

// database is one in memory: entries, and a list that transactions append to.
type database struct {
	mu    sync.Mutex
	state state
	last  int64
	begun int // transactions

	// fail, if it is set, is asked before a transaction commits.
	fail func(n int) error
}

type state struct {
	rows   map[int64]outbox.Row
	added  map[int64]int // the commit of each entry
	commit int
	list   []string
}

// tx is a transaction on a copy.
type tx struct {
	db *database
	state
}

func (t *tx) note(s string) { t.list = append(slices.Clone(t.list), s) }

func newDatabase() *database {
	return &database{state: state{rows: map[int64]outbox.Row{}, added: map[int64]int{}}}
}

// open is a transaction that has added entries, and commits when it is told to:
// others run and commit beside it.
type open struct {
	db   *database
	rows []outbox.Row
}

func (o *open) commit() {
	o.db.mu.Lock()
	defer o.db.mu.Unlock()
	s := &o.db.state
	s.rows, s.added = maps.Clone(s.rows), maps.Clone(s.added)
	s.commit++
	for _, row := range o.rows {
		s.rows[row.ID], s.added[row.ID] = row, s.commit
	}
}

func (db *database) do(apply func(*tx) error) error {
	db.mu.Lock()
	defer db.mu.Unlock()
	t := &tx{db: db, state: db.state}
	t.rows, t.added, t.state.commit = maps.Clone(t.rows), maps.Clone(t.added), t.state.commit+1
	db.begun++
	err := apply(t)
	if err == nil && db.fail != nil {
		err = db.fail(db.begun)
	}
	if err == nil {
		db.state = t.state
	}
	return err
}

func (db *database) notes() []string {
	db.mu.Lock()
	defer db.mu.Unlock()
	return db.state.list
}

func (db *database) left() []outbox.Row {
	db.mu.Lock()
	defer db.mu.Unlock()
	return slices.SortedFunc(maps.Values(db.state.rows), func(a, b outbox.Row) int { return cmp.Compare(a.ID, b.ID) })
}

// table is the outbox.Store of a database.
type table struct{}

func (table) Add(_ context.Context, t *tx, m epoch.Message, e outbox.Entry) error {
	t.db.last++
	t.rows[t.db.last], t.added[t.db.last] = outbox.Row{ID: t.db.last, Offset: m.Offset, Entry: e}, t.state.commit
	return nil
}

func (table) Retries(context.Context, *tx, epoch.Partition, []int64) ([]int64, error) {
	return nil, nil
}

func (table) Scan(_ context.Context, t *tx, _ epoch.Partition, from outbox.Cursor, limit int) (all []outbox.Row, _ outbox.Cursor, err error) {
	seen, _ := strconv.Atoi(from.Seen)
	for id, commit := range t.added {
		if _, there := t.rows[id]; there && id <= from.ID && commit > seen {
			from.ID = id - 1
		}
	}
	at, size := outbox.Cursor{ID: from.ID, Seen: strconv.Itoa(t.state.commit)}, 0
	for _, id := range slices.Sorted(maps.Keys(t.rows)) {
		if id > from.ID && len(all) < limit && !at.More {
			all = append(all, t.rows[id])
			size += len(t.rows[id].Body)
			at.ID, at.More = id, size >= outbox.ScanBytes
		}
	}
	return all, at, nil
}

func (table) Next(_ context.Context, t *tx, _ epoch.Partition, at outbox.Cursor, after []outbox.Place) (all []outbox.Row, err error) {
	seen, _ := strconv.Atoi(at.Seen)
	for _, a := range after {
		for _, id := range slices.Sorted(maps.Keys(t.rows)) {
			if id > a.ID && t.rows[id].Key == a.Key {
				if t.added[id] <= seen {
					all = append(all, t.rows[id])
				}
				break
			}
		}
	}
	return all, nil
}

func (table) Load(_ context.Context, t *tx, _ epoch.Partition, ids []int64) (all []outbox.Row, err error) {
	for _, id := range ids {
		if row, ok := t.rows[id]; ok {
			all = append(all, row)
		}
	}
	return all, nil
}

func (table) Count(_ context.Context, t *tx, _ epoch.Partition, limit int) (entries int, oldest time.Time, err error) {
	if len(t.rows) > 0 {
		oldest = began
	}
	return min(len(t.rows), limit), oldest, nil
}

// began is when all entries of a table were added.
var began = time.Unix(1_000_000_000, 0)

func (table) Delete(_ context.Context, t *tx, _ epoch.Partition, ids []int64) (there []int64, err error) {
	for _, id := range ids {
		if _, ok := t.rows[id]; ok {
			there = append(there, id)
			delete(t.rows, id)
		}
	}
	return there, nil
}

// claim is a consumer.Background.
type claim struct {
	db      *database
	epoch   epoch.Epoch
	applied chan struct{}

	mu      sync.Mutex
	stale   error
	above   []epoch.Epoch // what the relay has asked for
	onAbove func()        // if it is set
}

var orders = epoch.Partition{Group: "billing", Topic: "orders", Number: 3}

func (c *claim) Partition() epoch.Partition { return orders }
func (c *claim) Epoch() epoch.Epoch         { return c.epoch }
func (c *claim) Applied() <-chan struct{}   { return c.applied }

func (c *claim) Do(ctx context.Context, apply func(context.Context, *tx) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return c.db.do(func(t *tx) error {
		if err := apply(ctx, t); err != nil {
			return err
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.stale
	})
}

// Above refuses what is out of reach, as the consumer does.
func (c *claim) Above(seen epoch.Epoch) error {
	if seen > epoch.MaxAbove {
		return errTest
	}
	c.mu.Lock()
	c.above = append(c.above, seen)
	c.mu.Unlock()
	if c.onAbove != nil {
		c.onAbove()
	}
	return nil
}

// lose makes every transaction of the claim stale.
func (c *claim) lose() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stale = &epoch.StaleError{Partition: orders}
}

// rig is a box, its database and a receiver.
type rig struct {
	*testing.T
	db  *database
	box *outbox.Box[*tx]
	url string

	mu     sync.Mutex
	got    []string // bodies, in the order in which they came
	calls  []httpfence.Call
	events []outbox.Event
}

// newRig has a receiver that answers as told: with a status, or 0 to answer
// nothing.
func newRig(t *testing.T, o outbox.Options[*tx], answer func(r *http.Request, body string) int) *rig {
	t.Helper()
	r := &rig{T: t, db: newDatabase()}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		c, err := httpfence.ReadCall(req.Header)
		if err != nil {
			t.Error(err)
		}
		r.mu.Lock()
		r.got, r.calls = append(r.got, string(body)), append(r.calls, c)
		r.mu.Unlock()
		status := answer(req, string(body))
		if status == 0 {
			panic(http.ErrAbortHandler)
		}
		w.Header().Set("X-Answer", "yes")
		w.WriteHeader(status)
		_, _ = fmt.Fprintf(w, "answer to %s", body)
	}))
	t.Cleanup(srv.Close)
	r.url = srv.URL
	return r.withBox(o, srv.Client())
}

// withBox gives r a box that sends with client and whose events it keeps.
func (r *rig) withBox(o outbox.Options[*tx], client *http.Client) *rig {
	r.Helper()
	o.Client, o.Logger = client, slog.New(slog.DiscardHandler)
	o.Observe = func(e outbox.Event) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.events = append(r.events, e)
	}
	box, err := outbox.New(table{}, o)
	if err != nil {
		r.Fatal(err)
	}
	r.box = box
	return r
}

// add adds entries in one transaction, each "key body".
func (r *rig) add(entries ...string) {
	r.Helper()
	err := r.db.do(func(t *tx) error {
		for _, e := range entries {
			var key, body string
			if _, err := fmt.Sscanf(e, "%s %s", &key, &body); err != nil {
				return err
			}
			if key == "-" {
				key = ""
			}
			err := r.box.Add(r.Context(), t, epoch.Message{Partition: orders},
				outbox.Entry{Key: key, Scope: "scope/" + key, URL: r.url, Body: []byte(body)})
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		r.Fatal(err)
	}
}

// adding is a transaction that has added an entry, "key body", and has not committed.
func (r *rig) adding(entry string) *open {
	r.Helper()
	o := &open{db: r.db}
	var id int64
	r.add(entry)
	_ = r.db.do(func(t *tx) error { // nobody has seen it
		id = t.db.last
		o.rows = []outbox.Row{t.rows[id]}
		delete(t.rows, id)
		return nil
	})
	return o
}

// transactions is how many have begun.
func (r *rig) transactions() int {
	r.db.mu.Lock()
	defer r.db.mu.Unlock()
	return r.db.begun
}

// running is a relay under one claim.
type running struct {
	*claim
	end  func() // ends the claim's context
	done chan struct{}
}

func (r *rig) relay(e epoch.Epoch) *running {
	c := &claim{db: r.db, epoch: e, applied: make(chan struct{}, 1)}
	ctx, cancel := context.WithCancel(r.Context())
	c.onAbove = cancel // the next claim comes
	run := &running{c, cancel, make(chan struct{})}
	go func() {
		defer close(run.done)
		r.box.Relay(ctx, c)
	}()
	r.Cleanup(func() { r.stop(run) })
	return run
}

func (r *rig) stop(run *running) {
	r.Helper()
	run.end()
	r.over(run)
}

// over waits until the relay has returned.
func (r *rig) over(run *running) {
	r.Helper()
	select {
	case <-run.done:
	case <-time.After(patience):
		r.Fatal("the relay did not return")
	}
}

// wake tells the relay that messages were applied.
func (run *running) wake() {
	select {
	case run.applied <- struct{}{}:
	default:
	}
}

// patience bounds a wait, also on a machine that is busy with other things.
const patience = time.Minute

func (r *rig) await(what string, ok func() bool) {
	r.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(patience)
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			left, received := r.db.left(), r.received()
			r.Fatalf("not within %v: %s; %d left: %v, received %d: %v", patience, what, len(left), left[:min(len(left), 20)], len(received), received[:min(len(received), 20)])
		}
	}
}

func (r *rig) awaitEmpty() {
	r.Helper()
	r.await("an empty outbox", func() bool { return len(r.db.left()) == 0 })
}

func (r *rig) received() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.got)
}

func (r *rig) observed() []outbox.Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.events)
}

func (r *rig) wantReceived(want ...string) {
	r.Helper()
	if got := r.received(); !slices.Equal(got, want) {
		r.Errorf("received %q, want %q", got, want)
	}
}

// fast makes failures short.
var fast = outbox.Options[*tx]{RetryMin: time.Millisecond, RetryMax: 5 * time.Millisecond}

var errTest = errors.New("of the test")
