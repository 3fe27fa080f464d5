package kafkasource

import (
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/internal/suites/bubble"
)

// contactRig is contact under KIP-848 with a session of 10 s.
type contactRig struct {
	contact
	asked int // how often it was asked whether there is contact
}

func newContactRig() *contactRig {
	r := &contactRig{}
	r.nextGen = lease{session: 10 * time.Second, rebalance: time.Minute}
	r.lose, r.regained = func(time.Duration) {}, func() { r.asked++ }
	return r
}

// answer is that to a heartbeat, which was sent so long ago.
func (r *contactRig) answer(took time.Duration) {
	r.OnBrokerE2E(kgo.BrokerMetadata{}, keyNextGenHeartbeat, kgo.BrokerE2E{TimeToRead: took})
}

// Heartbeats continue while word of an assignment is under way. What one was answered is not seen.
func TestAnAnswerThatMayHaveBeenANoDoesNotBringContactBack(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newContactRig()
		defer c.stop()
		<-time.After(10 * time.Second)
		c.answer(10 * time.Second) // with the assignment
		c.answer(0)
		c.joined()
		if !c.overdue() {
			t.Error("the answer to a heartbeat that was sent since was taken for a yes")
		}
		c.answer(0) // which kgo sends only if the one before was answered with a yes
		if c.joined(); c.overdue() {
			t.Error("contact is not back")
		}
	})
}

func TestWhetherThereIsContactIsAskedUntilItIsKnownAndOnceAtATime(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newContactRig()
		defer c.stop()
		asks := func(want int, what string) {
			t.Helper()
			c.asked = 0
			c.answer(0)
			if c.asked != want {
				t.Errorf("%s an answer asks %d times, want %d", what, c.asked, want)
			}
		}
		asks(0, "in contact")
		<-time.After(10 * time.Second)
		asks(1, "after contact was lost")
		c.checkBegins()
		c.checkBegins()
		asks(0, "beside two checks")
		c.checkEnds()
		asks(0, "beside one")
		c.checkEnds()
		asks(1, "after checks that have found no contact")
		c.confirmAlive(time.Now())
		c.regain()
		asks(0, "after one that has found it")
		if !c.claimRegain() {
			t.Error("nobody asks for what was lost after contact was back")
		}
		asks(1, "while something is to be granted anew")
		c.regain()
		asks(0, "after it was")
	})
}
