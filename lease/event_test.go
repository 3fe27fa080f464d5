package lease

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/epochfence/epochfence/cas/memstore"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/suites/bubble"
	"github.com/epochfence/epochfence/sinks/memsink"
)

// events keeps what Options.Observe was told.
type events struct {
	mu  sync.Mutex
	all []Event
}

func (e *events) into(o *Options) { o.Observe = e.observe }

func (e *events) observe(event Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all, event)
}

// ofType returns the events of a type.
func ofType[T Event](e *events) (found []T) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, event := range e.all {
		if is, ok := event.(T); ok {
			found = append(found, is)
		}
	}
	return found
}

// only returns the one event of a type.
func only[T Event](t *testing.T, e *events) T {
	t.Helper()
	found := ofType[T](e)
	if len(found) != 1 {
		t.Fatalf("%d events %T: %+v", len(found), *new(T), found)
	}
	return found[0]
}

// order returns the types of the events about a resource, without Renewed.
func (e *events) order(name string) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	var types []string
	for _, event := range e.all {
		text := fmt.Sprintf("%T %+v", event, event)
		if what, _, _ := strings.Cut(text, " "); strings.Contains(text, "{Resource:"+name+"/0") && what != "lease.Renewed" {
			types = append(types, strings.TrimPrefix(what, "lease."))
		}
	}
	return strings.Join(types, " ")
}

func TestEventsTellOfTheWaitTheLeaseAndItsRelease(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		store, ofA, ofB := memstore.New(), &events{}, &events{}
		a, b := join(t, store, ofA.into), join(t, store, ofB.into)
		h := a.locks(nightly)
		got := make(chan *Held)
		go func() { got <- b.locks(nightly) }()
		passes(2 * testTTL)
		if n := len(ofType[Waiting](ofB)); n != 1 {
			t.Errorf("while it waits, there are %d events Waiting", n)
		}
		if err := h.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		_ = h.Release(t.Context()) // and is not told again
		second := <-got
		first, last := only[Acquired](t, ofA), only[Released](t, ofA)
		if first.Queued || first.Waited > time.Millisecond || first.Generation < 1 || last.Held != 2*testTTL {
			t.Errorf("%+v, %+v", first, last)
		}
		if n := len(ofType[Renewed](ofA)); n != last.Renewals || n < 4 {
			t.Errorf("%d events Renewed, and %d renewals of the lease", n, last.Renewals)
		}
		if took := only[Acquired](t, ofB); !took.Queued || took.Waited < 2*testTTL || took.Generation != second.Generation() {
			t.Errorf("%+v", took)
		}
		if got, want := ofA.order(nightly), "Acquired Released"; got != want {
			t.Errorf("the first one: %s, want %s", got, want)
		}
		if got, want := ofB.order(nightly), "Waiting Acquired"; got != want {
			t.Errorf("the second one: %s, want %s", got, want)
		}
	})
}

func TestEventsTellWhyALeaseWasNotAcquired(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		store, observed := memstore.New(), &events{}
		join(t, store).locks(nightly)
		m := join(t, store, observed.into)
		_, held := m.TryAcquire(nightly)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, gaveUp := m.Acquire(ctx, nightly)
		m.Close()
		_, closed := m.Acquire(t.Context(), nightly)
		_, tried := m.TryAcquire(nightly)
		got := ofType[NotAcquired](observed)
		for i, want := range []struct {
			returned, is error
			waited       time.Duration
			queued       bool
		}{{held, ErrHeld, 0, false}, {gaveUp, context.DeadlineExceeded, time.Minute, true}, {closed, ErrClosed, 0, false}, {tried, ErrClosed, 0, false}} {
			if e := got[i]; !errors.Is(e.Err, want.is) || !errors.Is(want.returned, e.Err) || e.Waited.Round(time.Second) != want.waited || e.Queued != want.queued {
				t.Errorf("%d: %+v, want %+v", i, e, want)
			}
		}
		if len(got) != 4 {
			t.Errorf("%d events", len(got))
		}
	})
}

func TestEventsTellWhyALeaseWasLostAndWhetherItsHolderWasAtWork(t *testing.T) {
	cut := func(m *testMember, _ *Held) { m.has(refuse) }
	for name, c := range map[string]struct {
		option  func(*Options)
		loses   func(m *testMember, h *Held)
		claims  bool
		reason  Reason
		working bool
	}{
		"no renewal is acknowledged":      {loses: cut, reason: ReasonExpired, working: true},
		"the same, of a claim that idles": {loses: cut, claims: true, reason: ReasonExpired},
		"a stranger takes the lease": {loses: func(m *testMember, h *Held) {
			put(m.t, m.inner, lockKey, `{"member":"x"}`)
			_, _ = h.Confirm(m.t.Context())
		}, reason: ReasonTaken, working: true},
		"somebody removes the member":      {loses: func(m *testMember, _ *Held) { remove(m.t, m.inner, memberKey(m.id)) }, reason: ReasonUnregistered, working: true},
		"there is no progress":             {option: func(o *Options) { o.MaxStall = time.Minute }, loses: func(*testMember, *Held) {}, reason: ReasonStalled, working: true},
		"it is not given back in time":     {loses: func(_ *testMember, h *Held) { h.giveBack() }, reason: ReasonDrainOverrun, working: true},
		"the member is closed":             {loses: func(m *testMember, _ *Held) { m.Close() }, reason: ReasonClosed, working: true},
		"it is closed, of a claim in idle": {loses: func(m *testMember, _ *Held) { m.Close() }, claims: true, reason: ReasonClosed},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				observed, sink := &events{}, memsink.New()
				m := join(t, memstore.New(), observed.into, func(o *Options) {
					if c.option != nil {
						c.option(o)
					}
				})
				h := m.locks(nightly)
				if c.claims {
					if _, err := Claim(t.Context(), h, sink); err != nil {
						t.Fatal(err)
					}
				}
				c.loses(m, h)
				_ = lose(t, h, time.Hour)
				_ = h.Release(t.Context())
				if e := only[Lost](t, observed); e.Reason != c.reason || e.Working != c.working || !errors.Is(e.Cause, ErrLost) {
					t.Errorf("%+v, want %v, working %v", e, c.reason, c.working)
				}
				if got, want := observed.order(nightly), "Acquired Lost"; got != want {
					t.Errorf("%s, want %s", got, want)
				}
			})
		})
	}
}

// The process stood still in the work, and no timer of it has run yet.
func TestALeaseThatIsFoundLostAfterTheWorkWasLostDuringTheWork(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		observed, sink := &events{}, memsink.New()
		m := join(t, memstore.New(), observed.into)
		err := Do(t.Context(), m.Member, sink, nightly, func(context.Context, *memsink.Tx, epoch.Epoch) error {
			r := m.current().item
			r.mu.Lock()
			r.deadline = time.Now().Add(-time.Millisecond)
			r.mu.Unlock()
			return errors.New("no paper")
		})
		if !errors.Is(err, ErrExpired) {
			t.Fatal(err)
		}
		if e := only[Lost](t, observed); !e.Working || e.Reason != ReasonExpired {
			t.Errorf("%+v", e)
		}
	})
}

func TestEventsTellWhetherThisProcessIsAMember(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		observed := &events{}
		m := join(t, memstore.New(), observed.into)
		if n := len(ofType[Joined](observed)); n != 1 {
			t.Errorf("%d events Joined", n)
		}
		passes(2 * testTTL)
		m.has(refuse)
		passes(3 * testTTL)
		if e := only[Left](t, observed); !errors.Is(e.Cause, ErrExpired) {
			t.Errorf("%+v", e)
		}
		m.has(pass)
		passes(testTTL)
		if n := len(ofType[Joined](observed)); n != 2 {
			t.Errorf("%d events Joined", n)
		}
		m.Close()
		if all := ofType[Left](observed); len(all) != 2 || !errors.Is(all[1].Cause, ErrClosed) {
			t.Errorf("%+v", all)
		}
	})
}

func TestSharesAreToldToo(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		observed := &events{}
		m := join(t, memstore.New(), sharing(2), observed.into).run()
		m.comesTo(2, testTTL)
		passes(2 * testTTL)
		m.stop()
		taken, released := ofType[Acquired](observed), ofType[Released](observed)
		if len(taken) != 2 || len(released) != 2 || taken[0].Queued || taken[0].Waited > time.Second {
			t.Errorf("%+v, %+v", taken, released)
		}
		for _, e := range released {
			if e.Held < testTTL || e.Renewals < 2 {
				t.Errorf("%+v", e)
			}
		}
		m = join(t, m.inner, sharing(2), observed.into).run()
		m.comesTo(2, testTTL)
		m.has(refuse)
		m.comesTo(0, testTTL)
		passes(time.Millisecond)
		lost := ofType[Lost](observed)
		if len(lost) != 2 || lost[0].Working || lost[1].Working {
			t.Errorf("%+v", lost)
		}
	})
}

// The holder releases it, and gets it again, as soon as it is lost.
func TestTheEndOfALeaseIsToldBeforeTheNextOneBegins(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		observed := &events{}
		m := join(t, memstore.New(), observed.into)
		for range 20 {
			h := m.locks(nightly)
			h.lose(lost(ErrStalled))
			_ = h.Release(t.Context())
		}
		if got, want := observed.order(nightly), strings.TrimSpace(strings.Repeat("Acquired Lost ", 20)); strings.ReplaceAll(got, "Waiting ", "") != want {
			t.Errorf("%s, want %s", got, want)
		}
	})
}

func TestEachTransactionOfWorkIsTold(t *testing.T) {
	mine := epoch.Partition{Group: "billing", Topic: nightly}
	answers := func(err error) memsink.Hooks {
		said := false
		return memsink.Hooks{Commit: func(_ context.Context, _ []epoch.Advance, do func() error) error {
			if said {
				return do()
			}
			said = true
			return err
		}}
	}
	for name, c := range map[string]struct {
		hooks memsink.Hooks
		work  Work[*memsink.Tx]
		want  []Worked
	}{
		"it commits": {work: writes("a"), want: []Worked{{Outcome: OutcomeCommitted}}},
		"it fails": {
			work: func(context.Context, *memsink.Tx, epoch.Epoch) error { return errors.New("no paper") },
			want: []Worked{{Outcome: OutcomeFailed}},
		},
		"it panics": {
			work: func(context.Context, *memsink.Tx, epoch.Epoch) error { panic("jam") },
			want: []Worked{{Outcome: OutcomeFailed}},
		},
		"another system refuses it": {
			hooks: answers(&epoch.LowEpochError{Partition: mine, Seen: 4000}), work: writes("a"),
			want: []Worked{{Outcome: OutcomeRefused, Refusal: RefusalLowEpoch, Gap: 4000}, {Outcome: OutcomeCommitted}},
		},
		"a partition of somebody else is refused": {
			hooks: answers(&epoch.StaleError{}), work: writes("a"), want: []Worked{{Outcome: OutcomeFailed}},
		},
		"another transaction was faster": {
			hooks: answers(&epoch.MovedError{Partition: mine}), work: writes("a"),
			want: []Worked{{Outcome: OutcomeRefused, Refusal: RefusalMoved}, {Outcome: OutcomeCommitted}},
		},
		"the fence is gone": {
			hooks: answers(&epoch.MissingError{Partition: mine}), work: writes("a"), want: []Worked{{Outcome: OutcomeRefused, Refusal: RefusalMissing}},
		},
		"the answer is lost": {
			hooks: answers(epoch.ErrInDoubt), work: writes("a"), want: []Worked{{Outcome: OutcomeInDoubt}, {Outcome: OutcomeCommitted}},
		},
		"it ends the transaction": {
			hooks: answers(epoch.ErrTxEndedByHandler), work: writes("a"), want: []Worked{{Outcome: OutcomeUnfenced}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				observed, sink := &events{}, memsink.New()
				m := join(t, memstore.New(), observed.into)
				func() {
					defer func() { _ = recover() }()
					_ = Do(t.Context(), m.Member, scripted(sink, c.hooks), nightly, func(ctx context.Context, tx *memsink.Tx, e epoch.Epoch) error {
						passes(3 * time.Second)
						return c.work(ctx, tx, e)
					})
				}()
				got := ofType[Worked](observed)
				if len(got) != len(c.want) {
					t.Fatalf("%d events, want %d: %+v", len(got), len(c.want), got)
				}
				for i, want := range c.want {
					e := got[i]
					if e.Outcome != want.Outcome || e.Refusal != want.Refusal || e.TTL != testTTL || e.Epoch < 1 || e.Resource != (Resource{Name: nightly}) {
						t.Errorf("%+v, want %+v", e, want)
					}
					if e.Took > 4*time.Second || e.Outcome == OutcomeCommitted && e.Took < 3*time.Second {
						t.Errorf("it took %v", e.Took)
					}
					if want.Gap > 0 && e.Gap != want.Gap-int64(e.Epoch) {
						t.Errorf("the gap is %d", e.Gap)
					}
				}
			})
		})
	}
}

func TestTheGapIsThatOfTheClaimsAndAfterARefusalThatOfTheFence(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		store, sink, observed := memstore.New(), memsink.New(), &events{}
		a, b := join(t, store, observed.into), join(t, store)
		last := epoch.Epoch(0)
		var want []int64
		for n := range 3 {
			for range n { // claims of others in between
				does(t, b, sink, writes("b"))
			}
			before, _ := epoch.FenceOf(t.Context(), sink, epoch.Partition{Group: "billing", Topic: nightly})
			does(t, a, sink, func(_ context.Context, _ *memsink.Tx, e epoch.Epoch) error {
				last = e
				return nil
			})
			gap := int64(0)
			if before.Epoch > 0 {
				gap = int64(last - before.Epoch)
			}
			want = append(want, gap)
		}
		thawed := make(chan struct{})
		frozen := scripted(sink, memsink.Hooks{Commit: func(_ context.Context, _ []epoch.Advance, do func() error) error {
			<-thawed
			return do()
		}})
		done := make(chan error, 1)
		var ours epoch.Epoch
		go func() {
			done <- Do(t.Context(), a.Member, frozen, nightly, func(_ context.Context, _ *memsink.Tx, e epoch.Epoch) error {
				ours = e
				return nil
			})
		}()
		passes(time.Second)
		a.has(swallow)
		does(t, b, sink, func(_ context.Context, _ *memsink.Tx, e epoch.Epoch) error {
			last = e
			return nil
		})
		close(thawed)
		if err := <-done; !errors.Is(err, epoch.ErrStale) {
			t.Fatal(err)
		}
		want = append(want, int64(last-ours))
		var got []int64
		for _, e := range ofType[Worked](observed) {
			got = append(got, e.Gap)
		}
		if !slices.Equal(got, want) || want[1] < 1 || want[3] < 1 {
			t.Errorf("the gaps are %v, want %v", got, want)
		}
		refused := ofType[Worked](observed)[3]
		if refused.Outcome != OutcomeRefused || refused.Refusal != RefusalStale {
			t.Errorf("%+v", refused)
		}
		if e := only[Lost](t, observed); !e.Working {
			t.Errorf("%+v", e)
		}
	})
}

func TestAClaimThatFailsIsTold(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		observed, sink := &events{}, memsink.New()
		m := join(t, memstore.New(), observed.into)
		tries := 0
		unruly := scripted(sink, memsink.Hooks{Claim: func(_ context.Context, c epoch.Claim, do func() error) error {
			switch tries++; tries {
			case 1:
				return &epoch.StaleError{Partition: c.Partition, Held: epoch.Fence{Epoch: 9}}
			case 2:
				return errors.New("connection refused")
			}
			return do()
		}})
		does(t, m, unruly, writes("once"))
		foreign := memsink.New()
		origin := epoch.Origin{Partition: epoch.Partition{Group: "billing", Topic: nightly}, Log: "cluster/topic", Source: "cluster"}
		if err := foreign.Seed(t.Context(), []epoch.Start{{Origin: origin}}); err != nil {
			t.Fatal(err)
		}
		_ = Do(t.Context(), m.Member, foreign, nightly, writes("mine"))
		var got []string
		for _, e := range ofType[NotClaimed](observed) {
			got = append(got, e.Refusal.String())
		}
		if want := []string{"stale", "none", "log_changed"}; !slices.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
	})
}

// It would wait for itself if an event were told under a lock.
func TestAnObserverMayCallTheMember(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var at atomic.Pointer[Member]
		var calls atomic.Int32
		m := join(t, memstore.New(), sharing(2), func(o *Options) {
			o.Observe = func(Event) {
				if m := at.Load(); m != nil {
					calls.Add(1)
					_, _ = m.slotOf("beside")
				}
			}
		})
		at.Store(m.Member)
		m.run()
		m.comesTo(2, testTTL)
		does(t, m, memsink.New(), writes("a"))
		passes(testTTL)
		m.leave()
		if n := calls.Load(); n < 10 {
			t.Errorf("%d events", n)
		}
	})
}

func TestWordsOfEventsAreLabels(t *testing.T) {
	t.Parallel()
	for _, v := range []fmt.Stringer{OutcomeUnfenced + 1, RefusalForeignLease + 1, ReasonClosed + 1} {
		if !strings.Contains(v.String(), "(") {
			t.Errorf("%v has a word, and no constant", v)
		}
	}
	for _, v := range []fmt.Stringer{OutcomeUnfenced, RefusalForeignLease, ReasonClosed} {
		if strings.Contains(v.String(), "(") {
			t.Errorf("%v has no word", v)
		}
	}
}
