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

// member is a process of a group with the broker's and the client's default timeouts.
type member struct {
	*rig
	*Source
	run *running
}

func (r *rig) joins(mod ...func(*Options)) *member {
	r.Helper()
	s := r.source(mod...)
	return &member{r, s, r.run(s, (&worker{sink: r.sink}).own)}
}

func (m *member) id() string {
	id, _, _ := m.Member()
	return id
}

// owns counts the partitions that a member has claimed last. The sink is locked.
func (r *rig) owns(id string) (n int) {
	for _, f := range r.sink.fences {
		if id != "" && strings.Contains(f.Owner, "/"+id) {
			n++
		}
	}
	return n
}

// share waits until each of the members has claimed so many partitions, and no one has more.
func (r *rig) share(each int, ms ...*member) {
	r.Helper()
	r.until("each has its share", func() bool {
		for _, m := range ms {
			if r.owns(m.id()) != each {
				return false
			}
		}
		return true
	})
}

var classics = protocols[:2]

func TestTheRemovedMembersPartitionsMoveWithoutAHeartbeatAndItJoinsAgain(t *testing.T) {
	for _, p := range classics {
		t.Run(p.name, func(t *testing.T) {
			virtually(t, 4, func(r *rig) {
				l := r.link()
				a, b := r.joins(with(p.opts...)), r.joins(with(append(p.opts, kgo.Dialer(l.dial))...))
				r.share(2, a, b)
				removed := b.id()
				l.freeze()
				began := time.Now()
				if err := a.Remove(r.Context(), removed, "no sign of life"); err != nil {
					r.Fatal(err)
				}
				r.share(4, a)
				if took := time.Since(began); took > 500*time.Millisecond {
					r.Errorf("its partitions moved after %v", took)
				}
				if err := a.Remove(r.Context(), removed, "no sign of life"); err != nil {
					r.Errorf("a second time: %v", err)
				}
				l.thaw()
				r.share(2, a, b)
				if b.id() == removed {
					r.Error("it is a member under its old id")
				}
			})
		})
	}
}

// Each member gives partitions up at a heartbeat of its own, of which there is one each 5 s.
func TestANewMemberOfAKIP848GroupHasWhatOthersGiveUpBeforeItsNextHeartbeat(t *testing.T) {
	virtually(t, 4, func(r *rig) {
		a := r.joins(with(protocols[2].opts...))
		r.share(4, a)
		<-time.After(time.Minute)
		var given time.Time // when a has said that it has given up its half
		r.cluster.ControlKey(int16(kmsg.ConsumerGroupHeartbeat), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
			r.cluster.KeepControl()
			req := kreq.(*kmsg.ConsumerGroupHeartbeatRequest)
			if given.IsZero() && req.MemberID == a.id() && len(req.Topics) == 1 && len(req.Topics[0].Partitions) == 2 {
				given = time.Now()
			}
			return nil, nil, false
		})
		b := r.joins(with(protocols[2].opts...))
		r.share(2, a, b)
		if took := time.Since(given); took > time.Second {
			r.Errorf("nobody had them for %v", took)
		}
	})
}

// Each of the survivors removes it, and has the group rebalance for it once.
func TestARemovalByEachSurvivorIsOneRebalance(t *testing.T) {
	virtually(t, 6, func(r *rig) {
		l := r.link()
		a, c := r.joins(with(protocols[0].opts...)), r.joins(with(protocols[0].opts...))
		b := r.joins(with(append(protocols[0].opts, kgo.Dialer(l.dial))...))
		r.share(2, a, b, c)
		removed := b.id()
		_, before := a.memberClient().GroupMetadata()
		l.freeze()
		for _, m := range []*member{a, c} {
			if err := m.Remove(r.Context(), removed, ""); err != nil {
				r.Fatal(err)
			}
		}
		r.share(3, a, c)
		for _, m := range []*member{a, c} { // of whom one is the leader, whose joining begins a rebalance
			if err := m.Remove(r.Context(), removed, ""); err != nil {
				r.Fatal(err)
			}
		}
		<-time.After(time.Minute / 2)
		if _, after := a.memberClient().GroupMetadata(); after != before+1 {
			r.Errorf("the generation was %d and is %d", before, after)
		}
	})
}

func TestARemovalNamesAMemberIdAndNoInstanceId(t *testing.T) {
	virtually(t, 1, func(r *rig) {
		a := r.joins(with(append(protocols[1].opts, kgo.InstanceID("one"))...))
		r.share(1, a)
		var leaves []kmsg.LeaveGroupRequest
		r.cluster.ControlKey(int16(kmsg.LeaveGroup), func(req kmsg.Request) (kmsg.Response, error, bool) {
			r.cluster.KeepControl()
			leaves = append(leaves, *req.(*kmsg.LeaveGroupRequest))
			return nil, nil, false
		})
		if err := a.Remove(r.Context(), "gone", "its connection has ended"); err != nil {
			r.Fatal(err)
		}
		if len(leaves) != 1 || len(leaves[0].Members) != 1 {
			r.Fatalf("%+v", leaves)
		}
		if m := leaves[0].Members[0]; m.MemberID != "gone" || m.InstanceID != nil || m.Reason == nil || *m.Reason != "its connection has ended" {
			r.Errorf("%+v", m)
		}
	})
}

func TestAMemberWithoutThePermissionIsTold(t *testing.T) {
	virtually(t, 1, func(r *rig) {
		a := r.joins(with(protocols[1].opts...))
		r.share(1, a)
		for _, refusal := range []*kerr.Error{kerr.GroupAuthorizationFailed, kerr.InvalidRequest} {
			r.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.LeaveGroup}, TopLevel: true, Err: refusal})
			err := a.Remove(r.Context(), "gone", "")
			if !errors.Is(err, refusal) || errors.Is(err, consumer.ErrMayNotRemove) != (refusal == kerr.GroupAuthorizationFailed) {
				r.Errorf("%s: %v", refusal.Message, err)
			}
		}
	})
}

func TestAProcessThatIsNotInTheGroupIsNoMember(t *testing.T) {
	virtually(t, 1, func(r *rig) {
		s := r.source(with(append(protocols[1].opts, kgo.InstanceID("one"), kgo.SessionTimeout(20*time.Second))...))
		if id, session, static := s.Member(); id != "" || session != 20*time.Second || !static {
			r.Errorf("before Run: %q, %v, %t", id, session, static)
		}
		if err := s.Remove(r.Context(), "gone", ""); err == nil {
			r.Error("it removes others before Run")
		}
		a := &member{r, s, r.run(s, (&worker{sink: r.sink}).own)}
		r.share(1, a)
		if err := a.run.stop(); err != nil {
			r.Error(err)
		}
		if id, _, _ := s.Member(); id != "" {
			r.Errorf("after Run: %q", id)
		}
	})
}

// It commits unless somebody has claimed the partition before, which the fence tells.
func TestARemovedMemberEndsItsTransactionBeforeItJoinsAgain(t *testing.T) {
	for _, p := range protocols {
		t.Run(p.name, func(t *testing.T) {
			virtually(t, 1, func(r *rig) {
				h, one, _ := r.hold(with(p.opts...))
				r.removes(nil, r.memberOf(one), p)
				select {
				case <-one.Draining():
				case <-time.After(patience):
					r.Fatal("it keeps the partition")
				}
				<-time.After(finishing / 2)
				if err := context.Cause(one.ctx); err != nil {
					r.Errorf("lost: %v", err)
				}
				if n := h.count(); n != 1 {
					r.Errorf("granted %d times, before the first has returned", n)
				}
				close(one.release)
				r.until("granted anew", func() bool { return len(h.granted) == 2 })
				if err := context.Cause(one.ctx); !errors.Is(err, consumer.ErrLost) {
					r.Errorf("it is over because of %v", err)
				}
				if _, err := h.nth(1).Confirm(r.Context(), r.fence(one, 0)); err != nil {
					r.Errorf("Confirm: %v", err)
				}
			})
		})
	}
}

func TestATransactionOfARemovedMemberIsCancelledAfterAMoment(t *testing.T) {
	for _, p := range protocols {
		t.Run(p.name, func(t *testing.T) {
			virtually(t, 1, func(r *rig) {
				_, one, _ := r.hold(with(p.opts...))
				r.removes(nil, r.memberOf(one), p)
				<-one.Draining()
				if took := r.lostWithin(one, time.Minute); took != finishing {
					r.Errorf("after %v, want %v", took, finishing)
				}
			})
		})
	}
}

func TestAMemberThatCannotFindOutWhetherItWasRemovedBeginsNothingAndLosesItsTenuresAfterAMoment(t *testing.T) {
	virtually(t, 1, func(r *rig) {
		p := protocols[2]
		_, one, _ := r.hold(with(p.opts...))
		removed := r.memberOf(one)
		r.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetFetch}, TopLevel: true, Err: kerr.NotCoordinator, Count: -1})
		r.ends(removed)
		select {
		case <-one.Draining():
		case <-one.ctx.Done():
			r.Fatal("lost without a moment for the transaction under way")
		}
		if took := r.lostWithin(one, time.Minute); took > finishing {
			r.Errorf("lost after %v", took)
		}
	})
}

// Under KIP-848 it hears of that by a heartbeat, of which brokers want one each 5 s.
func TestARemovedMemberThatIsToldJoinsAgainAtOnce(t *testing.T) {
	virtually(t, 4, func(r *rig) {
		a, b := r.joins(with(protocols[2].opts...)), r.joins(with(protocols[2].opts...))
		r.share(2, a, b)
		<-time.After(62 * time.Second) // neither has a heartbeat under way
		removed, began := b.id(), time.Now()
		r.ends(removed)
		b.Hasten()
		for b.id() == "" || b.id() == removed {
			if time.Since(began) > time.Second {
				r.Fatal("it is no member again after a second")
			}
			<-time.After(10 * time.Millisecond)
		}
	})
}

// memberOf returns the id of the member that has a partition.
func (r *rig) memberOf(t consumer.Tenure) string {
	r.Helper()
	lease, err := t.Confirm(r.Context(), r.fence(t, 0))
	if err != nil {
		r.Fatal(err)
	}
	return lease.Owner[strings.LastIndex(lease.Owner, "/")+1:]
}

// rejoins is a member that may join again only while ready is set.
func (r *rig) rejoins(ready *atomic.Bool, opts ...kgo.Opt) (m *member, asked *atomic.Int64) {
	r.Helper()
	s := r.source(with(opts...))
	asked = &atomic.Int64{}
	s.RejoinWhen(func(context.Context) error {
		if asked.Add(1); !ready.Load() {
			return errors.New("the database is out of reach")
		}
		return nil
	})
	return &member{r, s, r.run(s, (&worker{sink: r.sink}).own)}, asked
}

// removes has a remove a member, or the test itself.
func (r *rig) removes(a *member, id string, p membership) {
	r.Helper()
	switch {
	case p.nextGen:
		r.ends(id)
	case a == nil:
		req := kmsg.NewPtrLeaveGroupRequest()
		req.Group = testGroup
		m := kmsg.NewLeaveGroupRequestMember()
		m.MemberID = id
		req.Members = append(req.Members, m)
		if _, err := req.RequestWith(r.Context(), r.kafka); err != nil {
			r.Fatal(err)
		}
	default:
		if err := a.Remove(r.Context(), id, "no sign of life"); err != nil {
			r.Fatal(err)
		}
	}
}

// ends removes a member of a KIP-848 group, for which kfake does not know LeaveGroup.
func (r *rig) ends(id string) {
	r.Helper()
	req := kmsg.NewPtrConsumerGroupHeartbeatRequest()
	req.Group, req.MemberID, req.MemberEpoch = testGroup, id, -1
	resp, err := req.RequestWith(r.Context(), r.kafka)
	if err == nil {
		err = kerr.ErrorForCode(resp.ErrorCode)
	}
	if err != nil {
		r.Fatal(err)
	}
}

func TestARemovedMemberStaysOutOfTheGroupUntilItCanDoSomethingThere(t *testing.T) {
	for _, p := range protocols {
		t.Run(p.name, func(t *testing.T) {
			virtually(t, 4, func(r *rig) {
				var ready atomic.Bool
				a := r.joins(with(p.opts...))
				b, asked := r.rejoins(&ready, p.opts...)
				r.share(2, a, b)
				removed := b.id()
				r.removes(a, removed, p)
				r.share(4, a)
				generation := func() int32 { _, g := a.memberClient().GroupMetadata(); return g }
				for began, before := time.Now(), generation(); time.Since(began) < 5*time.Minute; <-time.After(time.Second) {
					if n := r.owns(a.id()); n != 4 || generation() != before {
						r.Fatalf("after %v the other member has %d of 4 partitions, and the group's generation is %d after %d", time.Since(began), n, generation(), before)
					}
				}
				if id := b.id(); id != "" { // or it would suspect others, and sign as one that has come back
					t.Errorf("the one that stays out says that it is member %q", id)
				}
				if n := asked.Load(); n < 250 || n > 500 {
					r.Errorf("it has asked %d times in 5 minutes", n)
				}
				ready.Store(true)
				began := time.Now()
				r.share(2, a, b)
				if took := time.Since(began); took > 12*time.Second { // two heartbeats of the other member
					r.Errorf("it has its share after %v", took)
				}
				if b.id() == removed {
					r.Error("it is a member under its old id")
				}
				<-time.After(time.Minute)
				if n := r.owns(b.id()); n != 2 {
					r.Errorf("it has kept %d partitions", n)
				}
			})
		})
	}
}

// kgo joins again at once then, and calls nobody.
func TestAMemberThatIsRemovedWhileItJoinsStaysOutToo(t *testing.T) {
	for _, p := range protocols[:2] {
		t.Run(p.name, func(t *testing.T) {
			virtually(t, 4, func(r *rig) {
				var ready atomic.Bool
				a := r.joins(with(p.opts...))
				b, _ := r.rejoins(&ready, p.opts...)
				r.share(2, a, b)
				removed, refused := b.id(), false
				r.cluster.ControlKey(int16(kmsg.JoinGroup), func(req kmsg.Request) (kmsg.Response, error, bool) {
					r.cluster.KeepControl()
					if req.(*kmsg.JoinGroupRequest).MemberID == removed && !refused {
						refused = true
						r.cluster.SleepControl(func() { r.removes(a, removed, p) })
					}
					return nil, nil, false
				})
				c := r.joins(with(p.opts...))
				<-time.After(30 * time.Second)
				r.share(2, a, c)
				for began := time.Now(); time.Since(began) < 5*time.Minute; <-time.After(time.Second) {
					if n := r.owns(a.id()) + r.owns(c.id()); n != 4 {
						r.Fatalf("after %v the others have %d of 4 partitions", time.Since(began), n)
					}
				}
				if !refused || b.id() != "" {
					r.Errorf("it was refused: %v, and is member %q", refused, b.id())
				}
				ready.Store(true)
				r.until("it has a share again", func() bool { return r.owns(b.id()) > 0 })
			})
		})
	}
}

func TestARemovedMemberThatStaysOutEndsAtOnce(t *testing.T) {
	for _, p := range protocols {
		t.Run(p.name, func(t *testing.T) {
			virtually(t, 4, func(r *rig) {
				a := r.joins(with(p.opts...))
				b, asked := r.rejoins(&atomic.Bool{}, p.opts...)
				r.share(2, a, b)
				r.removes(a, b.id(), p)
				<-time.After(time.Minute)
				if asked.Load() == 0 {
					r.Fatal("it has not asked whether to join again")
				}
				began := time.Now()
				if err := b.run.stop(); err != nil {
					r.Error(err)
				}
				if took := time.Since(began); took > time.Second {
					r.Errorf("it took %v", took)
				}
				r.share(4, a)
			})
		})
	}
}

// All may have lost the database and the broker together, and who joins an empty group waits for the others.
func TestAMemberThatTheGroupHasRemovedByItselfAsksNobodyWhetherToJoinAgain(t *testing.T) {
	for _, p := range protocols {
		t.Run(p.name, func(t *testing.T) {
			virtually(t, 4, func(r *rig) {
				l := r.link()
				a := r.joins(with(p.opts...))
				b, asked := r.rejoins(&atomic.Bool{}, append(p.opts, kgo.Dialer(l.dial))...)
				r.share(2, a, b)
				l.freeze()
				r.share(4, a)
				<-time.After(time.Minute)
				l.thaw()
				r.share(2, a, b)
				if n := asked.Load(); n != 0 {
					r.Errorf("it has asked %d times", n)
				}
			})
		})
	}
}
