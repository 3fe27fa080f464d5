package fenceprom_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/memsource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/lease"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/outbox"
	"github.com/epochfence/epochfence/outbox/httpfence"
	"github.com/epochfence/epochfence/sinks/memsink"
)

type hooks = memsink.Hooks

// scenario is a group of one process in which something goes wrong.
type scenario struct {
	*drill
	*worker
	called chan struct{} // holds a value once a handler that fails was called
	over   chan struct{} // closed when the test ends
}

// handles starts the scenario's process, with one partition and a message that is applied.
func (s *scenario) handles(h consumer.Handlers[*memsink.Tx], o consumer.Options) {
	s.group.SetTerm(3 * time.Second)
	s.worker = s.startAs(s.group.Member("a"), h, o)
	s.append(0, "first")
	s.Cleanup(func() { close(s.over) })
}

// failing handles each message with f but the first.
func failing(f func(ctx context.Context, m consumer.Message) error) consumer.Handlers[*memsink.Tx] {
	return consumer.Each(func(ctx context.Context, _ *memsink.Tx, m consumer.Message, _ epoch.Epoch) error {
		if string(m.Value) == "first" {
			return nil
		}
		return f(ctx, m)
	})
}

// lockOf is the lock of an alert, which is about a lock in whichever process.
func lockOf(alert string) lease.Resource { return lease.Resource{Name: alert} }

func fine(context.Context, consumer.Message) error { return nil }

func (s *scenario) fence() epoch.Fence {
	for _, f := range s.drill.sink.Fences() {
		return f
	}
	s.Fatal("there is no fence")
	return epoch.Fence{}
}

// commits has the next commit replaced.
func (s *scenario) commits(f func(do func() error) error) {
	s.worker.sink.Script(hooks{Commit: func(_ context.Context, _ []epoch.Advance, do func() error) error { return f(do) }})
	s.append(0, "second")
}

// repeats does something ten times a second.
func (s *scenario) repeats(do func()) {
	go func() {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				do()
			case <-s.over:
				return
			}
		}
	}()
}

// scenes are, by the alert that fires in each, what happens before Prometheus looks for the
// first time, and afterwards.
var scenarios = map[string]struct{ before, after func(s *scenario) }{
	"EpochfenceUnfencedWrite": {
		func(s *scenario) { s.handles(failing(fine), consumer.Options{}) },
		func(s *scenario) { s.commits(func(func() error) error { return epoch.ErrTxEndedByHandler }) },
	},
	"EpochfenceSinkWentBack": {
		func(s *scenario) { s.handles(failing(fine), consumer.Options{}) },
		func(s *scenario) {
			was := s.drill.sink.Snapshot()
			s.append(0, "second")
			s.prom.await(s, "it is applied", func() bool { return s.fence().Next == 2 })
			s.drill.sink.Restore(was)
			s.append(0, "third")
		},
	},
	"EpochfencePartitionHalted": {
		func(s *scenario) {
			s.handles(failing(func(context.Context, consumer.Message) error { return consumer.Permanent(os.ErrInvalid) }), consumer.Options{})
		},
		func(s *scenario) { s.append(0, "poison") },
	},
	"EpochfencePartitionStandsStill": {
		func(s *scenario) { s.handles(failing(fine), consumer.Options{}) },
		func(s *scenario) {
			s.commits(func(func() error) error { return fmt.Errorf("connection reset: %w", epoch.ErrInDoubt) })
		},
	},
	"EpochfencePartitionPaused": {
		func(s *scenario) { s.handles(failing(fine), consumer.Options{}) },
		func(s *scenario) {
			if _, err := s.drill.sink.Operator().Act(s.Context(), operate.NewAct(operate.ActPause, s.fence(), "anna", "for the test")); err != nil {
				s.Error(err)
			}
		},
	},
	"EpochfenceNoMember": {
		func(s *scenario) {
			m := s.group.Member("a")
			m.Freeze() // before it could join
			s.worker = s.startAs(m, failing(fine), consumer.Options{})
		},
		func(*scenario) {},
	},
	"EpochfenceNotClaimed": {
		func(s *scenario) { s.handles(failing(fine), consumer.Options{}) },
		func(s *scenario) {
			f := s.fence()
			s.worker.sink.Script(hooks{Claim: func(context.Context, epoch.Claim, func() error) error {
				return &epoch.StaleError{Partition: f.Partition, Held: f} // somebody else is always first
			}})
			s.group.Lose(s.member, s.log.Name(), 0, errors.New("a rebalance"))
			s.group.Grant(s.member, s.log.Name(), 0)
		},
	},
	"EpochfenceStalled": {
		func(s *scenario) {
			s.handles(failing(func(_ context.Context, m consumer.Message) error {
				if string(m.Value) == "second" {
					return nil
				}
				<-s.over
				return nil
			}), consumer.Options{MaxBatch: 1, HangTimeout: time.Hour}) // a partition that is given up has no lag here
		},
		func(s *scenario) {
			s.log.AppendMessages(0, consumer.Message{Value: []byte("second")}, consumer.Message{Value: []byte("slow")}, consumer.Message{Value: []byte("behind it")})
		},
	},
	"EpochfenceBehind": {
		func(s *scenario) { s.handles(failing(fine), consumer.Options{}) },
		func(s *scenario) {
			s.repeats(func() { s.log.AppendMessages(0, consumer.Message{Time: time.Now().Add(-time.Hour)}) })
		},
	},
	"EpochfenceTransactionsFail": {
		func(s *scenario) {
			s.handles(failing(func(context.Context, consumer.Message) error { return epoch.ErrTransient }), consumer.Options{RetryMax: 200 * time.Millisecond})
		},
		func(s *scenario) { s.append(0, "second") },
	},
	"EpochfenceLostInFlight": {
		func(s *scenario) {
			s.handles(failing(func(ctx context.Context, _ consumer.Message) error {
				select {
				case s.called <- struct{}{}:
				default:
				}
				<-ctx.Done()
				return ctx.Err()
			}), consumer.Options{})
		},
		func(s *scenario) {
			s.append(0, "slow")
			<-s.called
			s.group.Expire(s.member)
		},
	},
	"EpochfenceTransactionOverdue": {
		func(s *scenario) {
			s.handles(failing(func(context.Context, consumer.Message) error { <-s.over; return nil }), consumer.Options{BatchTimeout: 200 * time.Millisecond})
		},
		func(s *scenario) { s.append(0, "slow") },
	},
	"EpochfenceOldSnapshot": {
		func(s *scenario) { s.handles(failing(fine), consumer.Options{}) },
		func(s *scenario) {
			s.stats.Observe(consumer.SnapshotsHeld{Oldest: []operate.Snapshot{{Holder: operate.HolderSession, Transactions: 2_000_000}}})
		},
	},
	suspectedWrongly: {
		func(s *scenario) { s.handles(failing(fine), consumer.Options{}) },
		func(s *scenario) {
			for range 5 {
				s.stats.Observe(consumer.SuspicionWrong{})
			}
		},
	},
	"EpochfenceDeadLetters": {
		func(s *scenario) {
			s.handles(failing(func(context.Context, consumer.Message) error { return consumer.Permanent(os.ErrInvalid) }).OnFailure(s.drill.sink.DeadLetter), consumer.Options{})
		},
		func(s *scenario) { s.append(0, "poison") },
	},
	"EpochfenceJobMissed": {
		func(s *scenario) { s.handles(failing(fine), consumer.Options{}) },
		func(s *scenario) { s.misses(3, time.Second) },
	},
	"EpochfenceJobLate": {
		func(s *scenario) { s.handles(failing(fine), consumer.Options{}) },
		func(s *scenario) { s.misses(0, time.Hour) },
	},
	"EpochfenceOutboxWaits": {
		func(s *scenario) { s.handles(failing(fine), consumer.Options{}) },
		func(s *scenario) {
			s.stats.ObserveBacklog(outbox.Backlog{Partition: s.fence().Partition, Entries: 1, Oldest: time.Now().Add(-time.Hour)})
		},
	},
	"EpochfenceOutboxRefused": {
		func(s *scenario) { s.handles(failing(fine), consumer.Options{}) },
		func(s *scenario) {
			s.stats.ObserveOutbox(outbox.Event{Kind: outbox.Refused, Status: 400, Err: errors.New("400 Bad Request")})
		},
	},
	"EpochfenceReceiverFails": {
		func(s *scenario) { s.handles(failing(fine), consumer.Options{}) },
		func(s *scenario) { s.stats.ObserveReceiver(httpfence.Event{Outcome: httpfence.Failed}) },
	},
	"EpochfenceRefusedAndSlow": {
		func(s *scenario) { s.handles(failing(fine), consumer.Options{}) },
		func(s *scenario) {
			began := time.Now()
			s.repeats(func() {
				e := lease.Acquired{Resource: lockOf("EpochfenceRefusedAndSlow"), Waited: 10 * time.Millisecond}
				if time.Since(began)%(20*time.Second) > 16*time.Second { // now and then: calls that are always slow count as usual
					e.Waited = 20 * time.Second
					s.stats.ObserveLease(lease.Worked{Resource: lockOf("EpochfenceRefusedAndSlow"), TTL: time.Minute, Outcome: lease.OutcomeRefused, Refusal: lease.RefusalMoved})
				}
				s.stats.ObserveLease(e)
			})
		},
	},
	"EpochfenceLockLostAgain": {
		func(s *scenario) {
			s.handles(failing(fine), consumer.Options{})
			s.stats.ObserveLease(lease.Acquired{Resource: lockOf("EpochfenceLockLostAgain")})
		},
		func(s *scenario) {
			for range 3 {
				s.stats.ObserveLease(lease.Lost{Resource: lockOf("EpochfenceLockLostAgain"), Working: true, Reason: lease.ReasonExpired})
			}
		},
	},
	"EpochfenceWorkNearTTL": {
		func(s *scenario) {
			s.handles(failing(fine), consumer.Options{})
			s.stats.ObserveLease(lease.Acquired{Resource: lockOf("EpochfenceWorkNearTTL")})
		},
		func(s *scenario) {
			s.stats.ObserveLease(lease.Worked{Resource: lockOf("EpochfenceWorkNearTTL"), Took: 9 * time.Second, TTL: 15 * time.Second})
		},
	},
	"EpochfenceZombieRefused": {
		func(s *scenario) { s.handles(failing(fine), consumer.Options{}) },
		func(s *scenario) {
			s.commits(func(do func() error) error {
				f := s.fence()
				_, err := s.drill.sink.Claim(context.Background(), f, epoch.NewClaim(epoch.Lease{Origin: f.Origin, Generation: f.Generation + 1, Owner: "b"}))
				return errors.Join(err, do())
			})
		},
	},
}

// quickRules are those of operations, with a second for each minute: what has to last for
// five minutes lasts for five seconds.
func quickRules(t *testing.T) (text, path string) {
	t.Helper()
	slow, err := os.ReadFile("../alerts/epochfence.rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	text = regexp.MustCompile(`(for: |\[)(\d+)m`).ReplaceAllString(string(slow), "${1}${2}s")
	text = strings.NewReplacer("for: 4h", "for: 4s").Replace(text)
	path = filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return text, path
}

const (
	noProcess        = "EpochfenceNoProcess"
	suspectedWrongly = "EpochfenceSuspectedWrongly"
)

func TestAnAlertFiresWhereNobodyIsLeftToBeScraped(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts a server")
	}
	findPrometheus(t)
	_, rules := quickRules(t)
	var prom *prometheusServer
	alerts := func() int {
		all, err := prom.query(`ALERTS{alertstate="firing",alertname="` + noProcess + `",job="epochfence"}`)
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	t.Run("while the group is at work", func(at *testing.T) {
		log := memsource.New("orders", 1)
		d := &drill{T: at, log: log, group: log.Group(memsource.DefaultGroup), sink: memsink.New()}
		w := d.startAs(d.group.Member("a"), failing(fine), consumer.Options{})
		d.prom = startPrometheus(t, []string{w.address}, []string{rules}) // until the test ends, and not the group
		prom = d.prom
		d.await(`count_over_time(epochfence_member[15s]) >= 6`)
		if alerts() > 0 {
			at.Errorf("%s fires", noProcess)
		}
	})
	prom.await(t, noProcess+" fires", func() bool { return alerts() == 1 })
}

func TestEachAlertFiresWhenThereIsAReasonForIt(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts a server")
	}
	findPrometheus(t)
	quick, rules := quickRules(t)
	playing := map[string]*scenario{}
	var addresses []string
	prepare := func(name string, before func(s *scenario)) *scenario {
		log := memsource.New("orders", 1)
		s := &scenario{drill: &drill{T: t, log: log, group: log.Group(memsource.DefaultGroup), sink: memsink.New()}, called: make(chan struct{}, 1), over: make(chan struct{})}
		before(s)
		playing[name], addresses = s, append(addresses, s.address)
		return s
	}
	for _, alert := range regexp.MustCompile(`alert: (\w+)`).FindAllStringSubmatch(quick, -1) {
		if alert[1] == noProcess { // of no process
			continue
		}
		play, known := scenarios[alert[1]]
		if !known {
			t.Fatalf("there is no scenario for %s", alert[1])
		}
		prepare(alert[1], play.before)
	}
	well := prepare("", func(s *scenario) {
		s.handles(failing(func(_ context.Context, m consumer.Message) error {
			if m.Replay == 0 && string(m.Value) == "later" { // which is no dead letter
				return consumer.RetryAfter(os.ErrDeadlineExceeded, 5*time.Second)
			}
			return nil
		}), consumer.Options{})
	})
	well.repeats(func() {
		well.append(0, "a chair")
		well.append(0, "later")
		well.stats.ObserveLease(lease.Acquired{Resource: lockOf("well"), Waited: time.Second})
		well.stats.ObserveLease(lease.Worked{Resource: lockOf("well"), Took: time.Second, TTL: 15 * time.Second})
		well.stats.ObserveLease(lease.Released{Resource: lockOf("well"), Held: time.Second})
	})

	prom := startPrometheus(t, addresses, []string{rules})
	for name, s := range playing {
		s.prom = prom
		s.await(`count(epochfence_messages_total{instance="` + s.address + `"})`)
		if name != "EpochfenceNoMember" {
			prom.await(t, name+": the first message is applied", func() bool { return len(s.drill.sink.Fences()) > 0 && s.fence().Next > 0 })
		}
	}
	for name, s := range playing {
		if play, known := scenarios[name]; known {
			play.after(s)
		}
	}
	waiting := map[string]bool{}
	for name := range scenarios {
		waiting[name] = true
	}
	fires := func() bool {
		for name := range waiting {
			const of, ever = `last_over_time(ALERTS{alertstate="firing",alertname="`, `"}[1h])` // some fire for seconds
			query := of + name + `",instance="` + playing[name].address + ever + " or " + of + name + `",resource="` + lockOf(name).String() + ever
			if name == suspectedWrongly { // of a whole job
				query = of + name + ever
			}
			all, err := prom.query(query)
			if err != nil {
				t.Fatal(err)
			}
			if len(all) > 0 {
				delete(waiting, name)
			}
		}
		return len(waiting) == 0
	}
	deadline := time.After(2 * time.Minute)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for !fires() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("these do not fire: %v", waiting)
		}
	}
	prom.await(t, "nothing fires where all is well, unless a machine that stood is the reason", func() bool {
		all, err := prom.query(`ALERTS{instance="` + well.address + `"} or ALERTS{resource="` + lockOf("well").String() + `"}`)
		return err == nil && len(all) == 0
	})
	all, err := prom.query(`epochfence_deferred_messages_total{instance="` + well.address + `"} > 0`)
	if err != nil || len(all) != 1 {
		t.Errorf("where all is well, nothing was deferred: %v", err)
	}
}
