package kafkasource

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
)

// readUntil reads from a fence until n messages are there or an error is.
func (r *rig) readUntil(t consumer.Tenure, from epoch.Fence, n int) (offsets []epoch.Offset, err error) {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	defer cancel()
	for b, err := range t.Read(ctx, from) {
		if err != nil {
			return offsets, err
		}
		for _, m := range b.Messages {
			offsets = append(offsets, m.Offset)
		}
		if len(offsets) >= n {
			return offsets, nil
		}
	}
	r.Fatalf("the read ended after %d messages of %d", len(offsets), n)
	return nil, nil
}

// fetches counts how often a partition is asked for.
func (r *rig) fetches(partition int32) *atomic.Int32 {
	var n atomic.Int32
	// With fetch sessions a request lists only what has changed since the one
	// before; these tests turn them off.
	r.cluster.ControlKey(int16(kmsg.Fetch), func(req kmsg.Request) (kmsg.Response, error, bool) {
		r.cluster.KeepControl()
		for _, t := range req.(*kmsg.FetchRequest).Topics {
			for _, p := range t.Partitions {
				if p.Partition == partition {
					n.Add(1)
				}
			}
		}
		return nil, nil, false
	})
	return &n
}

func sequence(from, to epoch.Offset) []epoch.Offset {
	var os []epoch.Offset
	for ; from < to; from++ {
		os = append(os, from)
	}
	return os
}

func TestNothingIsFetchedBeforeTheClaim(t *testing.T) {
	for _, p := range protocols {
		t.Run(p.name, func(t *testing.T) {
			virtually(t, 2, func(r *rig) {
				r.produce(0, 10)
				r.produce(1, 10)
				let := make(chan struct{})
				n := r.fetches(0)
				w := &worker{sink: r.sink, gate: func(_ context.Context, p epoch.Partition) {
					if p.Number == 0 {
						<-let
					}
				}}
				r.run(r.source(with(p.opts...), with(kgo.DisableFetchSessions())), w.own)
				r.until("the other partition is applied", func() bool { return r.sink.exactly(part(1), 10) })
				if n.Load() != 0 {
					r.Errorf("fetched %d times", n.Load())
				}
				close(let)
				r.until("claimed and applied", func() bool { return r.sink.exactly(part(0), 10) })
			})
		})
	}
}

func TestASlowClaimDelaysNoOtherPartitionAndNoHeartbeat(t *testing.T) {
	for _, p := range protocols {
		t.Run(p.name, func(t *testing.T) {
			virtually(t, 4, func(r *rig) {
				w := &worker{sink: r.sink, gate: func(ctx context.Context, p epoch.Partition) {
					if p.Number == 0 {
						select {
						case <-time.After(time.Hour):
						case <-ctx.Done():
						}
					}
				}}
				r.run(r.source(short(p)), func(ctx context.Context, t consumer.Tenure) {
					ctx, cancel := context.WithCancel(ctx)
					defer cancel()
					go func() {
						select {
						case <-t.Draining():
						case <-ctx.Done():
						}
						cancel()
					}()
					w.own(ctx, t)
				})
				began := time.Now()
				for round := range 5 {
					for n := range int32(3) {
						r.produce(n+1, 10)
					}
					r.until("the others are applied", func() bool {
						return r.sink.exactly(part(1), 10*round+10) && r.sink.exactly(part(2), 10*round+10) && r.sink.exactly(part(3), 10*round+10)
					})
					<-time.After(10 * time.Second)
				}
				if took := time.Since(began); took > 55*time.Second {
					r.Errorf("took %v", took)
				}
				if _, n := r.sink.count(part(1)); n != 0 {
					r.Errorf("%d tenures of another partition ended", n)
				}
			}, shortNextGen)
		})
	}
}

func TestReadingStartsAtTheFenceWhateverTheGroupHasCommitted(t *testing.T) {
	for _, p := range protocols {
		t.Run(p.name, func(t *testing.T) {
			virtually(t, 1, func(r *rig) {
				r.produce(0, 50)
				var os kadm.Offsets
				os.AddOffset(testTopic, 0, 40, -1)
				if err := r.admin.CommitAllOffsets(r.Context(), testGroup, os); err != nil {
					r.Fatal(err)
				}
				_, one, _ := r.hold(short(p))
				for _, at := range []epoch.Offset{10, 45, 0} {
					got, err := r.readUntil(one, r.fence(one, at), int(50-at))
					if err != nil || !slices.Equal(got, sequence(at, 50)) {
						r.Errorf("from %d: %v, %v", at, got, err)
					}
				}
			}, shortNextGen)
		})
	}
}

func TestAPartitionThatAnswersWithAnErrorIsNotAskedAgainUntilItIsReadAgain(t *testing.T) {
	virtually(t, 2, func(r *rig) {
		r.produce(0, 20)
		r.produce(1, 20)
		n := r.fetches(0)
		r.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch}, Partitions: []int32{0}, Err: kerr.TopicAuthorizationFailed, Count: -1})
		w := &worker{sink: r.sink, pause: time.Hour}
		r.run(r.source(with(kgo.DisableFetchSessions())), w.own)
		r.until("the error is reported", func() bool { return len(r.sink.errs[part(0)]) > 0 })
		if err := r.sink.errors(part(0))[0]; !errors.Is(err, kerr.TopicAuthorizationFailed) {
			r.Errorf("%v", err)
		} else {
			r.Log(err)
		}
		r.until("the other is applied", func() bool { return r.sink.exactly(part(1), 20) })
		<-time.After(10 * time.Minute)
		if n.Load() > 3 {
			r.Errorf("asked %d times in ten minutes", n.Load())
		}
	})
}

// kgo waits before it asks again only if all partitions of a broker have failed.
func TestAnErrorThatShouldPassIsRetriedSlowlyAndReportedInTheEnd(t *testing.T) {
	for _, code := range []*kerr.Error{kerr.NotLeaderForPartition, kerr.UnknownTopicOrPartition, kerr.UnknownTopicID, kerr.KafkaStorageError} {
		t.Run(code.Message, func(t *testing.T) {
			virtually(t, 2, func(r *rig) {
				var fetched atomic.Int32
				r.cluster.ControlKey(int16(kmsg.Fetch), func(kmsg.Request) (kmsg.Response, error, bool) {
					r.cluster.KeepControl()
					fetched.Add(1)
					return nil, nil, false
				})
				f := r.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch}, Partitions: []int32{0}, Err: code, Count: -1})
				w := &worker{sink: r.sink, pause: 5 * time.Second}
				r.run(r.source(), w.own)
				r.until("both are claimed", func() bool { return len(r.sink.claims) == 2 })
				<-time.After(time.Minute)
				if n := fetched.Load(); n > 2*60*4*2 { // two brokers, four times a second, and some
					r.Errorf("%d fetches in a minute", n)
				}
				if errs := r.sink.errors(part(0)); len(errs) == 0 {
					r.Error("not reported")
				} else {
					r.Log(len(errs), errs[0])
				}
				if errs := r.sink.errors(part(1)); len(errs) != 0 {
					r.Errorf("the other partition: %v", errs)
				}
				f.Remove()
				r.produce(0, 10)
				r.produce(1, 10)
				r.until("both are applied", func() bool { return r.sink.exactly(part(0), 10) && r.sink.exactly(part(1), 10) })
			})
		})
	}
}

func TestAMomentWithoutALeaderIsNotReported(t *testing.T) {
	virtually(t, 1, func(r *rig) {
		f := r.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch}, Err: kerr.NotLeaderForPartition, Count: -1})
		r.produce(0, 10)
		r.run(r.source(), (&worker{sink: r.sink}).own)
		<-time.After(10 * time.Second)
		f.Remove()
		r.until("applied", func() bool { return r.sink.exactly(part(0), 10) })
		if errs := r.sink.errors(part(0)); len(errs) != 0 {
			r.Errorf("%v", errs)
		}
	})
}

func TestReadingFollowsThePartitionToAnotherLeader(t *testing.T) {
	virtually(t, 1, func(r *rig) {
		w := &worker{sink: r.sink}
		r.run(r.source(), w.own)
		for round := range 4 {
			r.produce(0, 10)
			r.until("applied", func() bool { return r.sink.exactly(part(0), 10*(round+1)) })
			if err := r.cluster.MoveTopicPartition(testTopic, 0, int32(round%2)); err != nil {
				r.Fatal(err)
			}
		}
	})
}
