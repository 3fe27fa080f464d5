//go:build unix

package e2e_test

import (
	"flag"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/epochfence/epochfence/internal/servers/kafkatest"
)

var stormFlags = struct {
	lasts, settles *time.Duration
	balancers      *string
}{
	flag.Duration("storm.lasts", 10*time.Minute, "for how long TestRealStorms suspects at random; its other storms last for a fifth of that"),
	flag.Duration("storm.settles", 30*time.Second, "how long each group may take until it is balanced after a storm, on a busy machine"),
	flag.String("storm.balancers", "cooperative", "the kinds of groups of TestRealStorms: range, cooperative, KIP-848"),
}

const (
	stormParts     = 12
	stormProcesses = 3
	stormLead      = 5000 // messages that wait in each partition
)

// TestRealStorms plays what a group's suspicions might make worse: wrong ones, and faults of many processes at once.
// Messages wait in each partition all the time. Each is applied once and in order, and after a storm the group is
// balanced within seconds.
func TestRealStorms(t *testing.T) {
	if os.Getenv("EPOCHFENCE_LONG") == "" {
		t.Skip("set EPOCHFENCE_LONG=1")
	}
	b := kafkatest.Start(t, kafkatest.Config{Properties: brokerDefaults})
	lasts := *stormFlags.lasts
	for _, balancer := range strings.Split(*stormFlags.balancers, ",") {
		for _, pooled := range []bool{false, true} {
			name := balancer
			if pooled {
				name += " through PgBouncer"
			}
			t.Run(name, func(t *testing.T) {
				play := func(name string, lasts time.Duration, storm func(*storms, time.Duration)) {
					t.Run(name, func(t *testing.T) {
						s := newStorms(t, b.Addr, balancer, pooled)
						storm(s, lasts)
						s.finish()
					})
				}
				random := lasts
				if pooled {
					random = lasts / 5
				}
				play("random false suspicions", random, (*storms).randomSuspicions)
				play("all suspect all", lasts/5, (*storms).allSuspectAll)
				play("a frozen majority", lasts/5, (*storms).frozenMajority)
				play("a slow database", lasts/5, (*storms).slowDatabase)
				play("a partitioned database", lasts/5, (*storms).partitionedDatabase)
			})
		}
	}
}

// brokerDefaults are Kafka's own, which kafkatest shortens.
var brokerDefaults = map[string]string{
	"group.min.session.timeout.ms": "6000", "group.initial.rebalance.delay.ms": "3000",
	"group.consumer.session.timeout.ms": "45000", "group.consumer.min.session.timeout.ms": "45000",
	"group.consumer.heartbeat.interval.ms": "5000", "group.consumer.min.heartbeat.interval.ms": "5000",
}

// randomSuspicions has a member that lives removed every 5 s, by what the others believe to see. It compares the
// throughput with that of calm windows in between.
func (s *storms) randomSuspicions(lasts time.Duration) {
	var calm, rough []float64
	var settled []time.Duration
	ordered := 0
	length := max(min(lasts/4, 40*time.Second), 10*time.Second)
	for played := time.Duration(0); played < lasts; played += length {
		calm = append(calm, s.rate(length/2, nil))
		rough = append(rough, s.rate(length, func() {
			if member := s.livingMember(); member != "" {
				s.tell(suspects + member)
				ordered++
			}
		}))
		settled = append(settled, s.settles())
		n := len(settled) - 1
		s.Logf("%.0f messages a second with suspicions, %.0f without; settled after %v", rough[n], calm[n], settled[n].Round(time.Millisecond))
	}
	removed, ratio := s.removed(), median(rough)/median(calm)
	s.report("%d of %d wrong suspicions removed a member; %.0f messages a second, %.0f without: ratio %.2f; settled after %s",
		removed, ordered, median(rough), median(calm), ratio, spread(settled))
	s.reportMoves(removed)
	if removed < ordered*3/4 || removed > ordered*11/10+1 { // a busy machine adds some
		s.Errorf("%d removals, for %d suspicions", removed, ordered)
	}
	if median(calm) == 0 || ratio < 0.8 {
		s.Errorf("the throughput is %.2f of that without suspicions, want 0.8: %.0f and %.0f", ratio, rough, calm)
	}
}

// allSuspectAll has each process see all others as dead. The group's agreement in the database allows one removal a
// second.
func (s *storms) allSuspectAll(lasts time.Duration) {
	const storm = 15 * time.Second
	var settled []time.Duration
	removals := 0
	for began := time.Now(); time.Since(began) < lasts || removals == 0; {
		before, at := s.removed(), time.Now()
		s.tell(suspects + everybody)
		s.wait(storm)
		s.tell(believes)
		settled = append(settled, s.settles())
		n := s.removed() - before
		if most := int(time.Since(at)/time.Second) + 2; n > most || n < 3 {
			s.Errorf("%d removals within %v, want 3 to %d", n, storm, most)
		}
		removals += n
	}
	s.report("%d removals in %v; settled after %s", removals, time.Duration(len(settled))*storm, spread(settled))
}

// mostOfMajority returns how many may be removed of a majority that is silent for that long: the first one, whose last
// sign is older, and another one each 10 s, for which one that was suspected counts as silent.
func mostOfMajority(silent time.Duration) int { return 1 + int(silent/(10*time.Second)) }

// frozenMajority stops two of three processes.
func (s *storms) frozenMajority(lasts time.Duration) {
	var settled []time.Duration
	for began := time.Now(); time.Since(began) < lasts || len(settled) == 0; {
		before, at, frozen := s.removed(), time.Now(), s.some(2)
		for _, p := range frozen {
			s.signal(p, syscall.SIGSTOP)
		}
		s.wait(5 * time.Second)
		for _, p := range frozen {
			s.signal(p, syscall.SIGCONT)
		}
		most := mostOfMajority(time.Since(at))
		settled = append(settled, s.settles())
		if n := s.removed() - before; n > most {
			s.Errorf("%d removals while two of three were frozen, want %d at most", n, most)
		}
	}
	s.report("%d removals in %d freezes; settled after %s", s.removed(), len(settled), spread(settled))
}

// slowDatabase delays what all processes send to the database, and its answers. Then nothing passes for 3 s.
func (s *storms) slowDatabase(lasts time.Duration) {
	var settled []time.Duration
	for began := time.Now(); time.Since(began) < lasts || len(settled) == 0; {
		for _, by := range []time.Duration{100 * time.Millisecond, 300 * time.Millisecond, 500 * time.Millisecond, time.Second} {
			for _, p := range s.processes {
				p.database.Slow(by)
			}
			s.wait(5 * time.Second)
		}
		for _, p := range s.processes {
			p.database.Slow(0)
			p.database.Freeze()
		}
		s.wait(3 * time.Second)
		for _, p := range s.processes {
			p.database.Pass()
		}
		settled = append(settled, s.settles())
	}
	s.report("%d removals in %d slow times; settled after %s", s.removed(), len(settled), spread(settled))
	if n := s.removed(); n > 0 {
		s.Errorf("%d removals, want none: the database was slow for everybody", n)
	}
}

// partitionedDatabase cuts the database off from one process, then from two, and so on. Kafka still reaches them. Of one,
// the others have the partitions until it is back. Two are a majority.
func (s *storms) partitionedDatabase(lasts time.Duration) {
	var settled []time.Duration
	var resting []int
	for began, n := time.Now(), 1; time.Since(began) < lasts || len(settled) < 2; n = 3 - n {
		before, at, cut := s.removed(), time.Now(), s.some(n)
		for _, p := range cut {
			p.database.Freeze()
		}
		s.wait(15 * time.Second) // who joins again has its share after some heartbeats
		was := s.positions()
		s.wait(5 * time.Second)
		resting = append(resting, 0)
		for p, next := range s.positions() {
			if next == was[p] {
				resting[len(resting)-1]++
			}
		}
		if still := resting[len(resting)-1]; n == 1 && still > 0 {
			s.Errorf("%d partitions stood still while the database was cut off from one process of three", still)
		}
		for _, p := range cut {
			p.database.Pass()
		}
		most := mostOfMajority(time.Since(at))
		settled = append(settled, s.settles())
		if n := s.removed() - before; n > most {
			s.Errorf("%d removals while the database was cut off from %d of three, want %d at most", n, len(cut), most)
		}
	}
	s.report("%d removals in %d cuts; settled after %s; partitions without progress, of one process and of two in turn: %d",
		s.removed(), len(settled), spread(settled), resting)
}
