package natssource

import (
	"log/slog"
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

func TestAMemberWhoseLeaseRanOutIsGoneUntilItRegistersAgain(t *testing.T) {
	t.Parallel()
	data := []byte(`{"name":"b","streams":{"orders":1}}`)
	missed := func(v *view) bool { _, ok := v.snapshot().missed["b"]; return ok }
	held := func() *view {
		v := testView()
		v.now.setMember("b", 5, true, data)
		v.now.setLease(viewed, liveEntry(6, "b"))
		return v
	}
	v := held()
	v.now.setLease(viewed, entry{rev: 8}) // released
	if missed(v) {
		t.Error("a member that released a lease is taken for gone")
	}
	v = held()
	if !v.now.setLease(viewed, entry{rev: 8, expired: true}) || !missed(v) {
		t.Error("the lease ran out, and its member is not taken for gone")
	}
	fresh := func() *picture {
		p := newPicture()
		p.setMember("b", 5, true, data)
		p.setLease(viewed, entry{rev: 8, expired: true})
		return p
	}
	v.replace(fresh())
	if !missed(v) {
		t.Error("a full read forgets who is gone")
	}
	if !v.now.setMember("b", 9, true, data) || missed(v) {
		t.Error("a member that registers again is still taken for gone, or nobody is told")
	}
	v = held() // which hears of it by a full read only
	v.replace(fresh())
	if !missed(v) {
		t.Error("a full read shows that the lease ran out, and its member is not taken for gone")
	}
}

func TestOnlyChangesThatMatterWakeTheGroup(t *testing.T) {
	t.Parallel()
	p := newPicture()
	data := []byte(`{"name":"b","streams":{"orders":1}}`)
	for _, step := range []struct {
		what string
		got  bool
		want bool
	}{
		{"a member joins", p.setMember("b", 1, true, data), true},
		{"it renews", p.setMember("b", 2, true, data), false},
		{"it declines", p.setMember("b", 3, true, []byte(`{"name":"b","streams":{"orders":1},"declined":["orders/0"]}`)), true},
		{"an old record comes late", p.setMember("b", 2, true, data), false},
		{"a lease is taken", p.setLease(viewed, liveEntry(4, "b")), true},
		{"it is renewed", p.setLease(viewed, liveEntry(5, "b")), false},
		{"it is released", p.setLease(viewed, entry{rev: 6}), true},
		{"the member leaves", p.setMember("b", 7, false, nil), true},
		{"it leaves again", p.setMember("b", 8, false, nil), false},
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
	if h := p.leases[viewed]; !h.live || h.member != "" {
		t.Errorf("%+v", h)
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
	must(t, second(b.write(inTime(t), v.keys.member("m"), []byte(`{"name":"m","streams":{"orders":1}}`), b.ttl)))
	must(t, second(b.write(inTime(t), newKeys("other").lease(viewed), value(), b.ttl)))
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
