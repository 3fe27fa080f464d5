package failover

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/epochfence/epochfence/operate"
)

// This file plays groups of processes, each with a State, in steps of 10 ms of a time that it counts by itself.

const (
	step        = 10 * time.Millisecond
	session     = 12 * time.Second
	rejoinAfter = 300 * time.Millisecond
)

// group is what the processes share: the rows of a watch and the members that a broker knows.
type group struct {
	now       time.Time
	processes []*proc
	stall     time.Time // until then the watch answers nobody
	last      time.Time // of the group's last suspicion
	ungated   bool      // the group may remove any number of members at a time
	blind     bool      // the watch does not show a process its own suspicion
	forgetful bool      // a sign clears the suspicion of its process, and members keep their ids
	removals  []removal
	calls     int // of Remove
}

type removal struct {
	at         time.Time
	by, member string
	why        Why
	silent     int  // members that were silent then
	members    int  // those that were suspected lately are among both
	wrong      bool // it was alive
}

type proc struct {
	g         *group
	state     *State
	dead      bool
	frozen    time.Time // until then
	lossy     bool      // each of its connections is lost after its first look
	outsider  bool      // the broker does not let it in
	connected bool
	pending   time.Time // when the look under way was sent; zero without one
	next      time.Time // when to look again
	member    string
	joins     int
	joined    time.Time // it is a member from then on

	signed    time.Time
	row       operate.Peer
	suspected string
	by        string
}

func newGroup(n int, change func(i int, p *proc)) *group {
	g := &group{now: time.Unix(1_000_000, 0)}
	for i := range n {
		p := &proc{g: g, next: g.now.Add(time.Duration(i) * 37 * time.Millisecond)}
		p.state = NewState(operate.Peer{Run: fmt.Sprint("run", i), Name: fmt.Sprint("p", i), Host: fmt.Sprint("host", i)}, 0)
		if change != nil {
			change(i, p)
		}
		p.rejoin(0)
		g.processes = append(g.processes, p)
	}
	return g
}

// without takes caps away from all processes.
func (g *group) without(caps ...string) *group {
	for _, p := range g.processes {
		if slices.Contains(caps, "doubling") {
			p.state.fixed = true
		}
		p.state.caps = slices.DeleteFunc(p.state.caps, func(c limit) bool { return slices.Contains(caps, c.name) })
	}
	return g
}

func (p *proc) rejoin(after time.Duration) {
	p.member = ""
	if p.outsider {
		return
	}
	p.joined = p.g.now.Add(after)
}

// play lets time pass, and calls each at each step.
func (g *group) play(d time.Duration, each func(since time.Duration)) *group {
	for began := g.now; g.now.Sub(began) < d; g.now = g.now.Add(step) {
		if each != nil {
			each(g.now.Sub(began))
		}
		for _, p := range g.processes {
			p.step()
		}
	}
	return g
}

func (p *proc) step() {
	g := p.g
	if p.dead || g.now.Before(p.frozen) {
		if p.member != "" && g.now.Sub(p.signed) > session { // the broker's own timeout
			p.member = ""
		}
		return
	}
	if p.member == "" && !p.outsider && !g.now.Before(p.joined) {
		if p.joins == 0 || !g.forgetful {
			p.joins++
		}
		p.member = fmt.Sprintf("%s#%d", p.state.self.Name, p.joins)
	}
	if p.pending.IsZero() {
		if g.now.Before(p.next) {
			return
		}
		if !p.connected {
			p.state.Attended()
			p.connected = true
		}
		p.pending = g.now
	}
	if g.now.Before(g.stall) {
		return // after the stall the looks are answered one after the other
	}
	g.stall = g.stall.Add(min(30*time.Millisecond, max(0, g.stall.Sub(p.pending))))
	p.look()
	p.pending, p.next = time.Time{}, g.now.Add(lookEvery)
	if p.lossy {
		p.connected, p.next = false, g.now.Add(attendMax)
	}
}

func (p *proc) look() {
	g := p.g
	p.row, p.signed = p.state.Sign(p.member, session, false), g.now
	if g.forgetful {
		p.suspected = ""
	}
	var l operate.Look
	lately := 0
	for _, o := range g.processes {
		if o.row.Run == "" {
			continue
		}
		row := o.row
		row.Silent, row.Gone, row.Suspected, row.By = g.now.Sub(o.signed), o.dead || !o.connected, o.suspected, o.by
		if row.Member != "" && row.Suspected == row.Member && (row.Gone && row.Silent <= 3*time.Second || !row.Gone && row.Silent > row.Patience && row.Silent <= 10*time.Second) {
			lately++
		}
		if row.Member != "" && row.Suspected != row.Member {
			l.Members++
			if o != p && (row.Silent > row.Patience || row.Gone) {
				l.Silent++
			}
		}
		if o != p || o.suspected != "" && !g.blind {
			l.Peers = append(l.Peers, row)
		}
	}
	step := p.state.See(p.pending, g.now, l)
	for _, r := range step.Remove {
		g.remove(r.Run, r.Member)
	}
	if step.Suspect == nil {
		return
	}
	o := g.of(step.Suspect.Run)
	if g.now.Sub(o.signed) < step.Suspect.Silent || !g.ungated && g.now.Sub(g.last) < time.Second {
		return
	}
	g.last, o.suspected, o.by = g.now, step.Suspect.Member, p.state.self.Name
	g.removals = append(g.removals, removal{g.now, p.member, step.Suspect.Member, step.Suspect.Why, l.Silent + lately, l.Members + lately, !o.dead})
	p.state.Accepted(g.now, *step.Suspect)
	g.remove(o.row.Run, step.Suspect.Member)
}

func (g *group) of(run string) *proc {
	return g.processes[slices.IndexFunc(g.processes, func(p *proc) bool { return p.row.Run == run })]
}

func (g *group) remove(run, member string) {
	g.calls++
	if p := g.of(run); p.member == member {
		p.rejoin(rejoinAfter)
	}
}

// wrong counts the removals of processes that lived.
func (g *group) wrong() (n int) {
	for _, r := range g.removals {
		if r.wrong {
			n++
		}
	}
	return n
}

func TestADeadProcessIsRemovedWithinAHalfSecondAndAFrozenOneWithinTwo(t *testing.T) {
	for _, n := range []int{2, 3, 10} {
		for _, freeze := range []bool{false, true} {
			g := newGroup(n, nil).play(10*time.Second, nil)
			victim, at := g.processes[1], g.now
			limit := 500 * time.Millisecond
			if freeze {
				victim.frozen, limit = g.now.Add(time.Hour), 2*time.Second
			} else {
				victim.dead = true
			}
			g.play(5*time.Second, nil)
			if len(g.removals) != 1 || g.removals[0].at.Sub(at) > limit || g.calls != n-1 {
				t.Errorf("of %d, frozen %v: %d calls, removals %+v; want one within %v, which all others repeat", n, freeze, g.calls, g.removals, limit)
			}
		}
	}
}

// Without its cap, each of these removes processes that live; the numbers are those of the play.
func TestEachCapTakenAwayShowsItsStorm(t *testing.T) {
	flapping := func(since time.Duration, g *group, i int, frozen, every time.Duration) {
		if since > 5*time.Second && since%every == 0 {
			g.processes[i].frozen = g.now.Add(frozen)
		}
	}
	for _, c := range []struct {
		name          string
		without       string
		with, atLeast int // wrong removals with the cap, at most, and without
		play          func(without ...string) *group
	}{
		{"one that freezes for 2 s again and again", "doubling", 1, 10, func(without ...string) *group {
			g := newGroup(3, nil).without(without...)
			return g.play(time.Minute, func(since time.Duration) { flapping(since, g, 0, 2*time.Second, 5*time.Second) })
		}},
		{"the same, where the watch does not tell it", "doubling", 1, 10, func(without ...string) *group {
			g := newGroup(3, nil).without(without...)
			g.blind = true
			return g.play(time.Minute, func(since time.Duration) { flapping(since, g, 0, 2*time.Second, 5*time.Second) })
		}},
		{"the same, where it keeps its id and the watch forgets", "once per member id", 2, 3, func(without ...string) *group {
			g := newGroup(3, nil)
			g.forgetful = true
			g.without(without...)
			return g.play(3*time.Minute, func(since time.Duration) { flapping(since, g, 0, 5*time.Second, 8*time.Second) })
		}},
		{"the only member sleeps, beside five that wait to join", "with a member id of its own", 0, 1, func(without ...string) *group {
			g := newGroup(6, func(i int, p *proc) { p.outsider = i > 0 }).without(append(without, "never a majority")...)
			return g.play(time.Minute, func(since time.Duration) { flapping(since, g, 0, 2*time.Second, 10*time.Second) })
		}},
		{"three of five are frozen at once", "never a majority", 1, 3, func(without ...string) *group {
			g := newGroup(5, nil).without(without...)
			return g.play(20*time.Second, func(since time.Duration) {
				for i := range 3 {
					flapping(since, g, i, 5*time.Second, 10*time.Second)
				}
			})
		}},
		{"the database answers nobody for 3 s, then one after the other", "after a patience of looks in time", 0, 2, func(without ...string) *group {
			g := newGroup(10, nil).without(without...)
			return g.play(time.Minute, func(since time.Duration) {
				if since > 5*time.Second && since%(10*time.Second) == 0 {
					g.stall = g.now.Add(3 * time.Second)
				}
			})
		}},
		{"ten of thirty sleep for 3 s", "one a second", 3, 10, func(without ...string) *group {
			g := newGroup(30, nil)
			g.ungated = len(without) > 0
			return g.play(20*time.Second, func(since time.Duration) {
				if since == 10*time.Second {
					for i := range 10 {
						g.processes[i].frozen = g.now.Add(3 * time.Second)
					}
				}
			})
		}},
		{"one whose connections are always lost", "distrust of its connections", 2, 10, func(without ...string) *group {
			g := newGroup(3, func(i int, p *proc) { p.lossy = i == 0 })
			return g.play(time.Minute, func(time.Duration) {
				if len(without) > 0 {
					for _, p := range g.processes {
						for _, k := range p.state.known {
							k.distrust = false
						}
					}
				}
			})
		}},
	} {
		if n := c.play().wrong(); n > c.with {
			t.Errorf("%s: %d removals of the living, want at most %d", c.name, n, c.with)
		}
		if n := c.play(c.without).wrong(); n < c.atLeast {
			t.Errorf("%s, without the cap %q: %d removals of the living, which shows no storm", c.name, c.without, n)
		} else {
			t.Logf("%s: %d removals of the living, and %d without the cap %q", c.name, c.play().wrong(), n, c.without)
		}
	}
}

func TestAPatienceIsRaisedForAnHour(t *testing.T) {
	g := newGroup(3, nil).play(5*time.Second, nil)
	for i, wait := range []time.Duration{time.Minute, 70 * time.Minute, time.Minute} {
		at := g.now
		g.processes[0].frozen = g.now.Add(2 * time.Second)
		g.play(wait, nil)
		if removed := len(g.removals) > 0 && !g.removals[len(g.removals)-1].at.Before(at); removed == (i == 1) {
			t.Errorf("freeze %d of 2 s: removed %v", i, removed)
		}
	}
}

// Whatever happens to a group, it ends: who lives is a member, and nobody is removed any more.
func TestNoHistoryBreaksTheCaps(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 7).Draw(t, "processes")
		g := newGroup(n, nil)
		g.blind = rapid.Bool().Draw(t, "blind")
		for range rapid.IntRange(1, 12).Draw(t, "faults") {
			g.play(time.Duration(rapid.IntRange(0, 400).Draw(t, "steps"))*step, nil)
			i, d := rapid.IntRange(0, n-1).Draw(t, "which"), time.Duration(rapid.IntRange(1, 15_000).Draw(t, "for ms"))*time.Millisecond
			p := g.processes[i]
			switch rapid.SampledFrom([]string{"kill", "freeze", "freeze", "freeze all", "stall", "lose", "lossy", "cured"}).Draw(t, "fault") {
			case "kill":
				p.dead = true
			case "freeze":
				p.frozen = g.now.Add(d)
			case "freeze all":
				for _, p := range g.processes {
					p.frozen = g.now.Add(d)
				}
			case "stall":
				g.stall = g.now.Add(d)
			case "lose":
				p.connected = false
			case "lossy":
				p.lossy = true
			case "cured":
				p.lossy = false
			}
		}
		members, last := map[string]bool{}, time.Time{}
		for _, r := range g.removals {
			if members[r.member] || r.by == "" || r.silent*2 > r.members || r.at.Sub(last) < time.Second {
				t.Fatalf("%+v, after %v", r, last)
			}
			members[r.member], last = true, r.at
		}
		for _, p := range g.processes {
			if least, most := DefaultPatience, session; p.row.Patience != 0 && (p.row.Patience < least || p.row.Patience > most) {
				t.Fatalf("a patience of %v", p.row.Patience)
			}
			p.lossy = false
		}
		g.play(30*time.Second, nil)
		before := len(g.removals)
		g.play(30*time.Second, nil)
		for i, p := range g.processes {
			if !p.dead && p.member == "" {
				t.Fatalf("process %d lives, and is no member", i)
			}
		}
		if len(g.removals) != before {
			t.Fatalf("removals do not end: %+v", g.removals[before:])
		}
	})
}
