package guard_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/guard"
	"github.com/epochfence/epochfence/cas/memstore"
	"github.com/epochfence/epochfence/epoch"
)

// events collects what a message or a batch reports, without a lock: calls must not overlap.
type events []guard.Event

func (es *events) add(e guard.Event) { *es = append(*es, e) }

// said returns the events as text, and forgets them.
func (es *events) said() (all []string) {
	for _, e := range *es {
		all = append(all, fmt.Sprintf("%s@%d under %d: %v, seen %d", e.Key, e.Stamp.Offset, e.Stamp.Epoch, e.Decision, e.Seen))
	}
	slices.Sort(all)
	*es = nil
	return all
}

func want(t *testing.T, about string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: %q, want %q", about, got, want)
	}
}

// update makes the change of one message, and returns what was observed of it.
func update(t *testing.T, store cas.Store, s guard.Stamp, change guard.Change) (es events, err error) {
	t.Helper()
	_, err = guard.New(store, s).Observe(es.add).Update(t.Context(), "stock", change)
	return es, err
}

func TestEachDecisionIsReportedOnceWithTheItemTheStampAndTheEpochThatTheItemHasSeen(t *testing.T) {
	t.Parallel()
	with := func(s guard.Stamp, change func(s *guard.Stamp)) guard.Stamp {
		change(&s)
		return s
	}
	marked := with(at(5, 12), func(s *guard.Stamp) { s.Mark = 7 })
	for name, c := range map[string]struct {
		s    guard.Stamp
		want guard.Decision
		word string
		err  error
	}{
		"the next message":            {at(5, 13), guard.Changed, "changed", nil},
		"the next one of a new owner": {at(6, 13), guard.Changed, "changed", nil},
		"the same message":            {at(5, 12), guard.Repeated, "repeated", nil},
		"the same of a new owner":     {at(6, 12), guard.Repeated, "repeated", nil},
		"an owner of before":          {at(3, 13), guard.Stale, "stale", guard.ErrStale},
		"a message before":            {at(5, 9), guard.Passed, "passed", guard.ErrPassed},
		"another one at the offset":   {with(marked, func(s *guard.Stamp) { s.Mark = 8 }), guard.Truncated, "truncated", guard.ErrTruncated},
		"another log":                 {with(at(6, 13), func(s *guard.Stamp) { s.Log = "new" }), guard.OtherLog, "other_log", guard.ErrOtherLog},
		"a lost era":                  {with(at(5, 13), func(s *guard.Stamp) { s.Era = 4 }), guard.FenceLost, "fence_lost", guard.ErrFenceLost},
		"one that did not change it":  {at(5, 11), guard.Omitted, "omitted", guard.ErrNew},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := memstore.New()
			b := guard.Begin(s, at(5, 10))
			must(t, second(b.Update(t.Context(), epoch.Position{Offset: 12, Mark: 7}, "stock", add("12"))))
			must(t, b.Write(t.Context()))
			got, err := update(t, s, c.s, add("x"))
			if len(got) != 1 || !errors.Is(err, c.err) || (err == nil) != (c.err == nil) {
				t.Fatalf("%+v, %v", got, err)
			}
			e := got[0]
			if e.Key != "stock" || e.Stamp != c.s || e.Decision != c.want || e.Decision.String() != c.word || e.Seen != 5 {
				t.Errorf("%+v", e)
			}
			if !errors.Is(e.Err, c.err) || (e.Err == nil) != (c.err == nil) {
				t.Errorf("because of %v, want %v", e.Err, c.err)
			}
		})
	}
}

func TestTheFirstChangeOfAnItemHasSeenNoEpochAndTooManyPartitionsAreRefused(t *testing.T) {
	t.Parallel()
	s, es := memstore.New(), events{}
	for n := range int32(guard.MaxPartitions + 1) {
		stamp := at(3, 1)
		stamp.Partition.Number = n
		_, err := guard.New(s, stamp).Observe(es.add).Update(t.Context(), "stock", add("x"))
		if last := n == guard.MaxPartitions; last != errors.Is(err, guard.ErrPartitions) {
			t.Fatal(err)
		}
		if got := es[n]; got.Stamp.Partition.Number != n || got.Seen != 0 || (got.Decision == guard.TooManyPartitions) != (n == guard.MaxPartitions) {
			t.Errorf("%+v", got)
		}
	}
	if len(es) != guard.MaxPartitions+1 {
		t.Errorf("%d events", len(es))
	}
}

func TestWhereNothingIsDecidedNothingIsReported(t *testing.T) {
	t.Parallel()
	mem := memstore.New()
	must(t, second(mem.Swap(t.Context(), cas.Item{Key: "theirs"}, nil, []byte("not a note"))))
	must(t, second(guard.Apply(t.Context(), mem, "stock", at(5, 1), add("1"))))
	declines := func(guard.State) (guard.State, []byte, error) {
		return guard.State{}, nil, fmt.Errorf("sold out, as another item said: %w", guard.ErrStale)
	}
	long := func(guard.State) (guard.State, []byte, error) {
		return guard.State{}, make([]byte, guard.MaxOutcome+1), nil
	}
	es := events{}
	m := func(s cas.Store) *guard.Message { return guard.New(s, at(5, 2)).Observe(es.add) }
	for name, do := range map[string]func() error{
		"the change declines":     func() error { return second(m(mem).Update(t.Context(), "stock", declines)) },
		"the outcome is too long": func() error { return second(m(mem).Update(t.Context(), "stock", long)) },
		"the key is impossible":   func() error { return second(m(mem).Update(t.Context(), "", add("x"))) },
		"the note is not guard's": func() error { return second(m(mem).Update(t.Context(), "theirs", add("x"))) },
		"the store is full":       func() error { return second(m(&full{broken{Store: mem}}).Update(t.Context(), "stock", add("x"))) },
		"no consumer has handled it": func() error {
			return second(guard.At(mem, epoch.Message{}).Observe(es.add).Update(t.Context(), "stock", add("x")))
		},
	} {
		if err := do(); err == nil {
			t.Errorf("%s: no error", name)
		}
		want(t, name, es.said())
	}
	twice := m(mem)
	must(t, second(twice.Update(t.Context(), "stock", add("2"))))
	want(t, "once", es.said(), "stock@2 under 5: changed, seen 5")
	if err := second(twice.Update(t.Context(), "stock", add("2"))); !errors.Is(err, guard.ErrTwice) {
		t.Error(err)
	}
	want(t, "twice", es.said())
}

// lostAnswer is a store that loses the answer to the first write. Meanwhile something happens.
type lostAnswer struct {
	cas.Store
	lands     bool
	meanwhile func()
	lost      bool
}

func (l *lostAnswer) Swap(ctx context.Context, seen cas.Item, value, note []byte) (cas.Item, error) {
	if l.lost {
		return l.Store.Swap(ctx, seen, value, note)
	}
	l.lost = true
	if l.lands {
		if _, err := l.Store.Swap(ctx, seen, value, note); err != nil {
			return cas.Item{}, err
		}
	}
	l.meanwhile()
	return cas.Item{}, errLost
}

func TestALostAnswerResolvesIntoWhatBecameOfTheWrite(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		lands     bool
		meanwhile guard.Stamp // of a message that changes the item; its epoch is 0 if none does
		want      string
	}{
		"written":                        {true, guard.Stamp{}, "stock@10 under 5: changed, seen 5"},
		"not written, and written again": {false, guard.Stamp{}, "stock@10 under 5: changed, seen 0"},
		"not written, and an owner of before was faster": {false, at(4, 10), "stock@10 under 5: repeated, seen 4"},
		"written, and then the next owner came":          {true, at(6, 11), "stock@10 under 5: in_doubt, seen 6"},
		"not written, and then the next owner came":      {false, at(6, 10), "stock@10 under 5: in_doubt, seen 6"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mem := memstore.New()
			s := &lostAnswer{Store: mem, lands: c.lands, meanwhile: func() {
				if c.meanwhile.Epoch > 0 {
					must(t, second(guard.Apply(t.Context(), mem, "stock", c.meanwhile, add("10"))))
				}
			}}
			es, _ := update(t, s, at(5, 10), add("10"))
			want(t, "observed", es.said(), c.want)
		})
	}
}

func TestAnOwnerThatIsOvertakenWithoutALostAnswerIsStale(t *testing.T) {
	t.Parallel()
	mem := memstore.New()
	s := &overtaken{Store: mem, key: "stock", first: func() {
		must(t, second(guard.Apply(context.Background(), mem, "stock", at(6, 10), add("10"))))
	}}
	es, err := update(t, s, at(5, 10), add("10"))
	if !errors.Is(err, guard.ErrStale) || !errors.Is(es[0].Err, guard.ErrStale) {
		t.Errorf("%v, %+v", err, es)
	}
	want(t, "observed", es.said(), "stock@10 under 5: stale, seen 6")
}

func TestAMessageInDoubtIsSaidToBeAndTheNextDeliverySaysWhatBecameOfIt(t *testing.T) {
	t.Parallel()
	for lands, then := range map[bool]string{true: "stock@1 under 1: repeated, seen 1", false: "stock@1 under 1: changed, seen 0"} {
		s := &broken{Store: memstore.New(), lands: lands, fails: 1000}
		if lands {
			s.fails = 1
		}
		unreadable := &blind{Store: s, after: 1}
		es, err := update(t, unreadable, at(1, 1), add("one"))
		if !errors.Is(err, guard.ErrDoubt) || len(es) != 1 || !errors.Is(es[0].Err, guard.ErrDoubt) {
			t.Errorf("%v, %+v", err, es)
		}
		want(t, "in doubt", es.said(), "stock@1 under 1: in_doubt, seen 0")
		s.fails = 0
		es, err = update(t, s, at(1, 1), add("one"))
		must(t, err)
		want(t, "delivered again", es.said(), then)
	}
}

// blind is a store whose reads fail after some, and its writes with them.
type blind struct {
	cas.Store
	after  int
	writes int
}

func (b *blind) Get(ctx context.Context, key string) (cas.Item, error) {
	if b.after--; b.after < 0 {
		return cas.Item{}, errLost
	}
	return b.Store.Get(ctx, key)
}

func (b *blind) Swap(ctx context.Context, seen cas.Item, value, note []byte) (cas.Item, error) {
	if b.writes++; b.writes > 1 {
		return cas.Item{}, errLost
	}
	return b.Store.Swap(ctx, seen, value, note)
}

// lagging is a store whose second read is older than the first.
type lagging struct {
	cas.Store
	old   cas.Item
	reads int
}

func (l *lagging) Get(ctx context.Context, key string) (cas.Item, error) {
	if l.reads++; l.reads == 2 {
		return l.old, nil
	}
	return l.Store.Get(ctx, key)
}

func TestALostAnswerIsRememberedWhenTheChangeIsMadeAgainFromTheBeginning(t *testing.T) {
	t.Parallel()
	mem := memstore.New()
	theirs := at(1, 7)
	theirs.Partition.Number = 4
	must(t, second(guard.Apply(t.Context(), mem, "stock", theirs, add("a"))))
	old, err := mem.Get(t.Context(), "stock")
	must(t, err)
	theirs.Offset++
	must(t, second(guard.Apply(t.Context(), mem, "stock", theirs, add("b"))))
	s := &lagging{Store: &lostAnswer{Store: mem, lands: true, meanwhile: func() {}}, old: old}
	es := events{}
	outcome, err := guard.New(s, at(5, 10)).Observe(es.add).Update(t.Context(), "stock", add("10"))
	if err != nil || string(outcome) != "3" || s.reads != 3 {
		t.Errorf("%q, %v, after %d reads", outcome, err, s.reads)
	}
	want(t, "observed", es.said(), "stock@10 under 5: changed, seen 5")
}

func TestABatchReportsItsChangesOnceTheyAreWrittenAndOneAtATime(t *testing.T) {
	t.Parallel()
	s, es := memstore.New(), events{}
	must(t, second(guard.Apply(t.Context(), s, "item0", at(4, 10), add("10"))))
	b := guard.Begin(s, at(5, 10))
	b.Observe(es.add)
	must(t, second(b.Update(t.Context(), place(10), "item0", add("10"))))
	want(t, "what the item has is known at once", es.said(), "item0@10 under 5: repeated, seen 4")
	var all []string
	for n := range 40 {
		key := fmt.Sprint("item", n)
		must(t, second(b.Update(t.Context(), place(11), key, func(old guard.State) (guard.State, []byte, error) { return guard.Text("x"), nil, nil })))
		seen := 0
		if n == 0 {
			seen = 4
		}
		all = append(all, fmt.Sprintf("%s@11 under 5: changed, seen %d", key, seen))
	}
	want(t, "before Write", es.said())
	must(t, b.Write(t.Context()))
	slices.Sort(all)
	want(t, "after Write", es.said(), all...)
	must(t, b.Write(t.Context()))
	want(t, "after another Write", es.said())
}

func TestABatchThatFailsReportsWhatWasDecidedAndNoMore(t *testing.T) {
	t.Parallel()
	mem, es := memstore.New(), events{}
	begin := func(s cas.Store) *guard.Batch {
		b := guard.Begin(s, at(5, 10))
		b.Observe(es.add)
		return b
	}
	fill := func(b *guard.Batch, key string) {
		for offset := epoch.Offset(10); offset < 13; offset++ {
			must(t, second(b.Update(t.Context(), place(offset), key, func(old guard.State) (guard.State, []byte, error) {
				return guard.Text(string(old.Value) + "x"), nil, nil
			})))
		}
	}
	b := begin(mem)
	fill(b, "overtaken")
	must(t, second(guard.Apply(t.Context(), mem, "overtaken", at(6, 10), add("10"))))
	if err := b.Write(t.Context()); !errors.Is(err, guard.ErrStale) {
		t.Error(err)
	}
	want(t, "a batch that the next owner has overtaken", es.said(),
		"overtaken@10 under 5: stale, seen 6", "overtaken@11 under 5: stale, seen 6", "overtaken@12 under 5: stale, seen 6")

	b = begin(mem)
	fill(b, "shared")
	must(t, second(guard.Apply(t.Context(), mem, "shared", at(4, 10), func(guard.State) (guard.State, []byte, error) { return guard.Text("y"), nil, nil })))
	must(t, b.Write(t.Context()))
	want(t, "a batch whose first message an owner of before has applied", es.said(),
		"shared@10 under 5: repeated, seen 4", "shared@11 under 5: changed, seen 4", "shared@12 under 5: changed, seen 4")

	b = begin(mem)
	must(t, second(b.Update(t.Context(), place(10), "decides", add("10"))))
	theirs := at(1, 1)
	theirs.Partition.Number = 4
	must(t, second(guard.Apply(t.Context(), mem, "decides", theirs, add("theirs"))))
	must(t, second(b.Update(t.Context(), place(10), "depends", add("10"))))
	if err := b.Write(t.Context()); !errors.Is(err, guard.ErrOutcomeChanged) {
		t.Error(err)
	}
	want(t, "a batch whose outcomes have changed", es.said())

	b = begin(mem)
	must(t, second(b.Update(t.Context(), place(10), "a", add("1"))))
	must(t, second(b.Update(t.Context(), place(11), "b", add("2"))))
	must(t, second(b.Update(t.Context(), place(12), "a", add("3"))))
	must(t, second(guard.Apply(t.Context(), mem, "b", at(6, 11), add("6"))))
	if err := b.Write(t.Context()); !errors.Is(err, guard.ErrStale) {
		t.Error(err)
	}
	want(t, "a batch of which one item was written up to a message", es.said(),
		"a@10 under 5: changed, seen 0", "b@11 under 5: stale, seen 6")

	b = begin(&broken{Store: mem, fails: 1000})
	fill(b, "lost")
	if err := b.Write(t.Context()); !errors.Is(err, guard.ErrDoubt) {
		t.Error(err)
	}
	want(t, "a batch in doubt", es.said(), "lost@10 under 5: in_doubt, seen 0", "lost@11 under 5: in_doubt, seen 0", "lost@12 under 5: in_doubt, seen 0")
}
