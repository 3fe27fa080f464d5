package cassink_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/memstore"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/sinks/cassink"
)

// mostOfFence limits the item of a fence, in bytes, beside what the last transaction has added.
const mostOfFence = 8 << 10

func (w *owner) fenceIsSmall(s cas.Store, after string) {
	w.Helper()
	it, err := s.Get(w.Context(), fenceKey)
	must(w.T, err)
	if len(it.Value) > mostOfFence {
		w.Errorf("the fence has %d bytes after %s, the limit is %d", len(it.Value), after, mostOfFence)
	}
}

// Nobody commits, as when the partition is idle and its processes come and go.
func TestAFenceDoesNotGrowWithClaims(t *testing.T) {
	t.Parallel()
	mem := memstore.New()
	w := owns(t, mem, orders)
	for range 1000 {
		w.claims()
	}
	w.fenceIsSmall(mem, "1000 claims")
}

func TestAClaimIsNotHeldUpByTheAuditLog(t *testing.T) {
	t.Parallel()
	mem := memstore.New()
	s := &failing{Store: mem, prefix: "epochfence/log", fails: 1 << 30}
	w := owns(t, s, orders)
	for range 10 {
		w.claims()
	}
	w.fenceIsSmall(mem, "claims without a log")
	s.fails = 0
	w.claims()
	log, err := w.sink.Operator().History(t.Context(), operate.HistoryQuery{Partition: &orders})
	if err != nil || len(log) != 1 || log[0].Epoch != w.fence.Epoch {
		t.Errorf("%+v, %v", log, err)
	}
}

// The texts of operators are long, and the store has small items.
func TestTheAuditLogFitsTheStore(t *testing.T) {
	t.Parallel()
	s := small{memstore.New(), cas.Facts{MaxValue: 16 << 10}}
	w := owns(t, s, orders)
	o := w.sink.Operator()
	for n := range 40 {
		f, err := epoch.FenceOf(t.Context(), w.sink, orders)
		must(t, err)
		must(t, second(o.Act(t.Context(), operate.NewAct(operate.ActEvict, f, "anna", fmt.Sprint(n, strings.Repeat("x", 450))))))
	}
	log, err := o.History(t.Context(), operate.HistoryQuery{Partition: &orders})
	if err != nil || len(log) < 5 || !strings.HasPrefix(log[0].Reason, "39x") {
		t.Errorf("%d entries, %v", len(log), err)
	}
}

// An entry of the log is written before the fence, and the write of the fence is refused or never made.
func TestAClaimThatWasRefusedIsNotInTheAuditLog(t *testing.T) {
	t.Parallel()
	mem := memstore.New()
	w := owns(t, mem, orders)
	s := &failing{Store: mem, prefix: "epochfence/fence"}
	sink, err := cassink.Open(t.Context(), s, cassink.Options{})
	must(t, err)
	for range 3 {
		s.fails = 1
		c := epoch.NewClaim(epoch.Lease{Origin: w.fence.Origin, Generation: 1, Owner: "ghost"})
		if _, err := sink.Claim(t.Context(), w.fence, c); err == nil {
			t.Fatal("claimed")
		}
		w.claims()
	}
	for _, q := range []operate.HistoryQuery{{}, {Partition: &orders}} {
		log, err := w.sink.Operator().History(t.Context(), q)
		if err != nil || len(log) != 4 {
			t.Errorf("%d entries, want 4: %+v, %v", len(log), log, err)
		}
		for _, d := range log {
			if d.Owner == "ghost" {
				t.Errorf("%+v", d)
			}
		}
	}
}

// What rarely changes is not written again with each position.
func TestAFenceDoesNotGrowWithDeadLettersAndEntries(t *testing.T) {
	t.Parallel()
	mem := memstore.New()
	w := owns(t, mem, orders)
	for range 10 {
		must(t, w.applies(w.fence.Next+100, func(ctx context.Context, tx *cassink.Tx, m epoch.Message) error {
			return w.sink.DeadLetter(ctx, tx, m, w.fence.Epoch, errPoison)
		}))
	}
	var many []string
	for n := range cassink.MaxEntries {
		many = append(many, fmt.Sprint(n))
	}
	must(t, w.sink.Commit(t.Context(), []epoch.Advance{advance(w.fence, 1)}, epoch.TxOptions{}, adding(many...)))
	w.fence.Next++
	for range 3 {
		w.claims() // and reads the lists
		for range 100 {
			must(t, w.applies(w.fence.Next+1, func(ctx context.Context, tx *cassink.Tx, m epoch.Message) error {
				return sets(ctx, tx, m, "item")
			}))
		}
		w.fenceIsSmall(mem, "1000 dead letters, 4096 entries and 100 commits")
	}
	for range 2 * 64 {
		must(t, w.applies(w.fence.Next+1, func(ctx context.Context, tx *cassink.Tx, m epoch.Message) error {
			return w.sink.DeadLetter(ctx, tx, m, w.fence.Epoch, errPoison)
		}))
		w.fenceIsSmall(mem, "another dead letter")
	}
	if n := len(left(t, w.sink)); n != cassink.MaxEntries {
		t.Errorf("%d entries", n)
	}
}

func TestADeadLetterLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	for _, kind := range []operate.DeadLetterKind{operate.Discard, operate.Replay} {
		mem := memstore.New()
		w := owns(t, mem, orders)
		l := w.buries()
		l, err := w.sink.Operator().DoDeadLetter(t.Context(), operate.DeadLetterAct{Kind: kind, Seen: l, By: "anna", Reason: "fixed"})
		must(t, err)
		if kind == operate.Replay {
			replay(t, w, l)
		}
		for it, err := range mem.List(t.Context(), "epochfence/dead/") {
			t.Errorf("after a %s: item %q, %v", kind, it.Key, err)
		}
	}
}

func replay(t *testing.T, w *owner, l operate.DeadLetter) {
	t.Helper()
	records := operate.RecordsIn[*cassink.Tx](w.sink)
	asked, err := records.Requests(t.Context(), []epoch.Partition{orders})
	must(t, err)
	a := epoch.Advance{Partition: orders, Claim: w.fence.Claim, From: w.fence.Next, To: w.fence.Next, Mark: w.fence.Mark}
	must(t, w.sink.Commit(t.Context(), []epoch.Advance{a}, epoch.TxOptions{}, func(ctx context.Context, tx *cassink.Tx) error {
		for _, r := range asked.Replays {
			if r.ID == l.ID {
				return records.Replayed(ctx, tx, r, w.fence)
			}
		}
		return fmt.Errorf("no replay of dead letter %d is requested: %+v", l.ID, asked.Replays)
	}))
}

// It has added an entry, and is paused before it writes the item of the lists. Its successor removes the entry.
func TestAnOwnerThatWasPausedBringsNoEntryBack(t *testing.T) {
	t.Parallel()
	mem := memstore.New()
	late := &hooked{Store: mem, key: "epochfence/lists/billing/orders/3"}
	s, f := claims(t, late)
	cassink.RideLess(s)
	successor, err := cassink.Open(t.Context(), mem, cassink.Options{})
	must(t, err)
	late.do = func() {
		f.Next++
		f = next(t, successor, f)
		removes := func(ctx context.Context, _ *cassink.Tx, box cassink.Outbox) error {
			es, err := box.Scan(ctx, 0, 2)
			if err == nil {
				_, err = box.Delete(ctx, []int64{es[0].ID})
			}
			return err
		}
		must(t, holds(t, successor, f, removes))
		must(t, successor.Commit(t.Context(), []epoch.Advance{advance(f, 1)}, epoch.TxOptions{}, adding("b")))
	}
	must(t, s.Commit(t.Context(), []epoch.Advance{advance(f, 1)}, epoch.TxOptions{}, adding("a")))
	if got := keysOfEntries(left(t, successor)); late.do != nil || !slices.Equal(got, []string{"b"}) {
		t.Errorf("%q", got)
	}
}

// A read that lags is no list. What the store has lost is not waited for.
func TestTheListsAreReadUntilTheyHaveWhatTheFenceReliesOn(t *testing.T) {
	t.Parallel()
	mem := memstore.New()
	s, f := claims(t, mem)
	cassink.RideLess(s)
	for n, body := range []string{"a", "b", "c"} {
		f.Next = epoch.Offset(n)
		must(t, s.Commit(t.Context(), []epoch.Advance{advance(f, 1)}, epoch.TxOptions{}, adding(body)))
	}
	lags := &staleStore{Store: mem, key: "epochfence/lists/billing/orders/3", old: cas.Item{Key: "epochfence/lists/billing/orders/3"}, n: 3}
	o, err := cassink.Open(t.Context(), lags, cassink.Options{})
	must(t, err)
	if got := keysOfEntries(left(t, o)); !slices.Equal(got, []string{"a", "b", "c"}) {
		t.Errorf("%q", got)
	}
	stored, err := mem.Get(t.Context(), lags.key)
	must(t, err)
	must(t, mem.Delete(t.Context(), stored))
	lost, err := mem.Get(t.Context(), lags.key)
	must(t, err)
	must(t, second(mem.Swap(t.Context(), lost, []byte(`{"Number":1}`), nil)))
	f = next(t, o, f)
	must(t, o.Commit(t.Context(), []epoch.Advance{{Partition: orders, Claim: f.Claim, From: 3, To: 4, Mark: epoch.NoMark}}, epoch.TxOptions{}, adding("d")))
}
