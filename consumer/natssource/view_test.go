package natssource

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/epochfence/epochfence/internal/natstest"
)

func testView() *view {
	return newView(nil, newKeys("g"), slog.New(slog.DiscardHandler), make(chan struct{}, 1))
}

var viewed = streamPartition{"orders", 0}

func liveEntry(rev revision, member string) entry {
	return entry{rev: rev, live: true, value: record{Member: member}.json()}
}

func TestWhatTheLeaderSaidBeforeDoesNotHideWhatAWatcherSaidSince(t *testing.T) {
	t.Parallel()
	v := testView()
	v.now.setLease(viewed, liveEntry(7, "b"))
	if v.learn(viewed, entry{rev: 6}) {
		t.Error("a revision below the one we know is news")
	}
	if h := v.snapshot().leases[viewed]; !h.live || h.member != "b" {
		t.Errorf("the view is %+v", h)
	}
	select {
	case <-v.again:
	default:
		t.Error("no full read is asked for, though the bucket may be another one")
	}
}

const orderly = `{"name":"b","streams":{"orders":1}}`

func registered(rev revision, value string) entry {
	return entry{rev: rev, live: true, value: []byte(value)}
}

func TestALeaseLastsAsLongAsTheRegistrationThatItNames(t *testing.T) {
	t.Parallel()
	p := newPicture()
	held := func() bool { return p.isHeld(p.leases[viewed]) }
	p.setLease(viewed, liveEntry(6, "b"))
	if held() {
		t.Error("the registration that it names was never seen, and it is taken for held")
	}
	p.setMember("b", registered(5, orderly))
	if !held() {
		t.Error("the member is registered, and the lease is taken for free")
	}
	if !p.setMember("b", entry{rev: 9}) || held() {
		t.Error("the registration has left a marker, and the lease is taken for held, or nobody is told")
	}
	p.setMember("b", registered(8, orderly)) // comes late
	if held() {
		t.Error("a registration that is gone is back")
	}
	p.setLease(viewed, entry{rev: 10})
	p.setMember("c", registered(11, orderly))
	if held() {
		t.Error("a lease that was released is taken for held")
	}
}

func TestAMemberThatHasComeAndGoneUnseenIsAChangeOfTheGroup(t *testing.T) {
	t.Parallel()
	p := newPicture()
	p.setMember("a", registered(1, orderly))
	for _, step := range []struct {
		what  string
		after func()
		want  bool
	}{
		{"nothing", func() {}, false},
		{"a renews", func() { p.setMember("a", registered(2, orderly)) }, false},
		{"b joins", func() { p.setMember("b", registered(3, orderly)) }, true},
		{"b leaves", func() { p.setMember("b", entry{rev: 4}) }, true},
		{"c has joined and left", func() { p.setMember("c", entry{rev: 5}) }, true},
		{"b's marker goes", func() { delete(p.gone, "b") }, false},
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
	p := newPicture()
	for _, step := range []struct {
		what string
		got  bool
		want bool
	}{
		{"a member joins", p.setMember("b", registered(1, orderly)), true},
		{"it renews", p.setMember("b", registered(2, orderly)), false},
		{"it declines", p.setMember("b", registered(3, `{"name":"b","streams":{"orders":1},"declined":["orders/0"]}`)), true},
		{"an old record comes late", p.setMember("b", registered(2, orderly)), false},
		{"a lease is taken", p.setLease(viewed, liveEntry(4, "b")), true},
		{"it is renewed", p.setLease(viewed, liveEntry(5, "b")), false},
		{"it is released", p.setLease(viewed, entry{rev: 6}), true},
		{"the member leaves", p.setMember("b", entry{rev: 7}), true},
		{"it leaves again", p.setMember("b", entry{rev: 8}), false},
	} {
		if step.got != step.want {
			t.Errorf("%s: matters %v, want %v", step.what, step.got, step.want)
		}
	}
}

func TestAValueThatIsNotOursIsALiveLeaseOfNobodyWeKnow(t *testing.T) {
	t.Parallel()
	p := newPicture()
	p.setLease(viewed, entry{rev: 1, live: true, value: []byte("not JSON")})
	if h := p.leases[viewed]; !p.isHeld(h) || h.member != "" {
		t.Errorf("%+v", h)
	}
}

func TestAFullReadDoesNotForgetHowLongAKeyHasStood(t *testing.T) {
	t.Parallel()
	v, began := testView(), time.Now().Add(-time.Hour)
	read := func(lease, member revision) *picture {
		p := newPicture()
		p.setLease(viewed, entry{rev: lease, live: true, value: []byte("somebody's")})
		p.setMember("b", registered(member, orderly))
		return p
	}
	first := read(5, 6)
	h, m := first.leases[viewed], first.members["b"]
	h.since, h.strange, m.since = began, began, began
	first.leases[viewed], first.members["b"] = h, m
	v.replace(first)
	v.replace(read(5, 6))
	if now := v.snapshot(); !now.leases[viewed].since.Equal(began) || !now.leases[viewed].strange.Equal(began) || !now.members["b"].since.Equal(began) {
		t.Errorf("of the same revisions: %+v", now)
	}
	v.replace(read(7, 8))
	if now := v.snapshot(); now.leases[viewed].since.Equal(began) || !now.leases[viewed].strange.Equal(began) || now.members["b"].since.Equal(began) {
		t.Errorf("of newer revisions: %+v", now)
	}
}

func TestAFullReadShowsWhatAWatcherMissed(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	b := testBucket(t, js, time.Minute)
	v := newView(b, newKeys("g"), b.log, make(chan struct{}, 1))
	w, err := v.read(inTime(t))
	must(t, err)
	w.stop()
	l, value := acquire(t, b, 0)
	renew(t, l, value)
	must(t, second(b.write(inTime(t), v.keys.member("m"), []byte(`{"name":"m","streams":{"orders":1}}`))))
	must(t, second(b.write(inTime(t), newKeys("other").lease(viewed), value())))
	w, err = v.read(inTime(t))
	must(t, err)
	defer w.stop()
	now := v.snapshot()
	if h := now.leases[viewed]; len(now.leases) != 1 || h.rev != l.rev || h.member != "m" {
		t.Errorf("leases %+v", now.leases)
	}
	if len(now.members) != 1 || now.members["m"].Streams["orders"] != 1 {
		t.Errorf("members %+v", now.members)
	}
}

// The watcher continues after what it saw last, and tells of nothing that was put back.
func TestAViewOfABucketThatWasRestoredIsReadAnew(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	b := testBucket(t, js, 4*time.Second)
	key := newKeys("g").lease(viewed)
	must(t, second(b.write(inTime(t), key, record{Member: "before"}.json())))
	saved, err := natstest.TakeBackup(inTime(t), js.Conn(), b.stream)
	must(t, err)
	must(t, second(b.write(inTime(t), key, record{Member: "since"}.json())))
	v := newView(b, newKeys("g"), b.log, make(chan struct{}, 1))
	ctx, stop := context.WithCancel(inTime(t))
	var running sync.WaitGroup
	running.Go(func() { v.run(ctx, func(context.Context) error { return nil }) })
	t.Cleanup(func() { stop(); running.Wait() })
	eventually(t, "the view shows the lease", func() bool { return v.snapshot().leases[viewed].member == "since" })
	must(t, js.DeleteKeyValue(inTime(t), "leases"))
	must(t, saved.Restore(inTime(t), js.Conn()))
	began := time.Now()
	eventually(t, "the view shows what was put back", func() bool { return v.snapshot().leases[viewed].member == "before" })
	if took := time.Since(began); took > 2*b.ttl {
		t.Errorf("it took %v, with a TTL of %v", took, b.ttl)
	}
}
