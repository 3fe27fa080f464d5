package kafkasource

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/consumer"
)

// owner is a process whose handler of some partitions hangs.
type owner struct {
	hangs map[int32]chan struct{} // closed once the handler has returned

	mu      sync.Mutex
	holds   map[int32]bool
	granted map[int32]int
}

func newOwner(hangs map[int32]chan struct{}) *owner {
	return &owner{hangs: hangs, holds: map[int32]bool{}, granted: map[int32]int{}}
}

func (o *owner) own(ctx context.Context, t consumer.Tenure) {
	n := t.Origin().Partition.Number
	o.mu.Lock()
	o.granted[n]++
	o.mu.Unlock()
	if until := o.hangs[n]; until != nil && !isClosed(until) {
		t.GiveUp(until)
		return
	}
	o.set(n, true)
	defer o.set(n, false)
	select {
	case <-ctx.Done():
	case <-t.Draining():
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func (o *owner) set(n int32, holds bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.holds[n] = holds
}

func (o *owner) has(ns ...int32) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, n := range ns {
		if !o.holds[n] {
			return false
		}
	}
	return true
}

func (o *owner) count() (n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, holds := range o.holds {
		if holds {
			n++
		}
	}
	return n
}

func (o *owner) grants(n int32) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.granted[n]
}

func eventually(t *testing.T, within time.Duration, what string, holds func() bool) {
	t.Helper()
	for began := time.Now(); !holds(); <-time.After(100 * time.Millisecond) {
		if time.Since(began) > within {
			t.Fatalf("not within %v: %s", within, what)
		}
	}
}

var hungGroups = map[string][]kgo.Opt{
	"classic": nil, "eager": {kgo.Balancers(kgo.RangeBalancer())}, "KIP-848": {kgo.ServerSideBalancer()},
}

// Another member gets the partition soon, and holds it for nearly all of the time however often
// the member comes back with its handler still hanging.
func TestAMemberWhoseHandlerHangsLeavesAndJoinsAgain(t *testing.T) {
	for name, opts := range hungGroups {
		t.Run(name, func(t *testing.T) {
			virtually(t, 4, func(r *rig) {
				free := map[int32]chan struct{}{0: make(chan struct{})}
				a, b := newOwner(nil), newOwner(nil)
				first := r.run(r.source(with(opts...)), a.own)
				eventually(t, time.Minute, "the first member has all partitions", func() bool { return a.has(0, 1, 2, 3) })
				second := r.run(r.source(with(opts...)), b.own)
				eventually(t, time.Minute, "two of them are the second member's", func() bool { return a.count() == 2 && b.count() == 2 })
				if err := first.stop(); err != nil {
					t.Fatal(err)
				}
				c := newOwner(free)
				third := r.run(r.source(with(opts...)), c.own)
				held, alone, looks := 0, 0, 0
				for began := time.Now(); time.Since(began) < 30*time.Minute; <-time.After(time.Second) {
					looks++
					if b.has(0) {
						held++
					}
					if c.count() == 0 {
						alone++
					}
				}
				if held < looks*8/10 {
					t.Errorf("the partition whose handler hangs was held %d of %d times", held, looks)
				}
				close(free[0])
				eventually(t, 10*time.Minute, "the member has a share again", func() bool { return c.count() == 2 && b.count() == 2 })
				if err := third.stop(); err != nil {
					t.Error(err)
				}
				eventually(t, time.Minute, "the second member has all partitions", func() bool { return b.has(0, 1, 2, 3) })
				if err := second.stop(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// A member that is alone stays, and takes the partition again once its handler has returned.
func TestAMemberThatIsAloneStaysThoughAHandlerHangs(t *testing.T) {
	for name, opts := range hungGroups {
		t.Run(name, func(t *testing.T) {
			virtually(t, 4, func(r *rig) {
				free := map[int32]chan struct{}{0: make(chan struct{})}
				a := newOwner(free)
				p := r.run(r.source(with(opts...)), a.own)
				eventually(t, time.Minute, "the others are held", func() bool { return a.has(1, 2, 3) })
				for began := time.Now(); time.Since(began) < 10*time.Minute; <-time.After(time.Second) {
					if !a.has(1, 2, 3) {
						t.Fatal("the other partitions were given up, though nobody else could have them")
					}
				}
				if n := a.grants(0); n != 1 {
					t.Errorf("the partition was granted %d times while its handler hangs", n)
				}
				close(free[0])
				eventually(t, time.Minute, "the partition is held again", func() bool { return a.has(0, 1, 2, 3) })
				if err := p.stop(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// A static member leaves for good, or its partitions would wait for its session to run out.
func TestAStaticMemberWhoseHandlerHangsFreesItsPartitions(t *testing.T) {
	for name, opts := range map[string][]kgo.Opt{"classic": nil, "KIP-848": {kgo.ServerSideBalancer()}} {
		t.Run(name, func(t *testing.T) {
			virtually(t, 2, func(r *rig) {
				free := map[int32]chan struct{}{0: make(chan struct{}), 1: make(chan struct{})}
				a, b := newOwner(free), newOwner(nil)
				instance := func(id string) func(*Options) {
					return with(append(opts[:len(opts):len(opts)], kgo.InstanceID(id), kgo.SessionTimeout(4*time.Minute), kgo.RebalanceTimeout(time.Minute))...)
				}
				one := r.run(r.source(instance("one")), a.own)
				eventually(t, time.Minute, "the first member was granted both", func() bool { return a.grants(0) == 1 && a.grants(1) == 1 })
				two := r.run(r.source(instance("two")), b.own)
				eventually(t, 30*time.Second, "the second member has both", func() bool { return b.has(0, 1) })
				close(free[0])
				close(free[1])
				for _, p := range []*running{one, two} {
					if err := p.stop(); err != nil {
						t.Error(err)
					}
				}
			})
		})
	}
}
