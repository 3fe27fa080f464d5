package lease

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/epochfence/epochfence/cas/memstore"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/suites/bubble"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/sinks/cassink"
	"github.com/epochfence/epochfence/sinks/memsink"
)

const nightly = "nightly"

// writes is work that writes a line into the report.
func writes(line string) Work[*memsink.Tx] {
	return func(_ context.Context, tx *memsink.Tx, _ epoch.Epoch) error {
		tx.Append("report", line)
		return nil
	}
}

// scripted returns another process's view of a sink.
func scripted(s *memsink.Sink, h memsink.Hooks) *memsink.Sink {
	view := s.Open()
	view.Script(h)
	return view
}

func does(t *testing.T, m *testMember, s *memsink.Sink, work Work[*memsink.Tx]) {
	t.Helper()
	if err := Do(t.Context(), m.Member, s, nightly, work); err != nil {
		t.Fatal(err)
	}
}

func reports(t *testing.T, s *memsink.Sink, want ...string) {
	t.Helper()
	if got := s.List("report"); !slices.Equal(got, want) {
		t.Errorf("the report is %q, want %q", got, want)
	}
}

func TestEachRunIsCommittedOnceUnderAHigherEpoch(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		store, sink := memstore.New(), memsink.New()
		a, b := join(t, store), join(t, store)
		var last epoch.Epoch
		for _, m := range []*testMember{a, b, a, b} {
			does(t, m, sink, func(_ context.Context, tx *memsink.Tx, e epoch.Epoch) error {
				if e <= last {
					t.Errorf("epoch %d follows %d", e, last)
				}
				last = e
				tx.Append("report", m.Name)
				return nil
			})
		}
		reports(t, sink, a.Name, b.Name, a.Name, b.Name)
	})
}

// The holder is frozen with its transaction open, until another one has done the work, and thawed.
func TestAHolderThatWasFrozenCommitsNothing(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		store, sink := memstore.New(), memsink.New()
		a, b := join(t, store), join(t, store)
		thawed := make(chan struct{})
		frozen := scripted(sink, memsink.Hooks{Commit: func(_ context.Context, _ []epoch.Advance, do func() error) error {
			<-thawed
			return do()
		}})
		done := make(chan error, 1)
		go func() { done <- Do(t.Context(), a.Member, frozen, nightly, writes("a")) }()
		passes(time.Second)
		a.has(swallow)
		does(t, b, sink, writes("b"))
		close(thawed)
		if err := <-done; !errors.Is(err, epoch.ErrStale) || !errors.Is(err, ErrLost) || !strings.Contains(err.Error(), "lease: do nightly/0: ") {
			t.Errorf("the frozen one: %v", err)
		}
		reports(t, sink, "b")
	})
}

func TestWorkThatWouldWaitForItsOwnLeaseFails(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m, sink, other := join(t, memstore.New()), memsink.New(), memsink.New()
		does(t, m, sink, func(ctx context.Context, tx *memsink.Tx, _ epoch.Epoch) error {
			for name, err := range map[string]error{
				"Do":      Do(ctx, m.Member, sink, nightly, writes("inner")),
				"Do else": Do(ctx, m.Member, other, nightly, writes("inner")),
				"Acquire": func() error { _, err := m.Acquire(ctx, nightly); return err }(),
			} {
				if err == nil || !strings.Contains(err.Error(), `lease: acquire "nightly": the work of this lease would wait for itself`) {
					t.Errorf("%s: %v", name, err)
				}
			}
			if err := Do(ctx, m.Member, other, "hourly", writes("hourly")); err != nil {
				t.Errorf("another lease: %v", err)
			}
			tx.Append("report", "outer")
			return nil
		})
		reports(t, sink, "outer")
		reports(t, other, "hourly")
	})
}

func TestAContextOfWorkEndsWithTheLease(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m, sink := join(t, memstore.New()), memsink.New()
		err := Do(t.Context(), m.Member, sink, nightly, func(ctx context.Context, tx *memsink.Tx, _ epoch.Epoch) error {
			m.has(refuse)
			tx.Append("report", "late")
			<-ctx.Done()
			return context.Cause(ctx)
		})
		if !errors.Is(err, ErrExpired) {
			t.Errorf("%v", err)
		}
		reports(t, sink)
	})
}

func TestWhatPassesIsTriedAgain(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		store, sink := memstore.New(), memsink.New()
		commits, claims := 0, 0
		unruly := scripted(sink, memsink.Hooks{
			Commit: func(_ context.Context, as []epoch.Advance, do func() error) error {
				switch commits++; commits {
				case 1:
					return epoch.ErrTransient
				case 2:
					return &epoch.LowEpochError{Partition: as[0].Partition, Seen: 4000}
				}
				return do()
			},
			Claim: func(_ context.Context, _ epoch.Claim, do func() error) error {
				switch claims++; claims {
				case 1:
					return epoch.ErrTransient
				case 2:
					return errors.Join(do(), epoch.ErrInDoubt)
				}
				return do()
			},
		})
		var under epoch.Epoch
		does(t, join(t, store), unruly, func(_ context.Context, tx *memsink.Tx, e epoch.Epoch) error {
			under = e
			tx.Append("report", "once")
			return nil
		})
		reports(t, sink, "once")
		if under <= 4000 {
			t.Errorf("epoch %d is not above what the store has seen", under)
		}
	})
}

func TestTheErrorOfWorkIsReturnedAndTheLeaseIsFree(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		store, sink := memstore.New(), memsink.New()
		m := join(t, store)
		errWork := errors.New("no paper")
		calls := 0
		err := Do(t.Context(), m.Member, sink, nightly, func(_ context.Context, tx *memsink.Tx, _ epoch.Epoch) error {
			calls++
			tx.Append("report", "half")
			return errWork
		})
		if !errors.Is(err, errWork) || calls != 1 {
			t.Errorf("%d calls, %v", calls, err)
		}
		func() {
			defer func() {
				if v := recover(); v != "jam" {
					t.Errorf("the panic is %v", v)
				}
			}()
			_ = Do(t.Context(), m.Member, sink, nightly, func(_ context.Context, tx *memsink.Tx, _ epoch.Epoch) error {
				tx.Append("report", "half")
				panic("jam")
			})
		}()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := Do(ctx, join(t, store).Member, sink, nightly, writes("whole")); err != nil {
			t.Error(err)
		}
		reports(t, sink, "whole")
	})
}

func TestALongJobCommitsItsStepsUnderOneClaim(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		store, sink := memstore.New(), memsink.New()
		h := join(t, store).locks(nightly)
		c, err := Claim(t.Context(), h, sink)
		if err != nil {
			t.Fatal(err)
		}
		for n := range 3 {
			err := c.Do(t.Context(), func(_ context.Context, tx *memsink.Tx, e epoch.Epoch) error {
				if e != c.Epoch() {
					t.Errorf("step %d is done under epoch %d, want %d", n, e, c.Epoch())
				}
				tx.Append("report", string('a'+rune(n)))
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		if e := c.Epoch(); e < 1 {
			t.Errorf("epoch %d", e)
		}
		if err := h.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := c.Do(t.Context(), writes("after the end")); !errors.Is(err, ErrLost) {
			t.Errorf("after Release: %v", err)
		}
		reports(t, sink, "a", "b", "c")
	})
}

// The store of the leases forgets its generations, and receivers keep the epochs.
func TestEpochsGrowThoughTheStoreOfTheLeasesWasEmptied(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		sink := memsink.New()
		var last epoch.Epoch
		for range 3 {
			does(t, join(t, memstore.New()), sink, func(_ context.Context, _ *memsink.Tx, e epoch.Epoch) error {
				if e <= last {
					t.Errorf("epoch %d follows %d", e, last)
				}
				last = e
				return nil
			})
		}
	})
}

func TestAnOperatorPausesALock(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		store, sink := memstore.New(), memsink.New()
		m := join(t, store)
		does(t, m, sink, writes("before"))
		act := func(kind operate.ActKind) {
			seen, err := epoch.FenceOf(t.Context(), sink, epoch.Partition{Group: "billing", Topic: nightly})
			if err == nil {
				_, err = sink.Operator().Act(t.Context(), operate.NewAct(kind, seen, "anna", "stocktaking"))
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		act(operate.ActPause)
		if err := Do(t.Context(), m.Member, sink, nightly, writes("meanwhile")); !errors.Is(err, epoch.ErrPaused) || !strings.Contains(err.Error(), "stocktaking") {
			t.Errorf("paused: %v", err)
		}
		act(operate.ActResume)
		does(t, m, sink, writes("after"))
		reports(t, sink, "before", "after")
	})
}

func TestALockIsNotTakenForTheTopicOfAConsumer(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		store, sink := memstore.New(), memsink.New()
		origin := epoch.Origin{Partition: epoch.Partition{Group: "billing", Topic: nightly}, Log: "cluster/topic", Source: "cluster"}
		if err := sink.Seed(t.Context(), []epoch.Start{{Origin: origin}}); err != nil {
			t.Fatal(err)
		}
		if err := Do(t.Context(), join(t, store).Member, sink, nightly, writes("mine")); !errors.Is(err, epoch.ErrLogChanged) {
			t.Errorf("%v", err)
		}
		reports(t, sink)
	})
}

// The first holder's lease was ended by somebody, and it does not know that yet.
func TestWhoHasLostTheLeaseWithoutKnowingItClaimsNothing(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		store, sink := memstore.New(), memsink.New()
		a, b := join(t, store), join(t, store)
		h := a.locks(nightly)
		a.has(swallow)
		item, err := store.Get(t.Context(), a.keys.resource(h.Resource))
		if err == nil {
			err = store.Delete(t.Context(), item)
		}
		if err != nil {
			t.Fatal(err)
		}
		does(t, b, sink, writes("b"))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		c, err := Claim(ctx, h, sink)
		if err == nil {
			err = c.Do(ctx, writes("a"))
		}
		if err == nil {
			t.Error("the first one works, too")
		}
		reports(t, sink, "b")
	})
}

func TestADatabaseThatIsOutOfReachIsWaitedFor(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		store, sink := memstore.New(), memsink.New()
		reads, commits := 0, 0
		away := scripted(sink, memsink.Hooks{
			Fence: func(_ context.Context, _ epoch.Partition, do func() error) error {
				if reads++; reads < 5 || commits == 1 && reads < 10 {
					return errors.New("connection refused")
				}
				return do()
			},
			Commit: func(_ context.Context, _ []epoch.Advance, do func() error) error {
				if commits++; commits == 1 {
					return errors.Join(do(), epoch.ErrInDoubt)
				}
				return do()
			},
		})
		does(t, join(t, store), away, writes("once"))
		reports(t, sink, "once")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		gone := scripted(sink, memsink.Hooks{Fence: func(context.Context, epoch.Partition, func() error) error { return errors.New("connection refused") }})
		if err := Do(ctx, join(t, store).Member, gone, nightly, writes("never")); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "refused") {
			t.Errorf("%v", err)
		}
	})
}

func TestAClaimRunsOneTransactionAtATime(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		sink := memsink.New()
		c, err := Claim(t.Context(), join(t, memstore.New()).locks(nightly), sink)
		if err != nil {
			t.Fatal(err)
		}
		err = c.Do(t.Context(), func(ctx context.Context, tx *memsink.Tx, e epoch.Epoch) error {
			if c.Epoch() != e {
				t.Errorf("epoch %d, want %d", c.Epoch(), e)
			}
			if err := c.Do(ctx, writes("within")); err == nil || !strings.Contains(err.Error(), "within the work of another Do of this claim") {
				t.Errorf("within: %v", err)
			}
			beside, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if err := c.Do(beside, writes("beside")); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("beside: %v", err)
			}
			tx.Append("report", "first")
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		if err := c.Do(t.Context(), writes("second")); err != nil {
			t.Error(err)
		}
		reports(t, sink, "first", "second")
	})
}

func TestARefusalOfSomethingElseIsTheErrorOfWork(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m := join(t, memstore.New())
		for _, refusal := range []error{
			&epoch.StaleError{Partition: epoch.Partition{Topic: "another"}}, &epoch.MovedError{}, &epoch.LowEpochError{Seen: 7},
		} {
			calls := 0
			err := Do(t.Context(), m.Member, memsink.New(), nightly, func(context.Context, *memsink.Tx, epoch.Epoch) error {
				calls++
				return refusal
			})
			if !errors.Is(err, refusal) || calls != 1 {
				t.Errorf("%d calls, %v", calls, err)
			}
		}
	})
}

func TestAStoreWithoutTransactionsIsRefused(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		sink, err := cassink.Open(t.Context(), memstore.New(), cassink.Options{})
		if err != nil {
			t.Fatal(err)
		}
		err = Do(t.Context(), join(t, memstore.New()).Member, sink, nightly, func(context.Context, *cassink.Tx, epoch.Epoch) error { return nil })
		if err == nil || !strings.Contains(err.Error(), "needs transactional") {
			t.Errorf("%v", err)
		}
	})
}
