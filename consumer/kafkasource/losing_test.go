package kafkasource

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/epochfence/epochfence/consumer"
)

func TestATenureIsLostBeforeTheSessionOfASilentMemberExpires(t *testing.T) {
	for _, p := range protocols {
		t.Run(p.name, func(t *testing.T) {
			virtually(t, 1, func(r *rig) {
				l := r.link()
				_, one, _ := r.hold(short(p), with(kgo.Dialer(l.dial)))
				l.freeze()
				if took := r.lostWithin(one, 6*time.Second); took < 3*time.Second {
					r.Errorf("lost after %v already", took)
				}
				if _, err := one.Confirm(r.Context(), r.fence(one, 0)); !errors.Is(err, consumer.ErrLost) {
					r.Errorf("Confirm = %v, want ErrLost", err)
				}
			}, shortNextGen)
		})
	}
}

func TestAMemberThatWasSilentForAMomentKeepsItsTenure(t *testing.T) {
	for _, p := range protocols {
		t.Run(p.name, func(t *testing.T) {
			virtually(t, 1, func(r *rig) {
				l := r.link()
				_, one, _ := r.hold(short(p), with(kgo.Dialer(l.dial)))
				for range 5 {
					l.freeze()
					<-time.After(3 * time.Second)
					l.thaw()
					<-time.After(3 * time.Second)
				}
				if err := context.Cause(one.ctx); err != nil {
					r.Errorf("lost: %v", err)
				}
				if _, err := one.Confirm(r.Context(), r.fence(one, 0)); err != nil {
					r.Errorf("Confirm: %v", err)
				}
			}, shortNextGen)
		})
	}
}

func TestATenureOutlivesManySessionsOfAQuietTopic(t *testing.T) {
	for _, p := range protocols {
		t.Run(p.name, func(t *testing.T) {
			virtually(t, 1, func(r *rig) {
				_, one, _ := r.hold(short(p))
				<-time.After(10 * time.Minute)
				if err := context.Cause(one.ctx); err != nil {
					r.Errorf("lost: %v", err)
				}
			}, shortNextGen)
		})
	}
}

func TestAfterContactIsBackAndTheGroupHasNotMovedThePartitionANewTenureBegins(t *testing.T) {
	for _, p := range protocols {
		t.Run(p.name, func(t *testing.T) {
			virtually(t, 1, func(r *rig) {
				l := r.link()
				h, one, _ := r.hold(short(p), with(kgo.Dialer(l.dial)))
				l.freeze()
				r.lostWithin(one, time.Minute)
				l.thaw() // before the session expires at the broker
				close(one.release)
				r.until("granted again", func() bool { return len(h.granted) == 2 })
				if _, err := h.nth(1).Confirm(r.Context(), r.fence(one, 0)); err != nil {
					r.Errorf("Confirm: %v", err)
				}
			}, shortNextGen)
		})
	}
}

// An answer that says "not I, ask another" is not a sign of life from the
// coordinator, however often it comes.
func TestAnswersFromABrokerThatIsNotTheCoordinatorDoNotKeepTheTenure(t *testing.T) {
	for _, p := range protocols {
		t.Run(p.name, func(t *testing.T) {
			virtually(t, 1, func(r *rig) {
				_, one, _ := r.hold(short(p))
				r.cluster.Fault(kfake.Fault{
					Keys: []kmsg.Key{kmsg.Heartbeat, kmsg.ConsumerGroupHeartbeat}, TopLevel: true,
					Err: kerr.NotCoordinator, Count: -1,
				})
				r.lostWithin(one, 6*time.Second)
			}, shortNextGen)
		})
	}
}

// A member is cut off before it hears what it was given. Once it does, the group
// has given that to another.
func TestAnAssignmentThatComesAfterTheSessionHasEndedBeginsNoTenure(t *testing.T) {
	for p, key := range map[int]kmsg.Key{0: kmsg.SyncGroup, 1: kmsg.SyncGroup, 2: kmsg.ConsumerGroupHeartbeat} {
		t.Run(protocols[p].name, func(t *testing.T) {
			virtually(t, 1, func(r *rig) {
				l := r.link()
				var once sync.Once // kfake keeps what does not answer, and everybody sends these
				r.cluster.ControlKey(int16(key), func(kmsg.Request) (kmsg.Response, error, bool) {
					once.Do(l.freeze)
					return nil, nil, false
				})
				joined := make(chan *held, 1)
				r.run(r.source(short(protocols[p]), with(kgo.Dialer(l.dial))), func(ctx context.Context, _ consumer.Tenure) {
					other := <-joined
					defer func() { joined <- other }()
					select {
					case <-other.Draining():
					default:
						r.Error("own was called beside the other's")
					}
				})
				<-time.After(7 * time.Second) // by when kgo still waits for the answer
				_, other, _ := r.hold(short(protocols[p]))
				joined <- other
				l.thaw()
				<-time.After(20 * time.Second)
			}, shortNextGen)
		})
	}
}

func TestAMemberThatTheGroupHasLetGoLosesItsTenuresAtOnce(t *testing.T) {
	for _, p := range protocols {
		t.Run(p.name, func(t *testing.T) {
			virtually(t, 1, func(r *rig) {
				_, one, _ := r.hold(short(p))
				r.cluster.Fault(kfake.Fault{
					Keys: []kmsg.Key{kmsg.Heartbeat, kmsg.ConsumerGroupHeartbeat}, TopLevel: true,
					Err: kerr.UnknownMemberID,
				})
				r.lostWithin(one, 1100*time.Millisecond) // one heartbeat
			}, shortNextGen)
		})
	}
}

func TestADrainThatOverrunsIsCancelledAndTheGroupGoesOn(t *testing.T) {
	for _, p := range protocols {
		t.Run(p.name, func(t *testing.T) {
			virtually(t, 1, func(r *rig) {
				o := func(o *Options) { o.DrainTimeout = 4 * time.Second }
				_, one, _ := r.hold(short(p), o)
				if one.Term() != 4*time.Second {
					r.Errorf("the term is %v, want the drain's 4s", one.Term())
				}
				r.run(r.source(short(p), o), (&worker{sink: r.sink}).own)
				if p.retains { // nobody takes the partition from a member that has it
					r.groupHas(2)
					return
				}
				select {
				case <-one.Draining():
				case <-time.After(patience):
					r.Fatal("not drained")
				}
				if took := r.lostWithin(one, time.Minute); took != 4*time.Second {
					r.Errorf("cancelled after %v, want 4s", took)
				}
				if err := context.Cause(one.ctx); !errors.Is(err, consumer.ErrDrainOverrun) {
					r.Errorf("cause: %v", err)
				}
			}, shortNextGen)
		})
	}
}

func TestShutdownIsBoundedThoughAHandlerDoesNotHeedAnything(t *testing.T) {
	for _, p := range protocols {
		t.Run(p.name, func(t *testing.T) {
			virtually(t, 1, func(r *rig) {
				_, one, run := r.hold(short(p))
				began := time.Now()
				if err := run.stop(); err != nil {
					r.Error(err)
				}
				// The drain, the wait for what was cancelled.
				lease := 8 * time.Second
				if took, most := time.Since(began), lease+closeTimeout; took > most {
					r.Errorf("Run took %v to end, want up to %v", took, most)
				}
				r.lostWithin(one, 0+time.Second)
			}, shortNextGen)
		})
	}
}

func TestShutdownIsBoundedThoughAnotherMemberHoldsUpTheRebalance(t *testing.T) {
	virtually(t, 1, func(r *rig) {
		stuck, assigned := make(chan struct{}), make(chan struct{}, 10)
		r.client(kgo.ConsumerGroup(testGroup), kgo.ConsumeTopics(testTopic), kgo.Balancers(kgo.RangeBalancer()),
			kgo.RebalanceTimeout(10*time.Minute), kgo.SessionTimeout(5*time.Minute),
			kgo.OnPartitionsAssigned(func(context.Context, *kgo.Client, map[string][]int32) { assigned <- struct{}{} }),
			kgo.OnPartitionsRevoked(func(context.Context, *kgo.Client, map[string][]int32) { <-stuck }))
		<-assigned
		run := r.run(r.source(with(kgo.Balancers(kgo.RangeBalancer()))), (&worker{sink: r.sink}).own)
		if _, err := r.cluster.WaitGroupInfo(r.Context(), testGroup, func(g *kfake.GroupInfo) bool { return len(g.Members) == 2 }); err != nil {
			r.Fatal(err)
		}
		began := time.Now()
		if err := run.stop(); err != nil {
			r.Error(err)
		}
		if took := time.Since(began); took > 2*closeTimeout {
			r.Errorf("Run took %v to end, want up to %v", took, 2*closeTimeout)
		}
		close(stuck)
	})
}

func TestShutdownIsBoundedThoughTheClusterIsGone(t *testing.T) {
	for _, p := range protocols {
		t.Run(p.name, func(t *testing.T) {
			virtually(t, 1, func(r *rig) {
				l := r.link()
				_, one, run := r.hold(short(p), with(kgo.Dialer(l.dial)))
				l.freeze()
				close(one.release)
				began := time.Now()
				if err := run.stop(); err != nil {
					r.Error(err)
				}
				if took := time.Since(began); took > 25*time.Second {
					r.Errorf("Run took %v to end", took)
				}
			}, shortNextGen)
		})
	}
}

func TestAStaticMemberThatWasReplacedEndsRunWithAClearErrorAndItsTenureIsLost(t *testing.T) {
	virtually(t, 1, func(r *rig) {
		opts := func(p membership) func(*Options) { return short(p) }
		static := with(kgo.InstanceID("one"))
		_, one, run := r.hold(opts(protocols[1]), static)
		before, err := one.Confirm(r.Context(), r.fence(one, 0))
		if err != nil {
			r.Fatal(err)
		}
		second := r.run(r.source(opts(protocols[1]), static), (&worker{sink: r.sink}).own)
		r.until("the second has claimed", func() bool { return len(r.sink.claims) == 1 })
		if now := r.sink.fence(part(0)).Generation; now != before.Generation {
			r.Errorf("the generation went from %d to %d", before.Generation, now)
		}
		r.lostWithin(one, 2*time.Second)
		close(one.release)
		err = run.wait()
		if !errors.Is(err, kerr.FencedInstanceID) || !strings.Contains(err.Error(), `instance "one"`) {
			r.Errorf("Run = %v", err)
		}
		if err := second.stop(); err != nil {
			r.Error(err)
		}
	})
}

func TestAMemberThatComesBackUnderAnotherIDBeginsAnew(t *testing.T) {
	virtually(t, 1, func(r *rig) {
		h, one, _ := r.hold(short(protocols[1]))
		// In a cooperative group kgo joins again without having given its
		// partitions up. The answer to the join lets it go.
		r.cluster.Fault(
			kfake.Fault{Keys: []kmsg.Key{kmsg.JoinGroup}, TopLevel: true, Err: kerr.UnknownMemberID},
			kfake.Fault{Keys: []kmsg.Key{kmsg.Heartbeat}, TopLevel: true, Err: kerr.RebalanceInProgress},
		)
		r.lostWithin(one, time.Minute)
		if err := context.Cause(one.ctx); !errors.Is(err, errNewMember) {
			r.Errorf("cause: %v", err)
		}
		close(one.release)
		r.until("granted anew", func() bool { return len(h.granted) == 2 })
		if _, err := h.nth(1).Confirm(r.Context(), r.fence(one, 0)); err != nil {
			r.Errorf("Confirm: %v", err)
		}
	})
}

func TestAPartitionThatOwnGaveUpIsLeftAlone(t *testing.T) {
	virtually(t, 1, func(r *rig) {
		var fetched atomic.Int32
		h, one, run := r.hold(short(protocols[1]))
		close(one.release)
		r.until("ended", func() bool { return r.sink.ended[part(0)] == 1 })
		r.cluster.ControlKey(int16(kmsg.Fetch), func(req kmsg.Request) (kmsg.Response, error, bool) {
			r.cluster.KeepControl()
			for _, t := range req.(*kmsg.FetchRequest).Topics {
				fetched.Add(int32(len(t.Partitions)))
			}
			return nil, nil, false
		})
		<-time.After(time.Minute)
		if n := h.count(); n != 1 || fetched.Load() != 0 {
			r.Errorf("granted %d times, fetched %d times", n, fetched.Load())
		}
		if _, err := one.Confirm(r.Context(), r.fence(one, 0)); !errors.Is(err, consumer.ErrLost) {
			r.Errorf("Confirm after own has returned = %v, want ErrLost", err)
		}
		if err := run.stop(); err != nil {
			r.Error(err)
		}
	})
}

// kgo starts its KIP-848 session anew after so many heartbeats without an
// answer, and calls that an assignment.
func TestASessionThatKgoStartsAnewByItselfIsNoSignOfLife(t *testing.T) {
	virtually(t, 1, func(r *rig) {
		h, one, _ := r.hold(short(protocols[2]), with(kgo.RequestRetries(1)))
		f := r.cluster.Fault(
			kfake.Fault{Keys: []kmsg.Key{kmsg.ConsumerGroupHeartbeat}, TopLevel: true, Err: kerr.NotCoordinator, Count: -1},
			kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetFetch}, Err: kerr.NotCoordinator, Count: -1},
		)
		r.lostWithin(one, 6*time.Second)
		close(one.release)
		<-time.After(20 * time.Second)
		if n := h.count(); n != 1 {
			r.Errorf("%d tenures", n)
		}
		f.Remove()
		r.until("granted again", func() bool { return len(h.granted) > 1 })
		if _, err := h.nth(h.count()-1).Confirm(r.Context(), r.fence(one, 0)); err != nil {
			r.Errorf("Confirm: %v", err)
		}
	}, shortNextGen)
}

// A process that was frozen may ask before its timers do.
func TestATenureFoundOverdueBeforeTheTimerIsLostAndComesBack(t *testing.T) {
	virtually(t, 1, func(r *rig) {
		h, one, _ := r.hold(short(protocols[1]))
		s := one.Tenure.(*tenure).s
		s.contact.mu.Lock()
		s.contact.last = s.contact.last.Add(-time.Minute)
		s.contact.mu.Unlock()
		if _, err := one.Confirm(r.Context(), r.fence(one, 0)); !errors.Is(err, consumer.ErrLost) {
			r.Errorf("Confirm = %v, want ErrLost", err)
		}
		close(one.release)
		r.until("granted again", func() bool { return len(h.granted) == 2 })
	})
}

func TestAnAssignmentThatFindsContactOverdueBeforeTheTimerBeginsNoTenure(t *testing.T) {
	virtually(t, 1, func(r *rig) {
		l := r.link()
		h, one, _ := r.hold(short(protocols[1]), with(kgo.Dialer(l.dial)))
		s := one.Tenure.(*tenure).s
		l.freeze() // so that nobody can be asked
		one.Tenure.(*tenure).Lose(errSilence)
		close(one.release)
		s.contact.mu.Lock()
		s.contact.last = s.contact.last.Add(-time.Minute)
		s.contact.mu.Unlock()
		s.assigned(r.Context(), s.memberClient(), nil)
		<-time.After(time.Second)
		if n := h.count(); n != 1 {
			r.Errorf("%d tenures", n)
		}
		l.thaw()
		r.until("granted again", func() bool { return len(h.granted) == 2 })
	})
}

// A process that wakes up with many partitions may be in contact again before it has
// given up the last of them.
func TestATenureThatIsGivenUpWhenContactIsBackAlreadyComesBack(t *testing.T) {
	for _, p := range protocols {
		t.Run(p.name, func(t *testing.T) {
			virtually(t, 1, func(r *rig) {
				h, one, _ := r.hold(short(p))
				one.Tenure.(*tenure).s.contactLost(time.Minute)
				close(one.release)
				r.until("granted again", func() bool { return len(h.granted) == 2 })
				if _, err := h.nth(1).Confirm(r.Context(), r.fence(one, 0)); err != nil {
					r.Errorf("Confirm: %v", err)
				}
			}, shortNextGen)
		})
	}
}

func TestContactIsLostUntilWhatIsHeldIsGrantedAnew(t *testing.T) {
	virtually(t, 1, func(r *rig) {
		h, one, _ := r.hold(short(protocols[1]))
		s := one.Tenure.(*tenure).s
		s.contact.mu.Lock()
		s.contact.lost = true
		s.contact.mu.Unlock()
		one.Tenure.(*tenure).Lose(errSilence)
		close(one.release)
		s.contact.checkBegins() // so that no other answer has contact looked for
		s.heartbeat()           // whose yes alone grants nothing
		if n := h.count(); n != 1 || !s.contact.isLost() {
			r.Errorf("after %d grants contact is said to be back", n)
		}
		s.contact.checkEnds()
		r.until("granted again", func() bool { return len(h.granted) == 2 })
	})
}

// A rebalance continues without a member that has not joined again in time, however long its
// session is.
func TestATenureIsLostBeforeARebalanceGoesOnWithoutASilentMember(t *testing.T) {
	for _, p := range protocols[:2] {
		t.Run(p.name, func(t *testing.T) {
			virtually(t, 1, func(r *rig) {
				patient := with(append(p.opts, kgo.SessionTimeout(time.Minute), kgo.HeartbeatInterval(time.Second), kgo.RebalanceTimeout(10*time.Second))...)
				l := r.link()
				_, one, _ := r.hold(patient, with(kgo.Dialer(l.dial)))
				l.freeze()
				_, other, _ := r.hold(patient) // once the rebalance has gone on
				select {
				case <-one.ctx.Done():
				default:
					r.Error("own was called beside the other's")
				}
				close(one.release)
				close(other.release)
			}, shortNextGen)
		})
	}
}

// The session continues to expire while a partition is being given back.
func TestATenureThatIsBeingDrainedIsLostWithContact(t *testing.T) {
	virtually(t, 1, func(r *rig) {
		l := r.link()
		o := short(protocols[0])
		_, one, _ := r.hold(o, with(kgo.Dialer(l.dial)))
		r.run(r.source(o), (&worker{sink: r.sink}).own)
		select {
		case <-one.Draining():
		case <-time.After(patience):
			r.Fatal("not drained")
		}
		l.freeze()
		if took := r.lostWithin(one, time.Minute); took > 6*time.Second {
			r.Errorf("lost after %v, when the session had expired", took)
		}
		if err := context.Cause(one.ctx); !errors.Is(err, consumer.ErrLeaseExpired) {
			r.Errorf("cause: %v", err)
		}
	})
}

// Under KIP-848 the coordinator counts the session from heartbeats alone.
func TestAYesToAnotherRequestThanAHeartbeatDoesNotProlongTheSession(t *testing.T) {
	virtually(t, 1, func(r *rig) {
		l := r.link()
		h, one, _ := r.hold(short(protocols[2]), with(kgo.Dialer(l.dial)))
		<-time.After(11 * time.Second) // a new member's heartbeats are close together
		frozen := make(chan time.Time, 1)
		var once sync.Once
		r.cluster.ControlKey(int16(kmsg.ConsumerGroupHeartbeat), func(kmsg.Request) (kmsg.Response, error, bool) {
			once.Do(func() { // it is taken for a sign of life, and its answer is late
				l.freeze()
				frozen <- time.Now()
			})
			return nil, nil, false
		})
		expires := (<-frozen).Add(6 * time.Second)
		r.lostWithin(one, 6*time.Second)
		close(one.release)
		<-time.After(time.Until(expires.Add(-300 * time.Millisecond)))
		l.thaw()
		<-time.After(250 * time.Millisecond)
		if n := h.count(); n != 1 {
			r.Errorf("%d tenures, before a heartbeat was answered", n)
		}
		r.until("granted again", func() bool { return len(h.granted) == 2 })
	}, shortNextGen)
}
