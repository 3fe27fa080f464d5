// Package failover has the processes of a group notice within a second that one of them has died, and remove
// it from the group, instead of waiting for its session timeout.
//
// A suspicion may be wrong: the fence refuses what a process commits for partitions that it has lost, so a
// wrong one costs time and no effect. The caps in this file limit how often that time is lost.
package failover

import (
	"cmp"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/epochfence/epochfence/operate"
)

// This file decides whom to suspect; the watch may refuse. It has no clock and no I/O. loop.go gets the
// looks and does what is decided.

const (
	// DefaultPatience is three signs of 500 ms.
	DefaultPatience = 1500 * time.Millisecond

	// lateLook is the time between two looks after which what this process sees of others may say more about
	// itself: it was frozen, or the database is slow for everybody.
	lateLook = time.Second

	// lately is the silence up to which one that was suspected still counts as a silent member. Otherwise those of
	// a frozen majority would be removed one after the other. One whose connection has ended is dead, or connects
	// again sooner.
	lately, goneLately = 10 * time.Second, 3 * time.Second

	// mostPatience is shorter than the 10 minutes after which a watch forgets who gives no sign. Beyond that, only
	// the session timeout would remove it.
	mostPatience = 9 * time.Minute

	// forgetAfter is how long a process is remembered that is seen no more, and how long a patience stays raised
	// after the last wrong suspicion.
	forgetAfter = time.Hour
)

// Why is the reason for a suspicion.
type Why string

// The reasons.
const (
	Gone   Why = "gone"   // its connection to the watch ended without a goodbye, and it has not signed since
	Silent Why = "silent" // it has given no sign for longer than its patience
)

// Suspicion is a process that is to be removed, or was.
type Suspicion struct {
	operate.Peer
	Why Why
}

// Wrong is a suspicion of this process that was wrong: the suspect has signed again before its session timeout.
type Wrong struct {
	Suspicion
	Slept    time.Duration // between the two signs
	Patience time.Duration // the one from now on
}

// Step is what follows from a look.
type Step struct {
	Suspect *Suspicion     // whom to suspect, if anyone; then [State.Accepted], if the watch agrees
	Remove  []operate.Peer // whom others have suspected
	Wrong   []Wrong
	Self    time.Duration // this process was suspected wrongly: its patience from now on
}

// State is what one process knows of the others.
type State struct {
	self     operate.Peer // as last signed
	base     string       // of the name, without the process id; empty if it has none
	patience time.Duration
	raised   time.Duration // our own patience after wrong suspicions of us
	raisedAt time.Time
	session  time.Duration
	settled  string // the member id of the last suspicion of us

	attended int       // connections so far
	last     time.Time // of the last look; zero after a new connection
	signed   time.Time // the same, over all connections
	steady   time.Time // since when looks have come in time
	pruned   time.Time

	known   map[string]*peer     // by Run
	removed map[string]time.Time // member ids, and when they were seen last
	caps    []limit
	fixed   bool // in tests: a wrong suspicion does not double a patience
}

// peer is the record of one other process.
type peer struct {
	seen     time.Time
	signed   time.Time     // its last sign, by our clock
	patience time.Duration // as it signed before it was suspected
	raised   time.Duration // after wrong suspicions of it
	raisedAt time.Time
	gone     time.Time // when the last look was requested, if it was gone then
	noticed  time.Time // when it was first seen to be suspected
	wasGone  bool      // when it was last seen before it came back
	distrust bool      // it was wrongly suspected because it was gone: its connections end often
	settled  string    // the member id of the last suspicion that was found to be wrong, or right
	ours     Suspicion // the last one that this process has had accepted
}

// NewState returns the state of a process that has not looked yet. A patience of 0 is the default one.
func NewState(self operate.Peer, patience time.Duration) *State {
	s := &State{
		self: self, patience: patience,
		known: map[string]*peer{}, removed: map[string]time.Time{}, caps: slices.Clone(limits),
	}
	if base, found := strings.CutSuffix(self.Name, strconv.Itoa(os.Getpid())); found {
		s.base = base
	}
	return s
}

// Attended begins to look through a new connection.
func (s *State) Attended() {
	s.attended++
	s.last = time.Time{}
}

// Sign returns the next sign of this process, which has this id and session timeout in its group.
func (s *State) Sign(member string, session time.Duration, static bool) operate.Peer {
	s.session = session
	s.self.Member = member
	s.self.Patience = s.capped(max(cmp.Or(s.patience, DefaultPatience), s.raised))
	if static && s.patience == 0 {
		s.self.Patience = 0
	}
	return s.self
}

// capped limits a patience to the session timeout, when the group removes a member by itself.
func (s *State) capped(d time.Duration) time.Duration {
	d = min(d, mostPatience)
	if s.session > 0 {
		d = min(d, s.session)
	}
	return d
}

func (s *State) doubled(d time.Duration) time.Duration {
	if s.fixed {
		return d
	}
	return s.capped(2 * d)
}

// suspect is a process that seems to be dead, and what the caps decide from.
type suspect struct {
	Suspicion
	patience        time.Duration
	members, silent int
	now             time.Time
	ghost           bool
}

// limit is a cap: a condition without which nobody is suspected.
type limit struct {
	name   string
	allows func(s *State, p suspect) bool
}

// limits are all caps that depend on what one process knows. That the group removes one member a second at
// most is up to the watch. A ghost, which has died on this host under this name, is removed by a process that has no
// member id yet, and even if it is the majority: nobody else may be there.
var limits = []limit{
	{"once per member id", func(s *State, p suspect) bool { _, done := s.removed[p.Member]; return !done }},
	{"with a member id of its own", func(s *State, p suspect) bool { return s.self.Member != "" || p.ghost }},
	{"never a majority", func(_ *State, p suspect) bool { return p.silent*2 <= p.members || p.ghost }},
	{"after a patience of looks in time", func(s *State, p suspect) bool { return p.now.Sub(s.steady) >= p.patience || p.ghost }},
}

// See decides what follows from a look that was requested at sent and answered at now.
func (s *State) See(sent, now time.Time, l operate.Look) (step Step) {
	first := s.last.IsZero()
	if first || now.Sub(s.last) > lateLook {
		s.steady = now
		for _, k := range s.known {
			k.gone = time.Time{}
		}
	}
	members, silent := l.Members, l.Silent
	for _, p := range l.Peers {
		recent := lately
		if p.Gone {
			recent = goneLately
		}
		if p.Member != "" && p.Member == p.Suspected && stillDead(p) && p.Silent <= recent {
			members, silent = members+1, silent+1
		}
	}
	var suspects []suspect
	for _, p := range l.Peers {
		if p.Run == s.self.Run {
			step.Self = s.ourselves(now, p)
			continue
		}
		k := s.known[p.Run]
		if k == nil {
			k = &peer{}
			s.known[p.Run] = k
		}
		if w, wrong := s.cameBack(sent, now, p, k); wrong {
			step.Wrong = append(step.Wrong, w)
		}
		why, dead := s.dead(now, p, k)
		if k.gone = (time.Time{}); p.Gone {
			k.gone = sent
		}
		k.seen = now
		if _, done := s.removed[p.Member]; done {
			s.removed[p.Member] = now
		}
		switch {
		case p.Member == "" || p.Member == s.self.Member:
		case p.Suspected == p.Member:
			// One that has come back under the same id is no suspect any more.
			if _, done := s.removed[p.Member]; !done && stillDead(p) {
				s.removed[p.Member] = now
				step.Remove = append(step.Remove, p)
			}
		case dead:
			one := suspect{Suspicion{p, why}, s.patienceWith(p, k), members, silent, now, why == Gone && s.ghost(p)}
			if !slices.ContainsFunc(s.caps, func(c limit) bool { return !c.allows(s, one) }) {
				suspects = append(suspects, one)
			}
		}
	}
	if len(suspects) > 0 {
		// A ghost first, then who has died for certain.
		worst := slices.MaxFunc(suspects, func(a, b suspect) int {
			return cmp.Or(compare(a.ghost, b.ghost), compare(a.Why == Gone, b.Why == Gone), cmp.Compare(a.Silent, b.Silent))
		})
		step.Suspect = &worst.Suspicion
	}
	s.last, s.signed = now, now
	s.forget(now)
	return step
}

// stillDead reports whether one that was suspected has given no sign since.
func stillDead(p operate.Peer) bool { return p.Gone || p.Silent > p.Patience }

// compare orders false before true.
func compare(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	default:
		return 1
	}
}

// dead reports whether p gives reason to suspect it.
func (s *State) dead(now time.Time, p operate.Peer, k *peer) (Why, bool) {
	switch {
	case p.Patience <= 0: // a static member, or one that is on its way out
		return "", false
	case p.Gone && !k.distrust && !k.gone.IsZero() && p.Silent > now.Sub(k.gone):
		// A connection that is replaced is gone for a moment. So it must have been gone at the last look,
		// without a sign since.
		return Gone, true
	case p.Silent > s.patienceWith(p, k):
		return Silent, true
	}
	return "", false
}

// patienceWith returns how long to wait for p: as it says, or longer after wrong suspicions.
func (s *State) patienceWith(p operate.Peer, k *peer) time.Duration { return max(p.Patience, k.raised) }

// ghost reports whether p, which is gone, ran on this host under this name: before this process started, or beside it
// while its first connection lasts.
func (s *State) ghost(p operate.Peer) bool {
	if s.attended != 1 || p.Host != s.self.Host {
		return false
	}
	return p.Name == s.self.Name || s.base != "" && strings.TrimRight(p.Name, "0123456789") == s.base
}

// cameBack notes that a process which was suspected has signed again. It returns the suspicion if it was wrong, and
// whether it was this process's own: others report theirs.
func (s *State) cameBack(sent, now time.Time, p operate.Peer, k *peer) (w Wrong, ours bool) {
	if p.Suspected == "" || p.Suspected == k.settled {
		k.signed, k.patience, k.noticed = now.Add(-p.Silent), p.Patience, time.Time{}
		return Wrong{}, false
	}
	// One whose connections are lost again and again is always gone, and signs.
	signs := !k.noticed.IsZero() && sent.Add(-p.Silent).After(k.noticed)
	if !signs && stillDead(p) {
		if k.signed, k.wasGone = now.Add(-p.Silent), p.Gone; k.noticed.IsZero() {
			k.noticed = now
		}
		return Wrong{}, false
	}
	k.settled = p.Suspected
	slept := now.Sub(k.signed)
	if k.signed.IsZero() || s.session > 0 && slept > s.session {
		return Wrong{}, false // that was before we saw it, or the group would have removed it, too
	}
	// It may have raised its patience by itself already.
	k.raised, k.raisedAt = s.doubled(max(k.patience, k.raised)), now
	k.distrust = k.distrust || k.wasGone
	return Wrong{Suspicion: k.ours, Slept: slept, Patience: s.patienceWith(p, k)}, k.ours.Member == p.Suspected
}

// ourselves raises our own patience after a wrong suspicion of us, and returns it. It returns 0 without one.
func (s *State) ourselves(now time.Time, p operate.Peer) time.Duration {
	if p.Suspected == "" || p.Suspected == s.settled {
		return 0
	}
	s.settled = p.Suspected
	if s.self.Patience == 0 || s.session > 0 && !s.signed.IsZero() && now.Sub(s.signed) > s.session {
		return 0
	}
	s.raised, s.raisedAt = s.doubled(s.self.Patience), now
	return s.raised
}

// Accepted notes that the watch has recorded a suspicion of this process.
func (s *State) Accepted(now time.Time, p Suspicion) {
	s.removed[p.Member] = now
	if k := s.known[p.Run]; k != nil {
		k.ours = p
	}
}

// forget bounds what is remembered.
func (s *State) forget(now time.Time) {
	if now.Sub(s.pruned) < time.Minute {
		return
	}
	s.pruned = now
	if now.Sub(s.raisedAt) > forgetAfter {
		s.raised = 0
	}
	for run, k := range s.known {
		if now.Sub(k.raisedAt) > forgetAfter {
			k.raised, k.distrust = 0, false
		}
		if now.Sub(k.seen) > forgetAfter {
			delete(s.known, run)
		}
	}
	for member, seen := range s.removed {
		if now.Sub(seen) > forgetAfter {
			delete(s.removed, member)
		}
	}
}
