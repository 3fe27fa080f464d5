package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/memsource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/sinks/memsink"
)

// peers is what the processes of a test see of each other.
type peers struct {
	mu   sync.Mutex
	rows []*peer
	last time.Time // of a suspicion
	lies bool      // each process sees another one as dead, in turn
	told int       // suspicions
	said []string  // who has said goodbye
}

// peer is a process: a member of the group that others can remove, and its row in peers. It is a source,
// and for a sink without a watch the [operate.Watch], too.
type peer struct {
	*memMember
	peers  *peers
	static bool
	may    error // of Remove

	row     operate.Peer
	signed  time.Time
	signs   int
	joins   int
	removed []string      // members, by this process
	stopped chan struct{} // closed at the thaw; nil while it runs
	dead    bool
}

type memMember = memsource.Member

// watchedSink is a sink that is a watch.
type watchedSink struct {
	*memsink.Sink
	operate.Watch
}

// sinkWithoutWatch could show processes each other, but for its schema.
type sinkWithoutWatch struct{ *memsink.Sink }

func (sinkWithoutWatch) Attend(context.Context, operate.Peer) (operate.Vigil, error) {
	return nil, operate.ErrNoWatch
}

func (s *peers) peer(m *memsource.Member) *peer {
	p := &peer{memMember: m, peers: s}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rows = append(s.rows, p)
	return p
}

func (p *peer) Member() (string, time.Duration, bool) {
	p.peers.mu.Lock()
	defer p.peers.mu.Unlock()
	return fmt.Sprintf("%s#%d", p.Name(), p.joins), memsource.DefaultTerm, p.static
}

func (p *peer) Remove(_ context.Context, member, _ string) error {
	p.peers.mu.Lock()
	defer p.peers.mu.Unlock()
	if p.removed = append(p.removed, member); p.may != nil {
		return p.may
	}
	for _, o := range p.peers.rows {
		if member == fmt.Sprintf("%s#%d", o.Name(), o.joins) {
			o.joins++
			o.Group().Expire(o.memMember)
		}
	}
	return nil
}

// running waits while the process is frozen.
func (p *peer) running(ctx context.Context) error {
	p.peers.mu.Lock()
	stopped := p.stopped
	p.peers.mu.Unlock()
	if stopped == nil {
		return nil
	}
	select {
	case <-stopped:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (p *peer) Attend(ctx context.Context, self operate.Peer) (operate.Vigil, error) {
	_, err := p.Look(ctx, self)
	return p, err
}

func (p *peer) Look(ctx context.Context, self operate.Peer) (l operate.Look, err error) {
	if err := p.running(ctx); err != nil {
		return l, err
	}
	p.peers.mu.Lock()
	defer p.peers.mu.Unlock()
	suspected, by := p.row.Suspected, p.row.By
	p.row, p.signed, p.signs = self, time.Now(), p.signs+1
	p.row.Suspected, p.row.By = suspected, by
	for _, o := range p.peers.rows {
		if o.signs == 0 {
			continue
		}
		row := o.row
		row.Silent, row.Gone = time.Since(o.signed), o.dead
		if row.Suspected != row.Member {
			if l.Members++; row.Gone || row.Silent > row.Patience {
				l.Silent++
			}
		}
		if p.peers.lies && o != p && p.signs%len(p.peers.rows) == 0 {
			row.Silent = time.Hour
		}
		l.Peers = append(l.Peers, row)
	}
	return l, nil
}

func (p *peer) Suspect(_ context.Context, by, suspect operate.Peer) (bool, error) {
	p.peers.mu.Lock()
	defer p.peers.mu.Unlock()
	for _, o := range p.peers.rows {
		if o.row.Run == suspect.Run && (p.peers.lies || time.Since(o.signed) >= suspect.Silent) && time.Since(p.peers.last) >= time.Second {
			o.row.Suspected, o.row.By, p.peers.last = suspect.Member, by.Name, time.Now()
			p.peers.told++
			return true, nil
		}
	}
	return false, nil
}

func (p *peer) Close(ctx context.Context) {
	p.peers.mu.Lock()
	defer p.peers.mu.Unlock()
	if ctx.Err() == nil && p.stopped == nil {
		p.peers.said, p.signs = append(p.peers.said, p.Name()), 0
	}
}

// freeze stops a process as SIGSTOP does. If it dies, its connection ends.
func (p *peer) freeze(dies bool) {
	p.memMember.Freeze()
	p.peers.mu.Lock()
	defer p.peers.mu.Unlock()
	p.stopped, p.dead = make(chan struct{}), dies
}

func (p *peer) thaw() {
	p.peers.mu.Lock()
	close(p.stopped)
	p.stopped, p.dead = nil, false
	p.peers.mu.Unlock()
	p.memMember.Thaw()
}

// startPeer starts a process whose sink shows it the others.
func (r *rig) startPeer(s *peers, name string, o options, change func(*peer)) (*process, *peer) {
	p := r.process(name, nil)
	peer := s.peer(p.member)
	if change != nil {
		change(peer)
	}
	p.run(func(ctx context.Context) error {
		return consumer.Run(ctx, peer, watchedSink{p.sink, peer}, each(record), p.watched(o))
	})
	return p, peer
}

// now returns the process as it is once all goroutines wait.
func (p *peer) now() peer {
	synctest.Wait()
	p.peers.mu.Lock()
	defer p.peers.mu.Unlock()
	return peer{row: p.row, signs: p.signs, removed: slices.Clone(p.removed)}
}

// shares returns how many partitions each member has.
func (r *rig) shares() map[string]int {
	n := map[string]int{}
	for i := range int32(6) {
		n[r.group().Owner(r.log.Name(), i)]++
	}
	return n
}

func TestPartitionsMoveWithinASecondOfADeathAndWithinTwoOfAFreeze(t *testing.T) {
	for _, c := range []struct {
		name    string
		dies    bool
		o       options
		within  time.Duration
		atLeast time.Duration
	}{
		{"a death", true, options{}, time.Second, 0},
		{"a freeze", false, options{}, 2 * time.Second, 1500 * time.Millisecond},
		{"a death, with a patience that is none", true, options{Patience: -1}, memsource.DefaultTerm + time.Second, memsource.DefaultTerm},
		{"a freeze, with another patience", false, options{Patience: 4 * time.Second}, 5 * time.Second, 4 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, 6, func(r *rig) {
				s := &peers{}
				a, frozen := r.startPeer(s, "a", c.o, nil)
				b, _ := r.startPeer(s, "b", c.o, nil)
				d, _ := r.startPeer(s, "d", c.o, nil)
				r.pass(5 * time.Second)
				var want [6][]string
				for n := range int32(6) {
					want[n] = r.fill(n, 10)
				}
				r.applied()
				if n := r.shares()["a"]; n != 2 {
					t.Fatalf("a has %d partitions", n)
				}
				frozen.freeze(c.dies)
				began := time.Now()
				for n := range int32(6) {
					r.log.Append(n, "more")
					want[n] = append(want[n], "more")
				}
				r.applied()
				if took := time.Since(began); took > c.within || took < c.atLeast {
					t.Errorf("all is applied after %v, want %v to %v", took, c.atLeast, c.within)
				}
				frozen.thaw()
				r.pass(time.Minute)
				if n := r.shares(); n["a"] != 2 || n["b"] != 2 || n["d"] != 2 {
					t.Errorf("after the thaw: %v", n)
				}
				told := append(seen[consumer.Suspected](b), seen[consumer.Suspected](d)...)
				wrong := append(seen[consumer.SuspicionWrong](b), seen[consumer.SuspicionWrong](d)...)
				if none := c.o.Patience < 0; none && len(told)+len(wrong)+frozen.now().signs > 0 || !none && (len(told) != 1 || told[0].Name != "a" || told[0].Gone != c.dies || len(wrong) != 1 || wrong[0].Suspected != told[0]) {
					t.Errorf("suspicions %+v, wrong %+v, %d signs", told, wrong, frozen.now().signs)
				}
				ofGroup := epoch.Partition{Group: r.partition(0).Group}
				ds, err := r.sink.Operator().History(t.Context(), operate.HistoryQuery{Partition: &ofGroup})
				if err != nil || len(ds) != len(told) || len(ds) == 1 && (ds[0].Kind != operate.DecidedSuspected || ds[0].Reason != told[0].String() || ds[0].Owner != suspecting(b, d)) {
					t.Errorf("the audit log has %+v, %v", ds, err)
				}
				if p := frozen.now().row.Patience; c.o.Patience == 0 && p != 3*time.Second {
					t.Errorf("then a has a patience of %v", p)
				}
				for _, p := range []*process{a, b, d} {
					p.end()
				}
				for n := range int32(6) {
					r.wantEffects(n, want[n]...)
				}
			})
		})
	}
}

// rejoining is a peer that stays out of the group after a removal.
type rejoining struct {
	*peer
	ready chan func(context.Context) error
}

func (p rejoining) RejoinWhen(ready func(context.Context) error) { p.ready <- ready }

// farSink is a sink that this process may not reach.
type farSink struct {
	watchedSink
	far *atomic.Bool
}

func (s farSink) Look(ctx context.Context, ps []epoch.Partition) (epoch.Fences, error) {
	if s.far.Load() {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return s.watchedSink.Look(ctx, ps)
}

func TestAProcessIsReadyToJoinAgainWhileItsSinkAnswers(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		s := &peers{}
		b, _ := r.startPeer(s, "b", options{}, nil)
		r.pass(5 * time.Second)
		a, far := r.process("a", nil), &atomic.Bool{}
		p := rejoining{s.peer(a.member), make(chan func(context.Context) error, 1)}
		far.Store(true)
		a.run(func(ctx context.Context) error {
			return consumer.Run(ctx, p, farSink{watchedSink{a.sink, p.peer}, far}, each(record), a.watched(options{}))
		})
		ready := <-p.ready
		if err := ready(context.Background()); err != nil {
			t.Errorf("before it had a partition: %v", err)
		}
		b.end() // from now on it has one
		r.pass(5 * time.Second)
		began := time.Now()
		if err := ready(context.Background()); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > 3*time.Second {
			t.Errorf("while the sink does not answer: %v, after %v", err, time.Since(began))
		}
		far.Store(false)
		if err := ready(context.Background()); err != nil {
			t.Errorf("while the sink answers: %v", err)
		}
		r.fill(0, 10)
		r.applied()
		a.end()
		if err := ready(context.Background()); err != nil {
			t.Errorf("after it had a partition: %v", err)
		}
	})
}

// sharded is a sink with a shard for each partition, of which one answers nobody.
type sharded struct {
	watchedSink
	down *atomic.Int32
}

func (sharded) Shards() int                      { return 2 }
func (sharded) Shard(p epoch.Partition) int      { return int(p.Number) }
func (s sharded) ReplacedIn(int) <-chan struct{} { return s.Facts().Replaced }
func (s sharded) Look(ctx context.Context, ps []epoch.Partition) (epoch.Fences, error) {
	if ps[0].Number == s.down.Load() {
		return nil, errors.New("the database is out of reach")
	}
	return s.watchedSink.Look(ctx, ps)
}

// Otherwise all would leave the group one after the other, each after a pause of its own, and nobody would be left for the
// shards that answer.
func TestAShardThatAnswersNobodyKeepsNobodyOutOfTheGroup(t *testing.T) {
	for _, down := range []int32{1, 0} {
		inBubble(t, 2, func(r *rig) {
			s, a, at := &peers{}, r.process("a", nil), &atomic.Int32{}
			at.Store(-1)
			p := rejoining{s.peer(a.member), make(chan func(context.Context) error, 1)}
			a.run(func(ctx context.Context) error {
				return consumer.Run(ctx, p, sharded{watchedSink{a.sink, p.peer}, at}, each(record), a.watched(options{}))
			})
			ready := <-p.ready
			r.fill(0, 10)
			r.fill(1, 10)
			r.applied()
			at.Store(down)
			if err := ready(context.Background()); (err == nil) != (down == 1) { // in the first shard, processes see each other
				t.Errorf("while shard %d answers nobody: %v", down, err)
			}
			at.Store(-1)
			a.end()
		})
	}
}

func TestAPartitionThatWasNeverClaimedKeepsNobodyOutOfTheGroup(t *testing.T) {
	for bad := range int32(2) {
		inBubble(t, 2, func(r *rig) {
			s, a, at := &peers{}, r.process("a", nil), &atomic.Int32{}
			at.Store(bad)
			p := rejoining{s.peer(a.member), make(chan func(context.Context) error, 1)}
			a.run(func(ctx context.Context) error {
				return consumer.Run(ctx, p, unroutable{watchedSink{a.sink, p.peer}, at}, each(record), a.watched(options{}))
			})
			ready := <-p.ready
			r.fill(1-bad, 10)
			r.pass(time.Minute)
			if err := ready(context.Background()); err != nil {
				t.Errorf("partition %d is refused: %v", bad, err)
			}
			a.end()
		})
	}
}

// unroutable is a sink that refuses one partition, whatever it is asked.
type unroutable struct {
	watchedSink
	refused *atomic.Int32
}

func (s unroutable) Look(ctx context.Context, ps []epoch.Partition) (epoch.Fences, error) {
	if slices.ContainsFunc(ps, func(p epoch.Partition) bool { return p.Number == s.refused.Load() }) {
		return nil, errors.New("no shard has it")
	}
	return s.watchedSink.Look(ctx, ps)
}

// suspecting returns the name of the one that has suspected another.
func suspecting(ps ...*process) string {
	for _, p := range ps {
		if len(seen[consumer.Suspected](p)) > 0 {
			return p.member.Name()
		}
	}
	return ""
}

// A watch that is wrong about everybody costs time, and no effect.
func TestNothingIsDoubledOrLostWhereAllSuspectAll(t *testing.T) {
	inBubble(t, 6, func(r *rig) {
		s := &peers{lies: true}
		var all []*process
		for _, name := range []string{"a", "b", "d", "e"} {
			p, _ := r.startPeer(s, name, options{}, nil)
			all = append(all, p)
		}
		var want [6][]string
		for i := range 600 {
			for n := range int32(6) {
				value := fmt.Sprintf("%d/%d", n, i)
				r.log.Append(n, value)
				want[n] = append(want[n], value)
			}
			r.pass(100 * time.Millisecond)
		}
		began := time.Now()
		r.applied()
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("after the last message, %v until all is applied", took)
		}
		s.mu.Lock()
		told := s.told
		s.mu.Unlock()
		if told < 10 || told > 60 {
			t.Errorf("%d removals in a minute, want many, and one a second at most", told)
		}
		for _, p := range all {
			p.end()
		}
		for n := range int32(6) {
			r.wantEffects(n, want[n]...)
		}
	})
}

func TestADrainIsNotSuspectedAndEndsWithAGoodbye(t *testing.T) {
	inBubble(t, 6, func(r *rig) {
		s := &peers{}
		a := r.process("a", nil)
		draining := s.peer(a.member)
		a.run(func(ctx context.Context) error {
			return consumer.Run(ctx, draining, watchedSink{a.sink, draining}, each(func(ctx context.Context, tx tx, m consumer.Message, e epoch.Epoch) error {
				<-time.After(4 * time.Second)
				return record(ctx, tx, m, e)
			}), a.watched(options{}))
		})
		b, other := r.startPeer(s, "b", options{}, nil)
		r.pass(5 * time.Second)
		var want [6][]string
		for n := range int32(6) {
			want[n] = r.fill(n, 1)
		}
		r.pass(time.Second)
		a.stop()
		began := time.Now()
		if err := <-a.done; err != nil {
			t.Error(err)
		}
		if time.Since(began) < 2*time.Second || draining.now().signs != 0 || !slices.Equal(s.said, []string{"a"}) {
			t.Errorf("a drain of %v, %d signs, goodbyes %q", time.Since(began), draining.now().signs, s.said)
		}
		r.applied()
		b.end()
		if len(other.now().removed) != 0 || len(seen[consumer.Suspected](b)) != 0 {
			t.Errorf("b has removed %q", other.now().removed)
		}
		for n := range int32(6) {
			r.wantEffects(n, want[n]...)
		}
	})
}

func TestWhoMayNotRemoveSaysSoOnceAndOthersRemove(t *testing.T) {
	inBubble(t, 6, func(r *rig) {
		s, log := &peers{}, &logged{}
		b, refused := r.startPeer(s, "b", options{Logger: log.logger()}, func(p *peer) { p.may = fmt.Errorf("group b: %w", consumer.ErrMayNotRemove) })
		d, may := r.startPeer(s, "d", options{}, nil)
		var dead []*peer
		for _, name := range []string{"e", "f", "g"} {
			_, p := r.startPeer(s, name, options{}, nil)
			dead = append(dead, p)
		}
		for _, p := range dead {
			r.pass(20 * time.Second)
			p.freeze(true)
		}
		r.pass(5 * time.Second)
		if n := r.shares(); n["b"] != 3 || n["d"] != 3 {
			t.Errorf("partitions: %v", n)
		}
		synctest.Wait()
		refusals := log.lines("may not remove others")
		if len(refused.now().removed) != 1 || len(may.now().removed) != 3 || len(refusals) != 1 {
			t.Errorf("b has tried %q, d %q; b says %s", refused.now().removed, may.now().removed, refusals)
		}
		for _, p := range dead {
			p.thaw()
		}
		b.end()
		d.end()
	})
}

func TestAStaticMemberIsNotSuspectedAndSuspects(t *testing.T) {
	inBubble(t, 6, func(r *rig) {
		s := &peers{}
		a, static := r.startPeer(s, "a", options{}, func(p *peer) { p.static = true })
		b, other := r.startPeer(s, "b", options{}, nil)
		r.pass(5 * time.Second)
		static.freeze(true)
		r.pass(5 * time.Second)
		if len(other.now().removed) != 0 {
			t.Errorf("b removes %q, which is to keep its partitions", other.now().removed)
		}
		static.thaw()
		r.pass(20 * time.Second)
		other.freeze(true)
		r.pass(2 * time.Second)
		if e := wantOne[consumer.Suspected](a); e.Name != "b" || !strings.HasPrefix(e.Member, "b#") || !e.Gone {
			t.Errorf("%+v", e)
		}
		other.thaw()
		a.end()
		b.end()
	})
}

func TestASourceIsTheWatchWhereTheSinkIsNone(t *testing.T) {
	t.Run("no sink", func(t *testing.T) { sourceWatches(t, func(p *process) epoch.Sink[*memsink.Tx] { return p.sink }) })
	t.Run("not this one", func(t *testing.T) {
		sourceWatches(t, func(p *process) epoch.Sink[*memsink.Tx] { return sinkWithoutWatch{p.sink} })
	})
}

func sourceWatches(t *testing.T, sink func(*process) epoch.Sink[*memsink.Tx]) {
	t.Helper()
	inBubble(t, 6, func(r *rig) {
		s := &peers{}
		var all []*process
		var rows []*peer
		for _, name := range []string{"a", "b"} {
			p := r.process(name, nil)
			row := s.peer(p.member)
			p.run(func(ctx context.Context) error {
				return consumer.Run(ctx, row, sink(p), each(record), p.watched(options{}))
			})
			all, rows = append(all, p), append(rows, row)
		}
		r.pass(5 * time.Second)
		rows[0].freeze(true)
		r.pass(time.Second)
		if n := r.shares(); n["b"] != 6 {
			t.Errorf("partitions: %v", n)
		}
		rows[0].thaw()
		for _, p := range all {
			p.end()
		}
	})
}
