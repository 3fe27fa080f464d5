package kafkasource

import (
	"errors"
	"testing"
	"testing/synctest"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/epochfence/epochfence/consumer"
)

// R7: the coordinator would take the commit of the new member, and the tenure may
// not have been told of its end yet.
func TestR7ANewMemberDoesNotConfirmWhatTheOldOneWasGranted(t *testing.T) {
	virtually(t, 1, func(r *rig) {
		_, one, _ := r.hold(short(protocols[0]))
		held := one.Tenure.(*tenure)
		if err := mayCommit(&commit{t: held}, held.member, 1); err != nil {
			t.Errorf("under its own membership: %v", err)
		}
		if err := mayCommit(&commit{t: held}, "another", 1); !errors.Is(err, consumer.ErrLost) || !errors.Is(held.err(), consumer.ErrLost) {
			t.Errorf("under another membership: %v, and the tenure: %v", err, held.err())
		}
	})
}

// R7: the tenure ends when the request has reached the coordinator, which takes
// the commit.
func TestR7AYesToATenureThatEndedMeanwhileIsANo(t *testing.T) {
	virtually(t, 1, func(r *rig) {
		_, one, _ := r.hold(short(protocols[0]))
		asked := false
		r.cluster.ControlKey(int16(kmsg.OffsetCommit), func(kmsg.Request) (kmsg.Response, error, bool) {
			asked = true
			one.Tenure.(*tenure).Lose(errRevoked)
			return nil, nil, false
		})
		if _, err := one.Confirm(r.Context(), r.fence(one, 0)); !errors.Is(err, consumer.ErrLost) || !asked {
			t.Errorf("Confirm = %v, want ErrLost; the coordinator was asked: %v", err, asked)
		}
	})
}

// R7: the second tenure is lost while it still waits for the first. The third is
// not to take the second's end for the first's.
func TestR7OwnIsNotCalledBesideThatOfTheTenureBeforeTheLast(t *testing.T) {
	virtually(t, 1, func(r *rig) {
		h, one, run := r.hold(short(protocols[0]))
		source := one.Tenure.(*tenure).s
		for range 2 {
			for _, held := range source.held() {
				held.Lose(errRevoked)
			}
			source.mu.Lock()
			source.grantHeld(source.joined.member)
			source.mu.Unlock()
			synctest.Wait()
		}
		if n := h.count(); n != 1 {
			r.Errorf("own was called %d times before the first returned", n)
		}
		close(one.release)
		r.until("granted again", func() bool { return len(h.granted) == 2 })
		close(h.nth(1).release)
		if err := run.stop(); err != nil {
			r.Error(err)
		}
	})
}
