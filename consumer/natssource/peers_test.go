package natssource

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/internal/servers/natstest"
	"github.com/epochfence/epochfence/lease"
	"github.com/epochfence/epochfence/operate"
)

const testPatience = time.Second

// watcher is a process of a group that attends its watch.
type watcher struct {
	*testMember
	vigil *vigil
	self  operate.Peer
}

func attend(m *testMember) *watcher {
	m.rig.t.Helper()
	w := &watcher{testMember: m, self: operate.Peer{Group: "billing", Run: "run-" + m.name, Name: m.source.Name, Host: "host-" + m.name, Patience: testPatience}}
	v, err := m.source.Attend(inTime(m.rig.t), w.self)
	if err != nil {
		m.rig.t.Fatal(err)
	}
	w.vigil = v.(*vigil)
	m.rig.t.Cleanup(func() { v.Close(inTime(m.rig.t)) })
	return w
}

func (w *watcher) look() operate.Look {
	w.rig.t.Helper()
	w.self.Member, _, _ = w.source.Member()
	l, err := w.vigil.Look(inTime(w.rig.t), w.self)
	if err != nil {
		w.rig.t.Fatal(err)
	}
	return l
}

// of returns what w sees of another process.
func (w *watcher) of(name string) operate.Peer {
	w.rig.t.Helper()
	l := w.look()
	if i := slices.IndexFunc(l.Peers, func(p operate.Peer) bool { return p.Run == "run-"+name }); i >= 0 {
		return l.Peers[i]
	}
	return operate.Peer{}
}

// sees waits until w sees another process so.
func (w *watcher) sees(name, what string, is func(operate.Peer) bool) (p operate.Peer) {
	w.rig.t.Helper()
	eventually(w.rig.t, w.name+" sees that "+name+" "+what, func() bool { p = w.of(name); return is(p) })
	return p
}

func isThere(p operate.Peer) bool { return p.Member != "" }
func isGone(p operate.Peer) bool  { return p.Gone }
func isMute(p operate.Peer) bool  { return !p.Gone && p.Silent > testPatience }

// isLongGone is of one whose silence alone would be enough.
func isLongGone(p operate.Peer) bool { return p.Gone && p.Silent > testPatience }

// dies ends the connection of a watcher, as a kill does. Its process lives on.
func (w *watcher) dies() { w.vigil.nc.Close() }

func (r *groupRig) watchers(n int) (all []*watcher) {
	r.t.Helper()
	for n := range n {
		all = append(all, attend(r.start(fmt.Sprint("m", n))))
	}
	for _, w := range all {
		eventually(r.t, "each sees all", func() bool { return w.look().Members == n })
	}
	return all
}

func TestProcessesSeeEachOtherAndWhichOfThemDies(t *testing.T) {
	t.Parallel()
	r := newGroupRig(t, 3, 20*time.Second)
	all := r.watchers(3)
	a, b, c := all[0], all[1], all[2]
	a.look() // from now on it says its member id
	p := b.sees("m0", "is a member", isThere)
	if id, session, static := a.source.Member(); p.Member != id || session != 20*time.Second || static {
		t.Errorf("%+v, want the member %s; session %v, static %t", p, id, session, static)
	}
	p.Silent = 0
	if want := (operate.Peer{Group: "billing", Run: "run-m0", Name: a.source.Name, Host: "host-m0", Member: p.Member, Patience: testPatience}); p != want {
		t.Errorf("%+v, want %+v", p, want)
	}
	a.dies()
	if p := b.sees("m0", "is gone", isGone); p.Suspected != "" {
		t.Errorf("%+v", p)
	}
	eventually(t, "one of three is silent", func() bool { l := b.look(); return l.Members == 3 && l.Silent == 1 })
	c.wires.hold(true, true)
	b.sees("m2", "is silent", isMute)
	c.wires.hold(false, false)
	b.sees("m2", "is back", func(p operate.Peer) bool { return p.Silent < testPatience })
}

// A process that cannot reach the server itself does not know who is silent.
func TestALookThatDoesNotComeBackFromTheServerShowsNobody(t *testing.T) {
	t.Parallel()
	r := newGroupRig(t, 2, 20*time.Second)
	all := r.watchers(2)
	all[0].wires.hold(false, true)
	ctx, cancel := context.WithTimeout(inTime(t), 100*time.Millisecond)
	defer cancel()
	if l, err := all[0].vigil.Look(ctx, all[0].self); err == nil {
		t.Errorf("%+v", l)
	}
	all[0].wires.hold(false, false)
}

// A server that restarts, or a proxy, ends connections of processes that live. They need not look to be seen again.
func TestALostConnectionIsReplacedBetweenTwoLooks(t *testing.T) {
	t.Parallel()
	r := newGroupRig(t, 2, 20*time.Second)
	all := r.watchers(2)
	for range 3 {
		all[0].wires.cut()
		lost := time.Now()
		all[1].sees("m0", "answers again", func(p operate.Peer) bool { return p.Member != "" && !p.Gone && p.Silent < time.Since(lost) })
	}
	if l := all[0].look(); l.Members != 2 {
		t.Errorf("it sees %+v", l)
	}
}

// The second of two looks may come before the answer to its own question.
func TestOneAnswerThatAProcessIsGoneIsNoSuspicion(t *testing.T) {
	t.Parallel()
	r := newGroupRig(t, 2, 20*time.Second)
	all := r.watchers(2)
	all[0].dies()
	p := all[1].sees("m0", "is gone", isGone)
	said := func(times int, silent time.Duration) bool {
		t.Helper()
		v := all[1].vigil
		v.mu.Lock()
		v.seen[lease.Registered{ID: p.Member}.Process()].gone = times
		v.mu.Unlock()
		p.Silent = silent
		agreed, err := v.Suspect(inTime(t), all[1].self, p)
		must(t, err)
		return agreed
	}
	if said(1, testPatience/2) {
		t.Error("it is suspected")
	}
	if !said(2, testPatience/2) {
		t.Error("it is not suspected after the second")
	}
	eventually(t, "after its patience one is enough", func() bool { return said(1, 2*testPatience) })
}

// A vigil that is closed by a process that lives on, and one that was never begun, are not of the dead.
func TestWhoDoesNotAttendIsNotSeen(t *testing.T) {
	t.Parallel()
	r := newGroupRig(t, 2, 20*time.Second)
	r.start("absent")
	all := r.watchers(2)
	all[1].vigil.Close(inTime(t))
	eventually(t, "it is not seen", func() bool { l := all[0].look(); return l.Members == 1 && len(l.Peers) == 0 })
}

func TestTheGroupAgreesOnOneSuspicionASecond(t *testing.T) {
	t.Parallel()
	r := newGroupRig(t, 4, 20*time.Second)
	all := r.watchers(4)
	first, second := all[0], all[1]
	first.dies()
	second.dies()
	var dead [2][2]operate.Peer
	for n, w := range all[2:] {
		dead[n] = [2]operate.Peer{w.sees("m0", "is gone", isLongGone), w.sees("m1", "is gone", isLongGone)}
	}
	began, agreed := time.Now(), 0
	for agreed < 3 {
		var suspecting sync.WaitGroup
		var got [2]bool
		for n, w := range all[2:] {
			suspecting.Go(func() {
				ok, err := w.vigil.Suspect(inTime(t), w.self, dead[n][agreed%2])
				if err != nil {
					t.Error(err)
				}
				got[n] = ok
			})
		}
		suspecting.Wait()
		if got[0] && got[1] {
			t.Error("two suspicions at once")
		}
		if got[0] || got[1] {
			agreed++
		}
		if t.Failed() {
			return
		}
	}
	if took := time.Since(began); took < 2*suspectEvery {
		t.Errorf("three suspicions within %v", took)
	}
}

func TestWhoHasAnsweredSinceItWasSeenIsNotSuspected(t *testing.T) {
	t.Parallel()
	r := newGroupRig(t, 2, 20*time.Second)
	all := r.watchers(2)
	all[0].wires.hold(true, true)
	p := all[1].sees("m0", "is silent", isMute)
	all[0].wires.hold(false, false)
	all[1].sees("m0", "is back", func(p operate.Peer) bool { return p.Silent < testPatience })
	if agreed, err := all[1].vigil.Suspect(inTime(t), all[1].self, p); agreed || err != nil {
		t.Errorf("%t, %v", agreed, err)
	}
}

func TestAMemberThatIsRemovedAliveIsSeenToBeSuspectedUnderItsOldId(t *testing.T) {
	t.Parallel()
	r := newGroupRig(t, 4, 20*time.Second)
	all := r.watchers(2)
	r.shared([]*testMember{all[0].testMember, all[1].testMember}, 2, 2)
	id, _, _ := all[0].source.Member()
	all[0].wires.hold(true, true)
	all[1].sees("m0", "is silent", isMute)
	must(t, all[1].source.Remove(inTime(t), id, "test"))
	r.shared([]*testMember{all[1].testMember}, 4)
	p := all[1].of("m0")
	if p.Member != id || p.Suspected != id || p.By != all[1].source.Name {
		t.Errorf("%+v", p)
	}
	if l := all[1].look(); l.Members != 1 || l.Silent != 0 {
		t.Errorf("%+v", l)
	}
	all[0].wires.hold(false, false)
	p = all[1].sees("m0", "is back", func(p operate.Peer) bool { return p.Member != id && p.Silent <= testPatience })
	if p.Suspected != id {
		t.Errorf("%+v", p)
	}
	if own := all[0].of("m0"); own.Suspected != id || own.Member == id {
		t.Errorf("it sees of itself: %+v", own)
	}
	r.shared([]*testMember{all[0].testMember, all[1].testMember}, 2, 2)
}

// Routes between servers, or the subjects that a leaf node lets through, may hide a living process from some others.
// If they removed it each second, nothing would move any more.
func TestWhoRegistersAgainIsNotSuspectedBeforeItAnswers(t *testing.T) {
	t.Parallel()
	r := newGroupRig(t, 2, 20*time.Second)
	all := r.watchers(2)
	a, b := all[0], all[1]
	a.dies()
	id := b.sees("m0", "is gone", isGone).Member
	must(t, b.source.Remove(inTime(t), id, "test"))
	p := b.sees("m0", "is registered again", func(p operate.Peer) bool { return p.Member != "" && p.Member != id })
	for range 3 {
		if l := b.look(); p.Patience != 0 || !p.Gone || p.Suspected != id || l.Members != 2 || l.Silent != 0 {
			t.Errorf("%+v, %+v: it may be suspected again", p, l)
		}
		p = b.of("m0")
	}
	b.self.Host = a.self.Host
	if p := b.of("m0"); p.Patience != testPatience {
		t.Errorf("%+v: a process that starts where it has died cannot remove it", p)
	}
	b.self.Host = "host-m1"
	a.vigil.Close(inTime(t))
	a = attend(a.testMember)
	b.sees("m0", "answers", func(p operate.Peer) bool { return !p.Gone && p.Patience == testPatience })
	a.dies()
	b.sees("m0", "is gone, and may be suspected", func(p operate.Peer) bool { return p.Gone && p.Patience == testPatience })
}

func TestAProcessThatWasRemovedRegistersAgainOnceItIsReady(t *testing.T) {
	t.Parallel()
	r := newGroupRig(t, 2, 20*time.Second)
	var ready atomic.Bool
	var asked atomic.Int64
	r.ready = func(context.Context) error {
		if asked.Add(1); !ready.Load() {
			return errors.New("the database is out of reach")
		}
		return nil
	}
	a := r.start("m0")
	r.ready = nil
	b := r.start("m1")
	r.shared([]*testMember{a, b}, 1, 1)
	id, _, _ := a.source.Member()
	must(t, b.source.Remove(inTime(t), id, "test"))
	r.shared([]*testMember{b}, 2)
	eventually(t, "it has asked again", func() bool { return asked.Load() > 1 })
	if now, _, _ := a.source.Member(); now != "" || len(b.holding()) != 2 {
		t.Errorf("it is the member %q, and the other one has %d of 2 partitions", now, len(b.holding()))
	}
	ready.Store(true)
	r.shared([]*testMember{a, b}, 1, 1)
	if now, _, _ := a.source.Member(); now == "" || now == id {
		t.Errorf("it is the member %q, and was %q", now, id)
	}
}

// Each process asks a few others, and all of them while one is silent: it would not see that a majority is.
func TestInALargeGroupEachProcessLooksAfterAFew(t *testing.T) {
	t.Parallel()
	r := newGroupRig(t, 8, 30*time.Second)
	all := r.watchers(8)
	by := map[string]int{}
	for _, w := range all {
		var l operate.Look
		eventually(t, w.name+" looks after a few", func() bool { l = w.look(); return len(l.Peers) == lookedAfter && l.Silent == 0 })
		for _, p := range l.Peers {
			by[p.Name]++
		}
	}
	for name, n := range by {
		if n != lookedAfter {
			t.Errorf("%d look after %s", n, name)
		}
	}
	last := all[7]
	last.wires.hold(true, true)
	id, _, _ := last.source.Member()
	must(t, all[0].source.Remove(inTime(t), id, "test"))
	for _, w := range all[:7] {
		eventually(t, w.name+" looks after a few and the one that was removed", func() bool {
			l := w.look()
			return len(l.Peers) == lookedAfter+1 && l.Members == 7 && slices.ContainsFunc(l.Peers, func(p operate.Peer) bool { return p.Suspected == id })
		})
	}
	eventually(t, "it is silent for longer than what alarms, and alarms nobody", func() bool {
		l := all[0].look()
		return len(l.Peers) == lookedAfter+1 && slices.ContainsFunc(l.Peers, func(p operate.Peer) bool { return p.Suspected == id && p.Silent > 2*alarmed })
	})
	for _, w := range all[1:6] {
		w.dies()
	}
	eventually(t, "all that have died are seen", func() bool { return all[0].look().Silent == 5 })
	last.wires.hold(false, false)
}

func TestAWatchThatTheServerDoesNotPermitIsNone(t *testing.T) {
	t.Parallel()
	publish, subscribe := documentedPermissions(t)
	without := func(subjects []string) []string {
		return slices.DeleteFunc(slices.Clone(subjects), func(s string) bool { return s == "epochfence.leases.billing.>" })
	}
	for name, c := range map[string]struct {
		publish, subscribe []string
		refused            bool
	}{
		"as documented":      {publish, subscribe, false},
		"without publishing": {without(publish), subscribe, true},
		"without answers":    {publish, without(subscribe), true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := natstest.Start(t, withUser(c.publish, c.subscribe, nil))
			source := asUser(t, s, s.JetStream(t, nats.UserInfo("admin", "admin")))
			runs(t, source)
			v, err := source.Attend(inTime(t), operate.Peer{Run: "run", Patience: testPatience})
			if err == nil {
				v.Close(inTime(t))
			}
			if errors.Is(err, operate.ErrNoWatch) != c.refused || !c.refused && err != nil {
				t.Errorf("%v", err)
			}
		})
	}
}

// What the server does not permit closes the connection, on which a question may be waiting.
func TestWhatHasEndedAWatchIsTheReasonOfAQuestionThatItCutsOff(t *testing.T) {
	t.Parallel()
	nc, err := nats.Connect(natstest.Start(t).URL())
	must(t, err)
	nc.Close()
	for range 100 {
		over, fail := context.WithCancelCause(t.Context())
		fail(operate.ErrNoWatch)
		v := &vigil{nc: nc, me: "me", over: over}
		if err := v.ask(t.Context(), nil); !errors.Is(err, operate.ErrNoWatch) {
			t.Fatal(err)
		}
	}
}

// onceDialer connects once. A second attempt hangs.
type onceDialer struct {
	dialed atomic.Bool
	hangs  chan struct{}
	over   <-chan struct{}
}

func (d *onceDialer) Dial(network, address string) (net.Conn, error) {
	if d.dialed.Swap(true) {
		close(d.hangs)
		<-d.over
		return nil, net.ErrClosed
	}
	return net.Dial(network, address)
}

func TestAProcessThatEndsDoesNotWaitForTheConnectionOfItsWatch(t *testing.T) {
	t.Parallel()
	s := natstest.Start(t)
	d := &onceDialer{hangs: make(chan struct{}), over: t.Context().Done()}
	o := newGroupRigOn(t, s, 1, 2, 20*time.Second).options()
	o.JetStream = s.JetStream(t, nats.SetCustomDialer(d))
	source, err := New(o)
	must(t, err)
	runs(t, source)
	ctx, cancel := context.WithCancel(inTime(t))
	attended := make(chan error, 1)
	go func() {
		_, err := source.Attend(ctx, operate.Peer{Run: "run", Patience: testPatience})
		attended <- err
	}()
	<-d.hangs
	cancel()
	select {
	case err := <-attended:
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	case <-inTime(t).Done():
		t.Error("it waits")
	}
}

// runs has a source run that holds what it is granted.
func runs(t *testing.T, s *Source) {
	t.Helper()
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() {
		ended <- s.Run(ctx, func(error) {}, func(ctx context.Context, tn consumer.Tenure) {
			select {
			case <-tn.Draining():
			case <-ctx.Done():
			}
		})
	}()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
