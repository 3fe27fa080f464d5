package kafkasource_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/internal/servers/kafkatest"
)

// Worker a is the static member "one" at number g, with a message applied in a
// transaction that it has not committed. Its network stands still. Worker b
// starts as "one" too, and the group gives it a's place without a rebalance: two
// owners, one number g. (Under KIP-848 the group waits until it is told that a
// will be back; then the partition leaves and returns at one member epoch.)
// Only the claim tells the two apart: b's epoch is the next one, a's commit is
// refused as stale. Once a hears of the group again it stays out; in the classic
// protocol its Run ends with the reason.
func TestRealStaticMemberSwapAtOneNumber(t *testing.T) {
	for name, opts := range map[string][]kgo.Opt{
		"classic": {kgo.SessionTimeout(30 * time.Second), kgo.HeartbeatInterval(time.Second)},
		"KIP-848": {kgo.ServerSideBalancer()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newRealHistory(t, kafkatest.Shared(t), 1)
			opts = append(opts, kgo.InstanceID("one"))
			h.send(0, 5)
			a := h.start("a", opts...)
			h.awaitApplied()
			held, release := a.hold()
			h.send(0, 3)
			receive(t, held, "a to have a transaction open")
			a.link.freeze()
			if name == "KIP-848" {
				h.leaveFor(h.fence(0).Owner)
			}

			b := h.start("b", opts...)
			h.awaitApplied()
			release()
			stale := last[consumer.Stale](a, 0)
			if stale.Held.Generation != stale.Ours.Generation || stale.Held.Epoch != stale.Ours.Epoch+1 || !owns(b, stale.Held) {
				t.Errorf("a held number %d under epoch %d, and b holds %d under %d; want one number and the next epoch",
					stale.Ours.Generation, stale.Ours.Epoch, stale.Held.Generation, stale.Held.Epoch)
			}
			a.link.thaw()
			if name == "classic" {
				if err := a.ended(); !errors.Is(err, kerr.FencedInstanceID) {
					t.Errorf("a's Run returned %v, want %v", err, kerr.FencedInstanceID)
				}
			}
			h.send(0, 3)
			h.awaitApplied()
			if claims := all[consumer.Claimed](a); len(claims) != 1 {
				t.Errorf("a made %d claims, want the 1 from before b came", len(claims))
			}
			b.stop()
			h.wantExactlyOnce()
		})
	}
}

// leaveFor tells the group that a static member will be back: epoch -2 (KIP-848).
func (h *realHistory) leaveFor(owner string) {
	h.Helper()
	parts := strings.Split(owner, "/") // client id, member id, instance id
	req := kmsg.NewPtrConsumerGroupHeartbeatRequest()
	req.Group, req.MemberID, req.InstanceID, req.MemberEpoch = h.group, parts[1], &parts[2], -2
	resp, err := req.RequestWith(h.Context(), h.client)
	if err == nil {
		err = kerr.ErrorForCode(resp.ErrorCode)
	}
	if err != nil {
		h.Fatalf("leave for %s: %v", owner, err)
	}
}

// A static member is stopped and started again within its session, and the
// group gives it the same generation again. Its claim counts on.
func TestRealStaticMemberRestartsAtTheSameNumber(t *testing.T) {
	t.Parallel()
	h := newRealHistory(t, kafkatest.Shared(t), 1)
	static := []kgo.Opt{kgo.InstanceID("one"), kgo.SessionTimeout(30 * time.Second), kgo.HeartbeatInterval(time.Second)}
	h.send(0, 5)
	a := h.start("a", static...)
	h.awaitApplied()
	first := h.fence(0)
	a.stop()
	h.send(0, 5)
	b := h.start("b", static...)
	h.awaitApplied()
	b.stop()
	second := all[consumer.Claimed](b)[0].Fence
	if second.Generation != first.Generation || second.Epoch != first.Epoch+1 {
		t.Errorf("generation %d under epoch %d, then generation %d under epoch %d; want the same generation and the next epoch",
			first.Generation, first.Epoch, second.Generation, second.Epoch)
	}
	h.wantExactlyOnce()
}

func receive(t *testing.T, c <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(patience):
		t.Fatalf("waited %v in vain for %s", patience, what)
	}
}
