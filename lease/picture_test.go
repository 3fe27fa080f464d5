package lease

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/memstore"
	"github.com/epochfence/epochfence/internal/suites/bubble"
	"github.com/epochfence/epochfence/internal/waits"
)

var viewed = Resource{"orders", 0}

// version returns an item as a store with numbers has it.
func version(n int64, value string) cas.Item {
	return cas.Item{Live: true, Value: []byte(value), Version: "v" + string(rune('a'+n)), Number: n}
}

func gone(n int64) cas.Item { return cas.Item{Version: "v" + string(rune('a'+n)), Number: n} }

const (
	orderly = `{"name":"b","serves":{"orders":1}}`
	byB     = `{"member":"b","nonce":"n","generation":7}`
)

func TestALeaseLastsAsLongAsTheRegistrationThatItNames(t *testing.T) {
	t.Parallel()
	p, now := newPicture(), time.Now()
	held := func() bool { return p.isHeld(p.leases[viewed]) }
	p.setLease(viewed, version(6, byB), now)
	if held() {
		t.Error("the registration that it names was never seen, and it is taken for held")
	}
	p.setMember("b", version(5, orderly), now)
	if !held() {
		t.Error("the member is registered, and the lease is taken for free")
	}
	if !p.setMember("b", version(9, `{"ended":true}`), now) || held() {
		t.Error("the registration was ended, and the lease is taken for held, or nobody is told")
	}
	p.setMember("b", version(8, orderly), now) // comes late
	if held() {
		t.Error("a registration that is gone is back")
	}
	if !p.setMember("b", gone(10), now) || held() {
		t.Error("the registration was deleted, and the lease is taken for held, or nobody is told")
	}
	p.setMember("c", version(11, orderly), now)
	p.setLease(viewed, version(12, `{"generation":12}`), now)
	if held() {
		t.Error("a lease that was released is taken for held")
	}
	p.setLease(viewed, version(13, `{"member":"c","nonce":"n","generation":13}`), now)
	if !held() {
		t.Error("the lease of a member is taken for free")
	}
	p.setLease(viewed, gone(14), now)
	if held() {
		t.Error("a lease that was deleted is taken for held")
	}
}

func TestTheMembersChangeWhenOneJoinsIsEndedOrLeaves(t *testing.T) {
	t.Parallel()
	p, now := newPicture(), time.Now()
	p.setMember("a", version(1, orderly), now)
	for _, step := range []struct {
		what  string
		after func()
		want  bool
	}{
		{"nothing", func() {}, false},
		{"a renews", func() { p.setMember("a", version(2, orderly), now) }, false},
		{"a declines", func() { p.setMember("a", version(3, `{"serves":{"orders":1},"declined":["orders/0"]}`), now) }, false},
		{"b joins", func() { p.setMember("b", version(4, orderly), now) }, true},
		{"b is ended", func() { p.setMember("b", version(5, `{"ended":true}`), now) }, true},
		{"b is deleted", func() { p.setMember("b", gone(6), now) }, true},
		{"c was ended before anybody had seen it", func() { p.setMember("c", version(7, `{"ended":true}`), now) }, true},
		{"a lease is taken", func() { p.setLease(viewed, version(8, byB), now) }, false},
		{"a leaves", func() { p.setMember("a", cas.Item{}, now) }, true},
	} {
		was := p.clone()
		step.after()
		if got := p.membersChangedSince(was); got != step.want {
			t.Errorf("%s: another group: %v, want %v", step.what, got, step.want)
		}
	}
}

func TestOnlyChangesThatMatterWakeTheGroup(t *testing.T) {
	t.Parallel()
	p, now := newPicture(), time.Now()
	for _, step := range []struct {
		what string
		got  bool
		want bool
	}{
		{"a member joins", p.setMember("b", version(1, orderly), now), true},
		{"it renews", p.setMember("b", version(2, orderly), now), false},
		{"it declines", p.setMember("b", version(3, `{"name":"b","serves":{"orders":1},"declined":["orders/0"]}`), now), true},
		{"an old record comes late", p.setMember("b", version(2, orderly), now), false},
		{"a lease is taken", p.setLease(viewed, version(4, byB), now), true},
		{"it is confirmed", p.setLease(viewed, version(5, byB), now), false},
		{"what it was comes late", p.setLease(viewed, version(4, byB), now), false},
		{"it is taken again by the same member", p.setLease(viewed, version(6, `{"member":"b","nonce":"another","generation":7}`), now), true},
		{"it is released", p.setLease(viewed, version(7, `{"generation":8}`), now), true},
		{"it is overwritten", p.setLease(viewed, version(8, "what is this"), now), true},
		{"it is overwritten again", p.setLease(viewed, version(9, "and this"), now), false},
		{"it is deleted", p.setLease(viewed, gone(10), now), true},
		{"it is deleted again", p.setLease(viewed, gone(11), now), false},
		{"the member is ended", p.setMember("b", version(12, `{"ended":true}`), now), true},
		{"it is ended again", p.setMember("b", version(13, `{"ended":true}`), now), false},
		{"it is deleted", p.setMember("b", gone(14), now), true},
		{"one that nobody knew is deleted", p.setMember("b", gone(15), now), false},
	} {
		if step.got != step.want {
			t.Errorf("%s: matters %v, want %v", step.what, step.got, step.want)
		}
	}
}

func TestAValueThatIsNoLeaseIsHeldByNobodyWeKnow(t *testing.T) {
	t.Parallel()
	p := newPicture()
	p.setLease(viewed, version(1, "what is this"), time.Now())
	if h := p.leases[viewed]; !p.isHeld(h) || h.Member != "" {
		t.Errorf("%+v", h)
	}
}

func TestAKeyThatIsNeitherALeaseNorAMemberIsLeftOut(t *testing.T) {
	t.Parallel()
	p, k := newPicture(), keysOf("billing")
	for _, key := range []string{"billing/lease/other", "billing/lease/resource/orders/x", "billing/position/orders/0", "other/lease/resource/orders/0"} {
		if changed, _ := p.apply(k, cas.Item{Key: key, Live: true, Value: []byte(byB)}, time.Now()); changed || len(p.leases) > 0 || len(p.members) > 0 {
			t.Errorf("%s is in the picture: %+v", key, p)
		}
	}
}

// pictured returns a picture as a full read makes it.
func pictured(lease, member cas.Item) *picture {
	p, asked := newPicture(), time.Now()
	p.setLease(viewed, lease, asked)
	p.setMember("b", member, asked)
	return p
}

func TestAFullReadDoesNotForgetHowLongAKeyHasStood(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		for what, of := range map[string]func(cas.Item) cas.Item{"numbered": func(i cas.Item) cas.Item { return i }, "unnumbered": unnumbered} {
			v, began := testView(memstore.New()), time.Now()
			read := func(n int64) {
				asked := time.Now()
				passes(time.Second) // which it takes
				v.replace(pictured(of(version(n, "somebody's")), of(version(n+1, orderly))), asked)
			}
			read(5)
			seen := began.Add(time.Second)
			read(5)
			if now := v.snapshot(); !now.leases[viewed].since.Equal(seen) || !now.leases[viewed].strange.Equal(seen) || !now.members["b"].since.Equal(seen) {
				t.Errorf("%s: of the same versions: %+v", what, now)
			}
			read(7)
			later := began.Add(3 * time.Second)
			if now := v.snapshot(); !now.leases[viewed].since.Equal(later) || !now.leases[viewed].strange.Equal(seen) || !now.members["b"].since.Equal(later) {
				t.Errorf("%s: of newer versions: %+v", what, now)
			}
			v.apply(cas.Item{Key: v.keys.resource(viewed), Live: true, Value: []byte("others'"), Version: "v", Number: 9})
			if h := v.snapshot().leases[viewed]; !h.strange.Equal(seen) {
				t.Errorf("%s: of a change: strange since %v, want %v", what, h.strange, seen)
			}
		}
	})
}

func TestAChangeThatRepeatsWhatIsKnownIsNotNewer(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p := pictured(version(5, "somebody's"), version(6, orderly))
		seen := time.Now()
		passes(time.Second)
		p.setLease(viewed, version(5, "somebody's"), time.Now())
		p.setMember("b", version(6, orderly), time.Now())
		if !p.leases[viewed].since.Equal(seen) || !p.members["b"].since.Equal(seen) {
			t.Errorf("%+v", p)
		}
	})
}

// A list was begun before the member learnt what a swap or another question has answered.
func TestWhatWasLearntSinceTheStoreWasAskedSurvivesAnOlderListAndNoNewerOne(t *testing.T) {
	const released, byC, another = `{"generation":8}`, `{"member":"c","nonce":"n","generation":9}`, `{"name":"b","serves":{"orders":2}}`
	for _, c := range []struct {
		name            string
		learnt, listed  cas.Item // of the lease
		member, members cas.Item // of the registration
		before          bool     // the store was asked before it was learnt
		kept            bool
	}{
		{"an older list", version(7, byB), version(6, released), version(5, another), version(4, orderly), true, true},
		{"an older list of a store without numbers", unnumbered(version(7, byB)), unnumbered(version(6, released)), unnumbered(version(5, another)), unnumbered(version(4, orderly)), true, true},
		{"an older list that has neither", version(7, byB), cas.Item{}, version(5, another), cas.Item{}, true, true},
		{"a list with higher numbers", version(7, byB), version(8, byC), version(5, another), version(6, orderly), true, false},
		{"a later list with lower numbers, of a store that was restored", version(7, byB), version(6, released), version(5, another), version(4, orderly), false, false},
		{"a later list that has neither", version(7, byB), cas.Item{}, version(5, another), cas.Item{}, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				v := testView(memstore.New())
				learn := func() {
					passes(time.Second)
					for key, item := range map[string]cas.Item{v.keys.resource(viewed): c.learnt, v.keys.member("b"): c.member} {
						item.Key = key
						v.learn(item)
					}
					passes(time.Second)
				}
				if !c.before {
					learn()
				}
				asked := time.Now()
				if c.before {
					learn()
				}
				fresh := newPicture()
				if c.listed.Live {
					fresh.setLease(viewed, c.listed, asked)
					fresh.setMember("b", c.members, asked)
				}
				v.replace(fresh, asked)
				now, lease, member := v.snapshot(), c.listed, c.members
				if c.kept {
					lease, member = c.learnt, c.member
				}
				if got := now.leases[viewed].item; got.Version != lease.Version || string(got.Value) != string(lease.Value) {
					t.Errorf("the lease is %s %s, want %s %s", got.Version, got.Value, lease.Version, lease.Value)
				}
				if got := now.members["b"].item; got.Version != member.Version || string(got.Value) != string(member.Value) {
					t.Errorf("the member is %s %s, want %s %s", got.Version, got.Value, member.Version, member.Value)
				}
			})
		})
	}
}

func TestAnOlderAnswerDoesNotHideWhatIsKnownAndAsksForAFullRead(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		v := testView(memstore.New())
		lease := func(item cas.Item) cas.Item { item.Key = v.keys.resource(viewed); return item }
		for range 2 {
			if !v.learn(lease(version(7, byB))) {
				t.Error("it is called older than what is known")
			}
		}
		if ready(v.again) {
			t.Error("a full read is asked for")
		}
		if v.learn(lease(version(6, `{"generation":6}`))) {
			t.Error("a number below the one that is known is called new")
		}
		if h := v.snapshot().leases[viewed]; h.Member != "b" {
			t.Errorf("the view is %+v", h)
		}
		if !ready(v.again) {
			t.Error("no full read is asked for, though the store may be another one")
		}
	})
}

// testView returns a view of the group "billing" that nobody runs.
func testView(s cas.Store) *view {
	return &view{
		store: s, keys: keysOf("billing"), ttl: testTTL, wake: &waits.Signal{}, again: make(chan struct{}, 1), now: newPicture(),
		trouble: func(string, error) {}, well: func() {}, asked: func(error) {}, whole: true,
	}
}

func runs(t *testing.T, v *view) {
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { v.run(ctx) })
	t.Cleanup(func() { stop(); running.Wait() })
}

func (v *view) shows(member string) func() bool {
	return func() bool { return v.snapshot().leases[viewed].Member == member }
}

func TestAFullReadShowsTheKeysOfItsGroup(t *testing.T) {
	for what, of := range map[string]func(*way) cas.Store{
		"by a watch":              func(w *way) cas.Store { return w },
		"by a list":               func(w *way) cas.Store { return listed{w, true, true} },
		"by a list of keys alone": func(w *way) cas.Store { return listed{w, false, true} },
	} {
		t.Run(what, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := wayTo(memstore.New())
				v := testView(of(w))
				if err := v.ask(t.Context()); err != nil {
					t.Fatal(err)
				}
				if err := v.start(t.Context()); err != nil {
					t.Fatal(err)
				}
				lease := put(t, w.inner, v.keys.resource(viewed), byB)
				put(t, w.inner, v.keys.member("b"), orderly)
				put(t, w.inner, keysOf("other").resource(viewed), byB)
				put(t, w.inner, keysOf("other").member("c"), orderly)
				if err := v.start(t.Context()); err != nil {
					t.Fatal(err)
				}
				now := v.snapshot()
				if h := now.leases[viewed]; len(now.leases) != 1 || h.item.Version != lease.Version || h.Member != "b" {
					t.Errorf("leases %+v", now.leases)
				}
				if len(now.members) != 1 || now.members["b"].Serves["orders"] != 1 {
					t.Errorf("members %+v", now.members)
				}
				read := w.counted("get")
				if err := v.start(t.Context()); err != nil {
					t.Fatal(err)
				}
				if n := w.counted("get") - read; n != 0 {
					t.Errorf("%d items are read whose versions are known", n)
				}
				if now := v.snapshot(); now.leases[viewed].Member != "b" || now.members["b"].Serves["orders"] != 1 {
					t.Errorf("then %+v", now)
				}
			})
		})
	}
}

// A watch continues after what it has seen last, and tells of nothing that was put back.
func TestAViewOfAStoreThatWasRestoredIsReadAnewWithinATTL(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := memstore.New()
		v := testView(s)
		put(t, s, v.keys.resource(viewed), `{"member":"before","generation":1}`)
		restore := s.Backup()
		put(t, s, v.keys.resource(viewed), `{"member":"since","generation":2}`)
		runs(t, v)
		until(t, time.Second, v.shows("since"))
		restore()
		if took := until(t, 2*testTTL, v.shows("before")); took > testTTL+time.Second {
			t.Errorf("it took %v, with a TTL of %v", took, testTTL)
		}
	})
}

func TestAViewOfAStoreThatReportsNoChangesIsATenthOfTheTTLLate(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := wayTo(memstore.New())
		v := testView(listed{w, true, true})
		runs(t, v)
		passes(time.Minute)
		put(t, w.inner, v.keys.resource(viewed), byB)
		if took := until(t, testTTL, v.shows("b")); took > testTTL/10 {
			t.Errorf("it took %v", took)
		}
		put(t, w.inner, v.keys.resource(viewed), `{"member":"c","generation":9}`)
		v.refresh()
		if took := until(t, testTTL, v.shows("c")); took > 10*time.Millisecond {
			t.Errorf("when it was asked for, it took %v", took)
		}
	})
}

func TestAWatchThatEndsIsBegunAnew(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := wayTo(memstore.New())
		v := testView(w)
		var mu sync.Mutex
		var failed []error
		v.trouble = func(_ string, err error) { mu.Lock(); defer mu.Unlock(); failed = append(failed, err) }
		runs(t, v)
		passes(time.Minute)
		w.has(refuse)
		put(t, w.inner, v.keys.resource(viewed), byB)
		passes(testTTL)
		w.has(nil)
		until(t, testTTL/5, v.shows("b"))
		mu.Lock()
		defer mu.Unlock()
		if len(failed) < 5 || !errors.Is(failed[0], errWire) {
			t.Errorf("it was told %v", failed)
		}
	})
}

// Pictures are compared now and then, and a process may be there for a moment only.
func TestTheMembersChangeWhenOneJoinsAndLeavesBetweenTwoLooks(t *testing.T) {
	k, p := keysOf("billing"), newPicture()
	was := p.clone()
	p.apply(k, cas.NewItem(memberKey("b"), []byte(`{"serves":{"orders":1}}`), nil), time.Now())
	p.apply(k, cas.Item{Key: memberKey("b")}, time.Now())
	if len(p.members) > 0 || !p.membersChangedSince(was) {
		t.Errorf("%d members, and no change", len(p.members))
	}
}
