package failover

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/epochfence/epochfence/operate"
)

// looks feeds a State one look each 200 ms, in which the peer is as silent as the time that has passed since it
// last signed.
type looks struct {
	*testing.T
	state *State
	now   time.Time
}

func from(t *testing.T, s *State, member string, static bool) *looks {
	t.Helper()
	s.Attended()
	s.Sign(member, 45*time.Second, static)
	return &looks{t, s, time.Unix(1000, 0)}
}

// until looks for so long, and returns the first suspicion and the time after which it came.
func (l *looks) until(d time.Duration, members, silent int, p operate.Peer) (*Suspicion, time.Duration) {
	for began, signed := l.now, l.now.Add(-p.Silent); l.now.Sub(began) <= d; l.now = l.now.Add(lookEvery) {
		p.Silent = l.now.Sub(signed)
		if s := l.state.See(l.now, l.now.Add(time.Millisecond), operate.Look{Peers: []operate.Peer{p}, Members: members, Silent: silent}); s.Suspect != nil {
			return s.Suspect, l.now.Sub(began)
		}
	}
	return nil, 0
}

func self(name string) operate.Peer {
	return operate.Peer{Run: "self", Name: name, Host: "ada", Member: "m0"}
}

func TestARestartedProcessRemovesItsGhostBeforeItIsAMember(t *testing.T) {
	pid := os.Getpid()
	for _, c := range []struct {
		name, ghost, host string
		gone, removed     bool
	}{
		{fmt.Sprint("billing@ada-", pid), "billing@ada-99999", "ada", true, true},
		{"worker", "worker", "ada", true, true}, // the user names it
		{"worker-1", "worker-2", "ada", true, false},
		{fmt.Sprint("billing@ada-", pid), "shipping@ada-99999", "ada", true, false},
		{fmt.Sprint("billing@ada-", pid), "billing@ada-99999", "bob", true, false},
		{fmt.Sprint("billing@ada-", pid), "billing@ada-99999", "ada", false, false}, // it may be its neighbour
	} {
		p := operate.Peer{Run: "ghost", Name: c.ghost, Host: c.host, Member: "m1", Patience: DefaultPatience, Gone: c.gone, Silent: 250 * time.Millisecond}
		found, after := from(t, NewState(self(c.name), 0), "", false).until(time.Minute, 1, 1, p)
		if removed := found != nil; removed != c.removed || removed && after != lookEvery {
			t.Errorf("%+v: %+v after %v", c, found, after)
		}
	}
	again := from(t, NewState(self("worker"), 0), "", false)
	again.state.Attended() // a connection that was lost is no start: its neighbour may be about to connect
	if found, _ := again.until(time.Minute, 1, 1, operate.Peer{Run: "ghost", Name: "worker", Host: "ada", Member: "m1", Patience: 1, Gone: true}); found != nil {
		t.Errorf("after a connection was lost: %+v", found)
	}
}

func TestStaticMembersAreSuspectedOnlyIfTheOptionSaysSo(t *testing.T) {
	for _, c := range []struct {
		static  bool
		option  time.Duration
		session time.Duration
		want    time.Duration
	}{
		{false, 0, time.Minute, DefaultPatience},
		{true, 0, time.Minute, 0},
		{true, 3 * time.Second, time.Minute, 3 * time.Second},
		{false, time.Hour, time.Minute, time.Minute},
		{false, 2 * time.Minute, 0, 2 * time.Minute}, // before it is known
		{false, time.Hour, time.Hour, mostPatience},
	} {
		if p := NewState(self("a"), c.option).Sign("m0", c.session, c.static); p.Patience != c.want || p.Member != "m0" {
			t.Errorf("%+v: %+v", c, p)
		}
	}
	static := operate.Peer{Run: "b", Member: "m1", Gone: true, Silent: time.Hour}
	if found, _ := from(t, NewState(self("a"), 0), "m0", false).until(time.Minute, 3, 1, static); found != nil {
		t.Errorf("a peer without patience: %+v", found)
	}
	other := operate.Peer{Run: "b", Member: "m1", Patience: DefaultPatience}
	if found, after := from(t, NewState(self("a"), 0), "m0", true).until(time.Minute, 3, 1, other); found == nil || after > 2*time.Second {
		t.Errorf("a static member suspects %+v after %v", found, after)
	}
}

func TestAConnectionThatIsReplacedIsNoDeath(t *testing.T) {
	l := from(t, NewState(self("a"), 0), "m0", false)
	p := operate.Peer{Run: "b", Member: "m1", Patience: DefaultPatience}
	look := func(silent time.Duration, gone bool) *Suspicion {
		l.now = l.now.Add(lookEvery)
		p.Silent, p.Gone = silent, gone
		return l.state.See(l.now, l.now.Add(20*time.Millisecond), operate.Look{Peers: []operate.Peer{p}, Members: 3}).Suspect
	}
	for range 10 {
		look(0, false)
	}
	for i, one := range []struct {
		silent  time.Duration
		gone    bool
		suspect bool
	}{
		{100 * time.Millisecond, true, false},
		{200 * time.Millisecond, true, false}, // it may have signed since
		{0, false, false},
		{300 * time.Millisecond, true, false}, // once only
		{100 * time.Millisecond, false, false},
		{300 * time.Millisecond, true, false},
		{500 * time.Millisecond, true, true},
	} {
		if found := look(one.silent, one.gone); (found != nil) != one.suspect || found != nil && found.Why != Gone {
			t.Errorf("look %d, %+v: %+v", i, one, found)
		}
	}
}

func TestAnothersSuspicionIsFollowedOnceAndNotAfterTheSuspectIsBack(t *testing.T) {
	l := from(t, NewState(self("a"), 0), "m0", false)
	look := func(p operate.Peer) Step {
		l.now = l.now.Add(lookEvery)
		p.Run, p.Patience, p.Suspected, p.By = "b", DefaultPatience, "m1", "c"
		return l.state.See(l.now, l.now, operate.Look{Peers: []operate.Peer{p}, Members: 3})
	}
	if s := look(operate.Peer{Member: "m1", Silent: 300 * time.Millisecond}); len(s.Remove) != 0 {
		t.Errorf("it is back under the same id, and is removed: %+v", s)
	}
	if s := look(operate.Peer{Member: "m1", Silent: 1600 * time.Millisecond}); len(s.Remove) != 1 {
		t.Errorf("%+v", s)
	}
	if s := look(operate.Peer{Member: "m1", Silent: 1800 * time.Millisecond}); len(s.Remove) != 0 || s.Suspect != nil {
		t.Errorf("a second time: %+v", s)
	}
	if s := look(operate.Peer{Member: "m2", Silent: 100 * time.Millisecond}); len(s.Remove) != 0 || len(s.Wrong) != 0 {
		t.Errorf("it is back, and its suspicion was not ours: %+v", s)
	}
}

func TestAProcessRaisesItsOwnPatienceUpToTheSession(t *testing.T) {
	s := NewState(self("a"), 0)
	now := time.Unix(1000, 0)
	s.Attended()
	for i, want := range []time.Duration{3 * time.Second, 6 * time.Second, 10 * time.Second, 10 * time.Second} {
		sign := s.Sign(fmt.Sprint("m", i), 10*time.Second, false)
		sign.Suspected = sign.Member
		now = now.Add(lookEvery)
		step := s.See(now, now, operate.Look{Peers: []operate.Peer{sign}, Members: 2})
		again := s.See(now, now, operate.Look{Peers: []operate.Peer{sign}, Members: 2})
		if p := s.Sign("", 10*time.Second, false).Patience; step.Self != want || again.Self != 0 || p != want {
			t.Errorf("after suspicion %d: %v, %v, signs %v; want %v", i, step.Self, again.Self, p, want)
		}
	}
	s.See(now.Add(time.Hour), now.Add(time.Hour), operate.Look{})
	if p := s.Sign("", 10*time.Second, false).Patience; p != 10*time.Second {
		t.Errorf("within the hour: %v", p)
	}
	now = now.Add(time.Hour + 2*time.Minute)
	s.See(now, now, operate.Look{})
	if p := s.Sign("", 10*time.Second, false).Patience; p != DefaultPatience {
		t.Errorf("after an hour: %v", p)
	}
	// After a whole session the group would have removed it anyway.
	now = now.Add(time.Minute)
	sign := s.Sign("m9", time.Minute/2, false)
	sign.Suspected = "m9"
	if step := s.See(now, now, operate.Look{Peers: []operate.Peer{sign}}); step.Self != 0 {
		t.Errorf("after a minute: %v", step.Self)
	}
}

func TestWhatIsRememberedIsForgotten(t *testing.T) {
	l := from(t, NewState(self("a"), 0), "m0", false)
	l.until(10*time.Second, 3, 0, operate.Peer{Run: "b", Member: "m1", Patience: time.Hour})
	l.state.Accepted(l.now, Suspicion{Peer: operate.Peer{Run: "b", Member: "m1"}})
	l.now = l.now.Add(30 * time.Minute)
	l.until(0, 3, 0, operate.Peer{Run: "c", Member: "m1", Patience: time.Hour}) // the id is seen still
	l.now = l.now.Add(50 * time.Minute)
	l.until(0, 3, 0, operate.Peer{Run: "d"})
	if len(l.state.known) != 2 || len(l.state.removed) != 1 {
		t.Errorf("%d peers and %d member ids; want c and d, and m1", len(l.state.known), len(l.state.removed))
	}
}
