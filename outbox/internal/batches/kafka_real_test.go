package batches_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl/plain"

	"github.com/epochfence/epochfence/internal/servers/kafkatest"
	"github.com/epochfence/epochfence/outbox"
)

func TestRealRefusedRecordHoldsUpItsKeyAlone(t *testing.T) { poisonedAndOthers(t, kafkatest.Shared(t)) }

// The permissions in docs/effects-outside.md are enough, and each is needed.
func TestRealPermissionsAreThoseOfTheGuide(t *testing.T) {
	t.Parallel()
	b := kafkatest.Start(t, kafkatest.Config{Users: map[string]string{"alice": "right"}, ACLs: true})
	r := newKafkaRig(t, b.Addr)
	var log lines
	r.o.Logger = log.logger()
	r.client = []kgo.Opt{kgo.SeedBrokers(b.SASLAddr), kgo.SASL(plain.Auth{User: "alice", Pass: "right"}.AsMechanism())}
	admin := r.admin()
	set := func(acl *kadm.ACLBuilder, create bool) {
		t.Helper()
		acl = acl.Allow("User:alice").AllowHosts("*")
		var err error
		if create {
			_, err = admin.CreateACLs(t.Context(), acl)
		} else {
			_, err = admin.DeleteACLs(t.Context(), acl)
		}
		if err != nil {
			t.Fatal(err)
		}
		r.await("the broker to know", func() bool {
			known, err := admin.DescribeACLs(t.Context(), acl)
			return err == nil && len(known) == 1 && (len(known[0].Described) > 0) == create
		})
	}
	rights := map[string]func() *kadm.ACLBuilder{
		"transactional_id": func() *kadm.ACLBuilder {
			return kadm.NewACLs().TransactionalIDs(r.o.Prefix + "/").ResourcePatternType(kadm.ACLPatternPrefixed).Operations(kmsg.ACLOperationWrite)
		},
		"GROUP_": func() *kadm.ACLBuilder {
			return kadm.NewACLs().Groups(r.o.Prefix + "/").ResourcePatternType(kadm.ACLPatternPrefixed).Operations(kmsg.ACLOperationRead)
		},
		"in topic " + r.o.Positions: func() *kadm.ACLBuilder {
			return kadm.NewACLs().Topics(r.o.Positions).ResourcePatternType(kadm.ACLPatternLiteral).Operations(kmsg.ACLOperationRead)
		},
		"refuses records": func() *kadm.ACLBuilder {
			return kadm.NewACLs().Topics(r.target).ResourcePatternType(kadm.ACLPatternLiteral).Operations(kmsg.ACLOperationWrite)
		},
	}
	for _, right := range rights {
		set(right(), true)
	}
	r.add("a", "b")
	r.takeOver(&process{})
	r.awaitEmpty()
	r.wantAll()
	for say, right := range rights {
		r.stop(r.all()[len(r.all())-1])
		set(right(), false)
		said := len(log.String())
		r.add("a", "b")
		r.takeOver(&process{})
		r.await("an error that says "+say, func() bool {
			text := log.String()[said:]
			return strings.Contains(text, "AUTHORIZATION_FAILED") && strings.Contains(strings.ToLower(text), strings.ToLower(say))
		})
		set(right(), true)
		r.awaitEmpty()
		r.wantAll()
	}
	if got := r.observed(outbox.Refused); len(got) == 0 {
		t.Error("no record was refused")
	}
}

// While a broker restarts, records wait.
func TestRealBrokerRestarts(t *testing.T) {
	t.Parallel()
	b := kafkatest.Start(t, kafkatest.Config{})
	r := newKafkaRig(t, b.Addr)
	r.add("a", "b")
	r.takeOver(&process{})
	r.awaitEmpty()
	for _, stop := range []func(){b.Kill, func() { _ = b.Stop() }} {
		before := len(r.observed(outbox.Delivered))
		for range 50 {
			r.add("a", "b", "a")
		}
		r.await("some records", func() bool { return len(r.observed(outbox.Delivered)) > before+20 })
		stop()
		if err := b.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		r.awaitEmpty()
		r.wantAll()
	}
}

// A broker that crashes before it has written the markers of a transaction skips them when it starts: then
// the position and the records are neither committed nor aborted, until the relay completes the transaction.
func TestRealTransactionWithoutMarkersIsCompleted(t *testing.T) {
	for name, lost := range map[string]bool{"that the relay knows to be committed": false, "whose end was not answered": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := kafkatest.Start(t, kafkatest.Config{})
			r := newKafkaRig(t, b.Addr)
			var log lines
			r.o.Logger = log.logger()
			withoutMarkers(t, r, b, lost, func(*process, int) {}, func() bool { return strings.Contains(log.String(), "it is complete now") })
			r.awaitEmpty()
			r.wantAll()
		})
	}
}

// Of three brokers, the one that coordinates the transactions of the relay, or its position, crashes within a transaction.
func TestRealClusterLosesACoordinator(t *testing.T) {
	brokers := kafkatest.StartCluster(t, 3, kafkatest.Config{Properties: map[string]string{"min.insync.replicas": "2"}})
	var seeds []string
	for _, b := range brokers {
		seeds = append(seeds, b.Addr)
	}
	r := newKafkaRig(t, strings.Join(seeds, ","))
	name := r.o.Prefix + "/billing/orders/3"
	r.add("a", "b")
	var armed atomic.Int64 // the step at which it crashes
	armed.Store(stepNone)
	reached, crashed := make(chan struct{}), make(chan struct{})
	r.takeOver(&process{at: func(step int) {
		if armed.CompareAndSwap(int64(step), stepNone) {
			reached <- struct{}{}
			<-crashed
		}
	}})
	r.awaitEmpty()
	admin := r.admin()
	for what, coordinates := range map[string]struct {
		step int // both come after TxnOffsetCommit
		find func(context.Context, ...string) kadm.FindCoordinatorResponses
	}{
		"the position":     {stepProduce, admin.FindGroupCoordinators},
		"the transactions": {stepEnd, admin.FindTxnCoordinators},
	} {
		armed.Store(int64(coordinates.step))
		for range 20 {
			r.add("a", "b", "-", "c")
		}
		<-reached
		node := coordinates.find(t.Context(), name)[name].NodeID
		t.Logf("broker %d, which coordinates %s, crashes", node, what)
		b := brokers[node-1]
		b.Kill()
		crashed <- struct{}{}
		r.awaitEmpty() // with the other two
		r.wantAll()
		if err := b.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		r.await("three replicas in sync", func() bool {
			topics, err := admin.ListTopicsWithInternal(t.Context())
			if err != nil {
				return false
			}
			for _, topic := range topics {
				for _, p := range topic.Partitions {
					if len(p.ISR) < len(brokers) {
						return false
					}
				}
			}
			return true
		})
	}
}
