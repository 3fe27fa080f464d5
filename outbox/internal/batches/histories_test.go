package batches_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/epochfence/epochfence/internal/servers/kafkatest"
	"github.com/epochfence/epochfence/internal/servers/natstest"
)

// The histories of this file stop a process at each step of its protocol, in each way. All end alike: a reader
// has each record once, in the order of its key.

func TestHistoriesOnKfake(t *testing.T) {
	t.Parallel()
	kafkaHistories(t, onKfake(t))
}

func TestHistoriesOnKfakeBeforeKIP890(t *testing.T) {
	t.Parallel()
	kafkaHistories(t, onKfake(t, kfake.MaxVersions(kversion.V3_8_0())))
}

func TestRealHistories(t *testing.T) { kafkaHistories(t, kafkatest.Shared(t)) }

func kafkaHistories(t *testing.T, seed string) {
	histories(t, kafkaSteps, func(t *testing.T) *rig { return newKafkaRig(t, seed).rig })
}

func TestHistoriesOnNATS(t *testing.T) {
	t.Parallel()
	natsHistories(t, natstest.Start(t).URL())
}

func TestHistoriesInAStreamThatKeepsTheLastPositionOnly(t *testing.T) {
	t.Parallel()
	natsHistories(t, natstest.Start(t).URL(), func(c *jetstream.StreamConfig) { c.AllowRollup, c.Storage = true, jetstream.MemoryStorage })
}

func TestClusterHistories(t *testing.T) {
	c := natstest.StartCluster(t, 3)
	natsHistories(t, strings.Join(c.URLs(), ","), func(c *jetstream.StreamConfig) { c.Replicas = 3 })
}

func natsHistories(t *testing.T, url string, configure ...func(*jetstream.StreamConfig)) {
	histories(t, natsSteps, func(t *testing.T) *rig { return newNATSRig(t, url, configure...).rig })
}

func histories(t *testing.T, steps map[int]step, newRig func(*testing.T) *rig) {
	for at, of := range steps {
		for n := range of.times {
			t.Run(fmt.Sprintf("killed before %s %d", of.name, n+1), func(t *testing.T) {
				t.Parallel()
				r, p := newRig(t), &process{}
				stop := stopAt(at, n)
				p.at = func(step int) {
					if stop.is(step) {
						p.kill()
					}
				}
				r.add(some...)
				first := r.takeOver(p)
				stop.await(r)
				r.succeeds(first)
			})
			t.Run(fmt.Sprintf("frozen before %s %d, and thawed after all", of.name, n+1), func(t *testing.T) {
				t.Parallel()
				r := newRig(t)
				frozen := freezeAt(at, n)
				r.add(some...)
				first := r.takeOver(&process{at: frozen.at})
				frozen.await(r)
				r.add(some...)
				second := r.takeOver(&process{})
				r.awaitEmpty()
				frozen.thaw()
				r.ends(first)
				r.add(some...)
				r.awaitEmpty()
				r.wantAll()
				r.stop(second)
			})
			if at < 0 {
				continue
			}
			t.Run(fmt.Sprintf("killed after %s %d", of.name, n+1), func(t *testing.T) {
				t.Parallel()
				r := newRig(t)
				stop := stopAt(at, n)
				p := &process{at: func(int) {}}
				p.lose = func(step int) bool {
					if stop.is(step) {
						time.AfterFunc(50*time.Millisecond, p.kill) // by then the server has it
						return true
					}
					return false
				}
				r.add(some...)
				first := r.takeOver(p)
				stop.await(r)
				r.await("its end", p.killed)
				r.succeeds(first)
			})
			t.Run(fmt.Sprintf("the answer to %s %d is lost", of.name, n+1), func(t *testing.T) {
				t.Parallel()
				r := newRig(t)
				stop := stopAt(at, n)
				r.add(some...)
				only := r.takeOver(&process{at: func(int) {}, lose: stop.is})
				stop.await(r)
				r.add(some...)
				r.awaitEmpty()
				r.wantAll()
				r.stop(only)
			})
		}
		for at2, of2 := range steps {
			t.Run(fmt.Sprintf("frozen before %s, and thawed while its successor is before %s", of.name, of2.name), func(t *testing.T) {
				t.Parallel()
				r := newRig(t)
				r.add(some...)
				zeroth := r.takeOver(&process{}) // there is a position
				r.awaitEmpty()
				r.stop(zeroth)
				r.add(some...)
				frozen, other := freezeAt(at, 0), freezeAt(at2, of2.again)
				first := r.takeOver(&process{at: frozen.at})
				frozen.await(r)
				r.add(some...)
				second := r.takeOver(&process{at: other.at})
				other.await(r)
				frozen.thaw()
				r.ends(first)
				other.thaw()
				r.awaitEmpty()
				r.add(some...)
				r.awaitEmpty()
				r.wantAll()
				r.stop(second)
			})
		}
	}
	t.Run("two owners who fight", func(t *testing.T) {
		t.Parallel()
		r := newRig(t)
		for range 20 {
			r.add(some...)
			r.takeOver(&process{}) // the one before runs on until it notices
		}
		r.awaitEmpty()
		r.wantAll()
	})
}

var some = []string{"a", "b", "a", "-", "c", "a", "b", "a"}

// succeeds is the end of a history whose process is dead.
func (r *rig) succeeds(first *running) {
	r.Helper()
	r.add(some...)
	second := r.takeOver(&process{})
	r.awaitEmpty()
	r.wantAll()
	r.stop(second)
	r.stop(first)
}

// stop is the moment before the step of a number, from 0.
type stop struct {
	step, n int

	mu   sync.Mutex
	seen int
	came chan struct{}
}

func stopAt(step, n int) *stop { return &stop{step: step, n: n, came: make(chan struct{})} }

func (s *stop) is(at int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if at != s.step {
		return false
	}
	s.seen++
	if s.seen != s.n+1 {
		return false
	}
	close(s.came)
	return true
}

func (s *stop) await(r *rig) {
	r.Helper()
	select {
	case <-s.came:
	case <-time.After(patience):
		r.Fatalf("there was no %s %d", r.steps[s.step].name, s.n+1)
	}
}

// freeze stops a process as a whole: nothing that it does from then on goes on before it thaws.
type freeze struct {
	*stop
	thawed chan struct{}
	once   sync.Once
}

func freezeAt(step, n int) *freeze {
	return &freeze{stop: stopAt(step, n), thawed: make(chan struct{})}
}

func (f *freeze) at(at int) {
	f.is(at)
	select {
	case <-f.came:
		<-f.thawed
	default:
	}
}

func (f *freeze) thaw() { f.once.Do(func() { close(f.thawed) }) }
