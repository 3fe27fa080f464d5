// Package guardtest is the suite of package guard on a [cas.Store].
package guardtest

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/castest"
	"github.com/epochfence/epochfence/cas/guard"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/servers/proxy"
	"github.com/epochfence/epochfence/internal/suites/verdict"
)

// Run plays every history on a rig of its own.
func Run(t *testing.T, create func(t testing.TB) castest.Rig) {
	for _, h := range histories {
		t.Run(h.claim, func(t *testing.T) {
			rig := create(t)
			if h.served && !rig.Served {
				t.Skip("needs a server (Rig.Served)")
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			h.play(&world{TB: verdict.TB{TB: t}, ctx: ctx, rig: rig})
		})
	}
}

type history struct {
	claim  string
	served bool
	play   func(w *world)
}

var histories = []history{
	{"of two owners that apply the same messages one is stopped, and each takes effect once", false, overtakes},
	{"messages that are delivered again while connections break take effect once", true, breaks},
	{"a deleted item remembers the messages before its deletion", false, deletes},
	{"two partitions change one item, each message once", false, twoPartitions},
	{"a message whose outcome was not written may have another one, whatever later messages of its batch have changed", false, anotherOutcome},
}

type world struct {
	verdict.TB
	ctx context.Context
	rig castest.Rig
}

func direct(address string) string { return address }

const (
	messages = 15
	items    = 3
)

func item(n int) string { return fmt.Sprint("stock/", n) }

func stamp(partition int32, e epoch.Epoch, offset epoch.Offset) guard.Stamp {
	return guard.Stamp{
		Partition: epoch.Partition{Group: "billing", Topic: "orders", Number: partition}, Log: "log", Epoch: e, Offset: offset, Mark: epoch.NoMark,
	}
}

// add appends a word to an item.
func add(word string) guard.Change {
	return func(old guard.State) (guard.State, []byte, error) {
		words := append(strings.Fields(string(old.Value)), word)
		return guard.Text(strings.Join(words, " ")), []byte(strconv.Itoa(len(words))), nil
	}
}

// applies has a partition's messages applied, each until it has succeeded, unless their owner is
// stopped.
func (w *world) applies(s cas.Store, partition int32, e epoch.Epoch) error {
	for offset := range epoch.Offset(messages) {
		for {
			err := w.one(s, stamp(partition, e, offset))
			if err == nil {
				break
			}
			if errors.Is(err, guard.ErrStale) || w.ctx.Err() != nil {
				return err
			}
		}
	}
	return nil
}

func (w *world) one(s cas.Store, at guard.Stamp) error {
	ctx, cancel := context.WithTimeout(w.ctx, 3*time.Second)
	defer cancel()
	m := guard.New(s, at)
	for n := range items {
		_, err := m.Update(ctx, item(n), add(fmt.Sprintf("%d:%d", at.Partition.Number, at.Offset)))
		if errors.Is(err, guard.ErrPassed) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// exact wants each item to have each message of the partitions once and in order.
func (w *world) exact(partitions int) {
	w.Helper()
	s := w.rig.Open(w, direct)
	for n := range items {
		state, err := guard.Read(w.ctx, s, item(n))
		w.NoError(err)
		next := make([]int, partitions)
		for _, word := range strings.Fields(string(state.Value)) {
			var partition, offset int
			if _, err := fmt.Sscanf(word, "%d:%d", &partition, &offset); err != nil {
				w.Fatal(err)
			}
			w.Wantf(offset == next[partition], "%s: %s, want offset %d: %s", item(n), word, next[partition], state.Value)
			next[partition] = offset + 1
		}
		for partition, end := range next {
			w.Wantf(end == messages, "%s has %d messages of partition %d, want %d: %s", item(n), end, partition, messages, state.Value)
		}
	}
}

func overtakes(w *world) {
	var owners sync.WaitGroup
	for e := range epoch.Epoch(2) {
		s := w.rig.Open(w, direct)
		owners.Go(func() {
			err := w.applies(s, 0, e+1)
			w.Wantf(err == nil || e != 1 && errors.Is(err, guard.ErrStale), "epoch %d: %v", e+1, err)
		})
	}
	owners.Wait()
	w.exact(1)
	s := w.rig.Open(w, direct)
	w.NoError(w.one(s, stamp(0, 2, messages)))
	for offset := range epoch.Offset(messages + 2) {
		err := w.one(s, stamp(0, 1, offset))
		w.Wantf(errors.Is(err, guard.ErrStale), "the first owner wakes up at %d: %v", offset, err)
	}
}

func breaks(w *world) {
	p, via, err := proxy.Between()
	w.NoError(err)
	w.Cleanup(p.Close)
	s := w.rig.Open(w, via)
	done := make(chan struct{})
	var faults sync.WaitGroup
	faults.Go(func() { w.disturbs(p, done) })
	err = w.applies(s, 0, 1)
	close(done)
	faults.Wait()
	w.NoError(err)
	w.exact(1)
}

// disturbs breaks the connection a few times, and lets it be restored in between.
func (w *world) disturbs(p *proxy.Proxy, done <-chan struct{}) {
	for _, fault := range []func(){p.LoseAnswer, p.LoseRequest, p.LoseAnswer, p.Cut, p.LoseAnswer} {
		fault()
		for _, next := range []func(){p.Pass, func() {}} {
			timer := time.NewTimer(200 * time.Millisecond)
			select {
			case <-timer.C:
				next()
			case <-done:
				timer.Stop()
				return
			}
		}
	}
}

func deletes(w *world) {
	s := w.rig.Open(w, direct)
	apply := func(offset epoch.Offset, change guard.Change) error {
		_, err := guard.Apply(w.ctx, s, item(0), stamp(0, 1, offset), change)
		return err
	}
	gone := func(guard.State) (guard.State, []byte, error) { return guard.State{}, nil, nil }
	for offset, change := range []guard.Change{add("0"), gone} {
		w.NoError(apply(epoch.Offset(offset), change))
	}
	if err := apply(0, add("0")); !errors.Is(err, guard.ErrPassed) {
		w.Errorf("the message before the deletion: %v", err)
	}
	if state, err := guard.Read(w.ctx, s, item(0)); err != nil || state.Exists {
		w.Errorf("%+v, %v", state, err)
	}
	w.NoError(apply(2, add("2")))
	if state, err := guard.Read(w.ctx, s, item(0)); err != nil || string(state.Value) != "2" {
		w.Errorf("%+v, %v", state, err)
	}
}

func twoPartitions(w *world) {
	var owners sync.WaitGroup
	for partition := range int32(2) {
		s := w.rig.Open(w, direct)
		owners.Go(func() {
			err := w.applies(s, partition, 1)
			w.Wantf(err == nil, "partition %d: %v", partition, err)
		})
	}
	owners.Wait()
	w.exact(2)
}

// loses is a store that loses the writes of an item.
type loses struct {
	cas.Store
	key string
}

func (l *loses) Swap(ctx context.Context, seen cas.Item, value, note []byte) (cas.Item, error) {
	if seen.Key == l.key {
		return cas.Item{}, errors.New("the request was lost")
	}
	return l.Store.Swap(ctx, seen, value, note)
}

// anotherOutcome has message 0 change item 0, and item 1 only if item 0 had something. Message 1 changes item 1,
// and message 2 changes item 0.
func anotherOutcome(w *world) {
	s := &loses{w.rig.Open(w, direct), item(0)}
	deliver := func() error {
		b := guard.Begin(s, stamp(0, 1, 0))
		for offset := range epoch.Offset(3) {
			at := epoch.Position{Offset: offset, Mark: epoch.NoMark}
			outcome, err := b.Update(w.ctx, at, item(int(offset%2)), add(fmt.Sprint(offset)))
			if err == nil && offset == 0 && string(outcome) != "1" {
				_, err = b.Update(w.ctx, at, item(1), add("0"))
			}
			if err != nil {
				return err
			}
		}
		return b.Write(w.ctx)
	}
	if err := deliver(); !errors.Is(err, guard.ErrDoubt) {
		w.Errorf("while writes are lost: %v", err)
	}
	if _, err := guard.Apply(w.ctx, s.Store, item(0), stamp(1, 1, 0), add("theirs")); err != nil {
		w.Fatal(err)
	}
	s.key = ""
	w.NoError(deliver())
	for n, want := range []string{"theirs 0 2", "0 1"} {
		state, err := guard.Read(w.ctx, s, item(n))
		w.Wantf(err == nil && string(state.Value) == want, "item %d is %q, want %q; %v", n, state.Value, want, err)
	}
}
