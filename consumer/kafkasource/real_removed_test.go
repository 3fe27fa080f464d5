package kafkasource_test

import (
	"errors"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl/plain"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/kafkasource"
	"github.com/epochfence/epochfence/internal/servers/kafkatest"
)

// usualTimeouts are Kafka's defaults, which the other tests shorten.
func usualTimeouts(group kgo.Opt) []kgo.Opt {
	return []kgo.Opt{group, kgo.SessionTimeout(45 * time.Second), kgo.HeartbeatInterval(3 * time.Second), kgo.RebalanceTimeout(time.Minute)}
}

// Of two workers one freezes with a transaction open, and the other one removes it from the group. It has the
// partitions long before the session timeout, which is longer than this test waits. Removed, the first one is
// refused, and joins again.
func TestRealARemovedMemberIsRefusedAndJoinsAgain(t *testing.T) {
	t.Parallel()
	b := kafkatest.Start(t, kafkatest.Config{Properties: map[string]string{
		"group.consumer.session.timeout.ms": "45000", "group.consumer.min.session.timeout.ms": "45000",
		"group.consumer.heartbeat.interval.ms": "5000", "group.consumer.min.heartbeat.interval.ms": "5000",
	}})
	for name, opt := range map[string]kgo.Opt{
		"eager":       kgo.Balancers(kgo.RangeBalancer()),
		"cooperative": kgo.Balancers(kgo.CooperativeStickyBalancer()),
		"KIP-848":     kgo.ServerSideBalancer(),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newRealHistory(t, b.Addr, 4)
			sendAll := func(n int) {
				for p := range int32(4) {
					h.send(p, n)
				}
			}
			has := func(w *worker, n int) func() bool {
				return func() bool {
					for p := range int32(4) {
						if owns(w, h.fence(p)) {
							n--
						}
					}
					return n == 0
				}
			}
			sendAll(5)
			first, second := h.start("first", usualTimeouts(opt)...), h.start("second", usualTimeouts(opt)...)
			h.await("each to have two partitions", func() bool { return has(first, 2)() && has(second, 2)() })
			h.awaitApplied()
			held, release := second.hold()
			sendAll(3)
			receive(t, held, "the second to have a transaction open")
			second.link.freeze()
			removed, session, static := second.source.Member()
			if removed == "" || session != 45*time.Second || static {
				t.Fatalf("Member = %q, %v, %t", removed, session, static)
			}
			began := time.Now()
			for range 2 { // as each survivor does
				if err := first.source.Remove(t.Context(), removed, "no sign of life"); err != nil {
					t.Fatal(err)
				}
			}
			h.awaitApplied()
			t.Logf("all is applied %v after the removal", time.Since(began))
			release()
			stale := last[consumer.Stale](second, 0)
			if !owns(first, stale.Held) {
				t.Errorf("it was refused for %+v, want a claim of the first", stale.Held)
			}
			second.link.thaw()
			sendAll(3)
			h.await("it to have two partitions again", func() bool { return has(first, 2)() && has(second, 2)() })
			if id, _, _ := second.source.Member(); id == removed {
				t.Error("it is a member under its old id")
			}
			h.awaitApplied()
			first.stop()
			second.stop()
			h.wantExactlyOnce()
		})
	}
}

// READ on the group, without which nobody is a member, permits it.
func TestRealARemovalNeedsReadOnTheGroup(t *testing.T) {
	t.Parallel()
	b := kafkatest.Start(t, kafkatest.Config{Users: map[string]string{"alice": "right"}, ACLs: true})
	h := newRealHistory(t, b.Addr, 1)
	h.allow(kadm.NewACLs().Topics(h.topic).Operations(kmsg.ACLOperationRead, kmsg.ACLOperationDescribe))
	h.allow(kadm.NewACLs().Groups(h.group).Operations(kmsg.ACLOperationRead))
	h.send(0, 1)
	login := plain.Auth{User: "alice", Pass: "right"}.AsMechanism()
	w := h.startWith(kafkasource.Options{}, "a", kgo.SeedBrokers(b.SASLAddr), kgo.SASL(login))
	h.awaitApplied()
	if err := w.source.Remove(t.Context(), "gone", ""); err != nil {
		t.Errorf("with the permission: %v", err)
	}
	if _, err := h.admin.DeleteACLs(t.Context(), kadm.NewACLs().Allow("User:alice").AllowHosts().ResourcePatternType(kadm.ACLPatternLiteral).
		Groups(h.group).Operations(kmsg.ACLOperationRead)); err != nil {
		t.Fatal(err)
	}
	h.poll("the removal to be refused", func() bool {
		return errors.Is(w.source.Remove(t.Context(), "gone", ""), consumer.ErrMayNotRemove)
	})
}
