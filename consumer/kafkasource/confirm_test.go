package kafkasource

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/epochfence/epochfence/consumer"
)

func TestAConfirmOfAReplacedStaticMemberIsErrLostAndEndsRun(t *testing.T) {
	virtually(t, 1, func(r *rig) {
		_, one, run := r.hold(short(protocols[1]), with(kgo.InstanceID("one")))
		r.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Err: kerr.FencedInstanceID})
		_, err := one.Confirm(r.Context(), r.fence(one, 0))
		if !errors.Is(err, consumer.ErrLost) || !errors.Is(err, kerr.FencedInstanceID) {
			r.Errorf("Confirm = %v", err)
		}
		close(one.release)
		if err := run.wait(); !errors.Is(err, kerr.FencedInstanceID) {
			r.Errorf("Run = %v", err)
		}
	})
}

// A process that lost a partition but is still a member, and reads its
// generation only when it commits, borrows the new one: the coordinator takes
// the commit. The tenure says no.
func TestAZombieThatIsStillAMemberIsNotConfirmedThoughTheCoordinatorAccepts(t *testing.T) {
	virtually(t, 2, func(r *rig) {
		o := func(o *Options) { o.DrainTimeout = 2 * time.Second }
		h, _, _ := r.hold(short(protocols[0]), o)
		r.until("both partitions are granted", func() bool { return len(h.granted) == 2 })
		r.run(r.source(short(protocols[0]), o), (&worker{sink: r.sink}).own)
		var accepted atomic.Int32
		r.cluster.ControlKey(int16(kmsg.OffsetCommit), func(kmsg.Request) (kmsg.Response, error, bool) {
			r.cluster.KeepControl()
			accepted.Add(1)
			return nil, nil, false
		})
		for n := range 2 {
			r.lostWithin(h.nth(n), time.Minute)
		}
		r.until("the other has claimed one", func() bool { return len(r.sink.claims) == 1 })
		for n := range 2 {
			zombie := h.nth(n)
			if _, err := zombie.Confirm(r.Context(), r.fence(zombie, 0)); !errors.Is(err, consumer.ErrLost) {
				r.Errorf("Confirm = %v, want ErrLost", err)
			}
		}
	})
}

func TestConfirmSaysAskAgainWhileTheGroupRebalances(t *testing.T) {
	for _, code := range []*kerr.Error{
		kerr.RebalanceInProgress, kerr.IllegalGeneration, kerr.UnknownMemberID, kerr.StaleMemberEpoch,
		kerr.CoordinatorLoadInProgress, kerr.TopicAuthorizationFailed, kerr.GroupAuthorizationFailed,
	} {
		t.Run(code.Message, func(t *testing.T) {
			virtually(t, 1, func(r *rig) {
				_, one, _ := r.hold(short(protocols[1]))
				f := r.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Err: code, Count: -1})
				ctx, cancel := context.WithTimeout(r.Context(), 2*time.Second)
				defer cancel()
				_, err := one.Confirm(ctx, r.fence(one, 0))
				if err == nil || errors.Is(err, consumer.ErrLost) {
					r.Errorf("Confirm = %v, want an error that is not ErrLost", err)
				}
				r.Log(err)
				f.Remove()
				if _, err := one.Confirm(r.Context(), r.fence(one, 0)); err != nil {
					r.Errorf("asked again: %v", err)
				}
			})
		})
	}
}

func TestConfirmNamesTheBrokersLimitOfMetadataAndNeedsAnOperator(t *testing.T) {
	virtually(t, 1, func(r *rig) {
		_, one, _ := r.hold(short(protocols[1]))
		r.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Err: kerr.OffsetMetadataTooLarge, Count: -1})
		_, err := one.Confirm(r.Context(), r.fence(one, 0))
		if !errors.Is(err, consumer.ErrBlocked) || !errors.Is(err, kerr.OffsetMetadataTooLarge) || !strings.Contains(err.Error(), "offset.metadata.max.bytes") {
			r.Errorf("Confirm = %v", err)
		}
	})
}

// The process was frozen while the answer was under way: the coordinator said
// yes, and has let us go since.
func TestAConfirmThatWasAnsweredTooLongAgoIsErrLost(t *testing.T) {
	virtually(t, 1, func(r *rig) {
		_, one, _ := r.hold(short(protocols[1]))
		contact := one.Tenure.(*tenure).s.contact
		r.cluster.ControlKey(int16(kmsg.OffsetCommit), func(kmsg.Request) (kmsg.Response, error, bool) {
			contact.mu.Lock()
			contact.last = contact.last.Add(-time.Minute) // the timer has not had its turn
			contact.mu.Unlock()
			return nil, nil, false
		})
		if _, err := one.Confirm(r.Context(), r.fence(one, 0)); !errors.Is(err, consumer.ErrLost) {
			r.Errorf("Confirm = %v, want ErrLost", err)
		}
	})
}

// Between the join that gave us another member id and the end of the rebalance,
// the coordinator would take a commit from the new member.
func TestAConfirmUnderANewMemberIDIsErrLostBeforeTheRebalanceEnds(t *testing.T) {
	virtually(t, 1, func(r *rig) {
		_, one, _ := r.hold(short(protocols[1]))
		s := one.Tenure.(*tenure).s
		let, syncing := make(chan struct{}), make(chan struct{})
		r.cluster.ControlKey(int16(kmsg.SyncGroup), func(kmsg.Request) (kmsg.Response, error, bool) {
			r.cluster.SleepControl(func() {
				close(syncing)
				<-let
			})
			return nil, nil, false
		})
		r.cluster.Fault(
			kfake.Fault{Keys: []kmsg.Key{kmsg.JoinGroup}, TopLevel: true, Err: kerr.UnknownMemberID},
			kfake.Fault{Keys: []kmsg.Key{kmsg.Heartbeat}, TopLevel: true, Err: kerr.RebalanceInProgress},
		)
		<-syncing
		if now, _ := s.memberClient().GroupMetadata(); now == one.Tenure.(*tenure).member {
			r.Fatal("the member id is the old one")
		}
		if _, err := one.Confirm(r.Context(), r.fence(one, 0)); !errors.Is(err, consumer.ErrLost) {
			r.Errorf("Confirm = %v, want ErrLost", err)
		}
		close(let)
	})
}
