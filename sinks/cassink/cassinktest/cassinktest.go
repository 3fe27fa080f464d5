// Package cassinktest is the suite of package cassink on a [cas.Store].
package cassinktest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/castest"
	"github.com/epochfence/epochfence/cas/guard"
	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/memsource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/suites/verdict"
	"github.com/epochfence/epochfence/sinks/cassink"
)

// atOnce is how many histories Run plays at a time. They mostly wait.
const atOnce = 4

// Run plays every history, several at a time. They share a rig, under a prefix each.
func Run(t *testing.T, create func(t testing.TB) castest.Rig) {
	rig := create(t)
	var all sync.WaitGroup
	free := make(chan struct{}, atOnce)
	for n, h := range histories {
		free <- struct{}{}
		all.Go(func() {
			defer func() { <-free }()
			t.Run(h.claim, func(t *testing.T) {
				if h.served && !rig.Served {
					t.Skip("needs a server (Rig.Served)")
				}
				h.play(newWorld(t, fmt.Sprint("app", n), rig, h.partitions))
			})
		})
	}
	all.Wait()
}

// RunKilled plays the history that needs Rig.Kill, which [Run] does not have.
func RunKilled(t *testing.T, create func(t testing.TB) castest.Rig) {
	t.Run("each message takes effect once while the server or the leader is killed, and members freeze and are killed", func(t *testing.T) {
		killed(newWorld(t, "app", create(t), 3))
	})
}

// history is one property of consumers on the store and the play that shows it.
type history struct {
	claim      string
	partitions int32
	play       func(w *world)
	served     bool
}

var histories = []history{
	{claim: "an owner that is frozen before any of its writes, and thawed after a takeover, changes nothing twice", partitions: 2, play: frozen},
	{claim: "a dead letter that an operator has replayed takes effect once, after the messages behind it", partitions: 1, play: replayed},
	{claim: "an operator pauses, resumes and rewinds a partition under its live owner", partitions: 1, play: operated},
	{claim: "each message takes effect once while connections break, and all are applied when they are whole again", partitions: 2, play: breaks, served: true},
	{claim: "members that come and go apply each message once, on items that all partitions change", partitions: 4, play: comeAndGo},
	{claim: "each entry of the outbox is sent once and in order, and its answer changes an item once, while an owner is frozen", partitions: 2, play: posts},
	{claim: "an operator lists fences, processes, dead letters and decisions", partitions: 2, play: listed},
	{claim: "other programs read an item's value as the handlers have written it", partitions: 1, play: read},
}

// patience bounds each history. Three servers of a JVM each, of which the leader is killed again
// and again on a busy machine, take over a minute.
const patience = 3 * time.Minute

// world is what a history plays in: a log, and a store that its members write to.
type world struct {
	verdict.TB
	ctx    context.Context
	rig    castest.Rig
	prefix string // begins all keys
	log    *memsource.Log
	size   []int // of the partitions
	store  cas.Store
	sink   *cassink.Sink // of an operator

	mu     sync.Mutex
	failed map[string]bool // messages that have failed once
}

func newWorld(t testing.TB, prefix string, rig castest.Rig, partitions int32) *world {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	w := &world{
		TB: verdict.TB{TB: t}, ctx: ctx, rig: rig, prefix: prefix, log: memsource.New("orders", partitions), size: make([]int, partitions),
		store: rig.Open(t, direct), failed: map[string]bool{},
	}
	w.sink = w.open(w.store)
	return w
}

func direct(address string) string { return address }

func (w *world) open(s cas.Store) *cassink.Sink {
	w.Helper()
	sink, err := cassink.Open(w.ctx, s, cassink.Options{Prefix: w.prefix + "/epochfence"})
	w.NoError(err)
	return sink
}

func (w *world) partition(n int32) epoch.Partition {
	return epoch.Partition{Group: memsource.DefaultGroup, Topic: "orders", Number: n}
}

// sends appends messages to each partition.
func (w *world) sends(count int) {
	for n := range w.size {
		for range count {
			w.log.Append(int32(n), fmt.Sprintf("%d:%d", n, w.size[n]))
			w.size[n]++
		}
	}
}

// starts runs a member of the group until the history ends.
func (w *world) starts(name string, s cas.Store, h consumer.Handlers[*cassink.Tx]) *memsource.Member {
	w.Helper()
	sink, m := w.open(s), w.log.Member(name)
	ctx, stop := context.WithCancel(w.ctx)
	done := make(chan error, 1)
	go func() {
		done <- consumer.Run(ctx, m, sink, h, consumer.Options{
			Guarantee: epoch.PerItem, MaxBatch: 5, RetryMin: 5 * time.Millisecond, RetryMax: 200 * time.Millisecond,
			HaltMin: 50 * time.Millisecond, HaltMax: 500 * time.Millisecond, Logger: slog.New(slog.DiscardHandler),
		})
	}()
	w.Cleanup(func() {
		stop()
		err := <-done
		w.Wantf(err == nil || errors.Is(err, memsource.ErrKilled), "member %s: %v", name, err)
	})
	return m
}

// items are the keys that messages change, each of them messages of all partitions.
const items = 4

func (w *world) item(n int) string { return fmt.Sprint(w.prefix, "/stock/", n) }

// changes reports whether the message at this offset changes an item. All of them change the first.
func changes(offset, item int) bool { return item == 0 || offset%(items-1) == item-1 }

// apply appends the message to its items.
func (w *world) apply(ctx context.Context, tx *cassink.Tx, m consumer.Message) error {
	for n := range items {
		if !changes(int(m.Offset), n) {
			continue
		}
		if _, err := tx.Update(ctx, m, w.item(n), adds(string(m.Value))); err != nil {
			return err
		}
	}
	return nil
}

func adds(word string) guard.Change {
	return func(old guard.State) (guard.State, []byte, error) {
		words := append(strings.Fields(string(old.Value)), word)
		return guard.Text(strings.Join(words, " ")), []byte(strconv.Itoa(len(words) % 2)), nil
	}
}

var errOnce = errors.New("fails once")

// fails reports whether a message fails now: one in seven does, once.
func (w *world) fails(m consumer.Message) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if m.Offset%7 != 3 || w.failed[string(m.Value)] {
		return nil
	}
	w.failed[string(m.Value)] = true
	return errOnce
}

func (w *world) each() consumer.Handlers[*cassink.Tx] {
	return consumer.Each(func(ctx context.Context, tx *cassink.Tx, m consumer.Message, _ epoch.Epoch) error {
		if err := w.apply(ctx, tx, m); err != nil {
			return err
		}
		return w.fails(m)
	})
}

func (w *world) batches() consumer.Handlers[*cassink.Tx] {
	return consumer.Batches(func(ctx context.Context, tx *cassink.Tx, ms []consumer.Message, _ epoch.Epoch) error {
		if err := tx.Load(ctx, w.item(0), w.item(1)); err != nil {
			return err
		}
		for _, m := range ms {
			if err := w.apply(ctx, tx, m); err != nil {
				return err
			}
		}
		return w.fails(ms[0])
	})
}

// drains waits until the fences have passed all messages.
func (w *world) drains() {
	w.Helper()
	for n, size := range w.size {
		w.until(fmt.Sprintf("partition %d is applied", n), func() error { return w.at(int32(n), epoch.Offset(size)) })
	}
}

// at returns an error unless the fence has this position.
func (w *world) at(n int32, next epoch.Offset) error {
	f, err := epoch.FenceOf(w.ctx, w.sink, w.partition(n))
	if err == nil && f.Next != next {
		err = fmt.Errorf("its position is %d, want %d: %+v", f.Next, next, f)
	}
	return err
}

// until waits until see returns nil. A store may lag.
func (w *world) until(what string, see func() error) {
	w.Helper()
	for {
		err := see()
		if err == nil {
			return
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-w.ctx.Done():
			w.Fatalf("%s: %v", what, err)
		}
	}
}

// exact wants each item to have the messages of each partition once and in order.
func (w *world) exact() {
	w.Helper()
	for n := range items {
		for p, size := range w.size {
			var want []string
			for offset := range size {
				if changes(offset, n) {
					want = append(want, fmt.Sprintf("%d:%d", p, offset))
				}
			}
			w.has(n, int32(p), want...)
		}
	}
}

// has wants an item to have these messages of a partition.
func (w *world) has(item int, partition int32, want ...string) {
	w.Helper()
	var state guard.State
	w.until("read", func() (err error) {
		state, err = guard.Read(w.ctx, w.store, w.item(item))
		return err
	})
	got := slices.DeleteFunc(strings.Fields(string(state.Value)), func(word string) bool {
		return !strings.HasPrefix(word, fmt.Sprint(partition, ":"))
	})
	w.Wantf(slices.Equal(got, want), "%s has of partition %d\n%q, want\n%q", w.item(item), partition, got, want)
}
