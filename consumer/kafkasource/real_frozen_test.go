package kafkasource_test

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/internal/servers/kafkatest"
)

// Worker a freezes with a transaction open. The group misses it and gives its
// partition to b, which applies the same messages and more. Then a thaws: its
// commit reaches the sink, and is refused. It joins again and both continue.
func TestRealFrozenOwnerIsRefusedWhenItThaws(t *testing.T) {
	for name, opt := range map[string]kgo.Opt{
		"eager":       kgo.Balancers(kgo.RangeBalancer()),
		"cooperative": kgo.Balancers(kgo.CooperativeStickyBalancer()),
		"KIP-848":     kgo.ServerSideBalancer(),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newRealHistory(t, kafkatest.Shared(t), 1)
			h.send(0, 5)
			a := h.start("a", opt)
			h.awaitApplied()
			held, release := a.hold()
			h.send(0, 3)
			receive(t, held, "a to have a transaction open")
			a.link.freeze()

			b := h.start("b", opt)
			h.send(0, 2)
			h.awaitApplied()
			release()
			stale := last[consumer.Stale](a, 0)
			if stale.Held.Epoch <= stale.Ours.Epoch || !owns(b, stale.Held) {
				t.Errorf("a was refused for %+v, want a later claim of b's", stale.Held)
			}
			a.link.thaw()
			h.send(0, 5)
			h.awaitApplied()
			b.stop()
			h.send(0, 5)
			h.awaitApplied()
			a.stop()
			h.wantExactlyOnce()
		})
	}
}

// Two workers share four partitions while the broker is shut down and started
// again, and then killed and started again. Nothing is lost or doubled.
func TestRealBrokerRestartsInTheMiddleOfARun(t *testing.T) {
	t.Parallel()
	b := kafkatest.Start(t, kafkatest.Config{})
	h := newRealHistory(t, b.Addr, 4)
	workers := []*worker{
		h.start("a", kgo.Balancers(kgo.CooperativeStickyBalancer())),
		h.start("b", kgo.Balancers(kgo.CooperativeStickyBalancer())),
	}
	sendAll := func(n int) {
		for p := range int32(4) {
			h.send(p, n)
		}
	}
	sendAll(10)
	h.awaitApplied()
	sendAll(10)
	if err := b.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	sendAll(10)
	h.awaitApplied()
	b.Kill()
	if err := b.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	sendAll(10)
	h.awaitApplied()
	for _, w := range workers {
		w.stop()
	}
	h.wantExactlyOnce()
}
