package kafkasource

import (
	"context"
	"errors"
	"slices"
	"strings"
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
	for ms, err := range t.Read(ctx, from) {
		if err != nil {
			return offsets, err
		}
		for _, m := range ms {
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

func TestStarts(t *testing.T) {
	for _, c := range []struct {
		policy consumer.StartPolicy
		want   []epoch.Offset // of partitions 0, 1, 2
	}{
		{consumer.StartEarliest, []epoch.Offset{5, 0, 0}},
		{consumer.StartLatest, []epoch.Offset{20, 10, 0}},
		{consumer.StartCommitted, []epoch.Offset{12, 0, 0}},
	} {
		t.Run(c.policy.String(), func(t *testing.T) {
			virtually(t, 3, func(r *rig) {
				r.produce(0, 20)
				r.produce(1, 10)
				if err := r.cluster.DeleteRecords(testTopic, 0, 5); err != nil {
					r.Fatal(err)
				}
				var os kadm.Offsets
				os.AddOffset(testTopic, 0, 12, -1)
				if err := r.admin.CommitAllOffsets(r.Context(), testGroup, os); err != nil {
					r.Fatal(err)
				}
				_, one, _ := r.hold()
				starts, err := one.Starts(r.Context(), c.policy)
				if err != nil {
					r.Fatal(err)
				}
				if len(starts) != 3 {
					r.Fatalf("%d partitions, want 3", len(starts))
				}
				for i, st := range starts {
					earliest := epoch.Offset(0)
					if i == 0 {
						earliest = 5
					}
					if st.Number != int32(i) || st.Next != c.want[i] || st.Earliest != earliest || st.Log != one.Origin().Log {
						r.Errorf("partition %d: %+v, want next %d, earliest %d", i, st, c.want[i], earliest)
					}
				}
			})
		})
	}
}

func TestLatestStartsBeforeATransactionThatIsStillOpen(t *testing.T) {
	virtually(t, 1, func(r *rig) {
		r.produce(0, 3)
		tx := r.client(kgo.TransactionalID("tx"), kgo.RecordPartitioner(kgo.ManualPartitioner()))
		if err := tx.BeginTransaction(); err != nil {
			r.Fatal(err)
		}
		if err := tx.ProduceSync(r.Context(), &kgo.Record{Topic: testTopic, Value: []byte("open")}).FirstErr(); err != nil {
			r.Fatal(err)
		}
		_, one, _ := r.hold()
		starts, err := one.Starts(r.Context(), consumer.StartLatest)
		if err != nil || starts[0].Next != 3 {
			r.Fatalf("%v, %v; want 3", starts, err)
		}
		if err := tx.EndTransaction(r.Context(), kgo.TryCommit); err != nil {
			r.Fatal(err)
		}
		if got, err := r.readUntil(one, r.fence(one, 3), 1); err != nil || got[0] != 3 {
			r.Errorf("read %v, %v", got, err)
		}
	})
}

func TestANewPartitionOfTheTopicIsGrantedAndStartsAtItsEarliest(t *testing.T) {
	for _, p := range protocols {
		t.Run(p.name, func(t *testing.T) {
			virtually(t, 1, func(r *rig) {
				r.produce(0, 10)
				w := &worker{sink: r.sink, start: consumer.StartLatest}
				r.run(r.source(with(append(p.opts, kgo.MetadataMaxAge(5*time.Second))...)), w.own)
				r.until("claimed", func() bool { return len(r.sink.claims[part(0)]) == 1 })
				if _, err := r.admin.UpdatePartitions(r.Context(), 2, testTopic); err != nil {
					r.Fatal(err)
				}
				r.kafka = r.client(kgo.RecordPartitioner(kgo.ManualPartitioner())) // one that knows of it
				r.produce(1, 10)
				r.until("the new partition is applied from its beginning", func() bool { return r.sink.exactly(part(1), 10) })
				if len(r.sink.offsets(part(0))) != 0 {
					r.Errorf("partition 0 was to begin at the latest, and applied %v", r.sink.offsets(part(0)))
				}
			})
		})
	}
}

func wantPosition(t testing.TB, err, kind error, position, found epoch.Offset) {
	t.Helper()
	var misfit *consumer.PositionError
	if !errors.As(err, &misfit) || !errors.Is(err, kind) {
		t.Fatalf("%v, want a *PositionError: %v", err, kind)
	}
	if misfit.Position != position || misfit.Found != found || misfit.Partition != part(0) {
		t.Errorf("%v; want position %d, found %d", err, position, found)
	}
}

func TestAPositionThatRetentionHasPassedByIsAnError(t *testing.T) {
	virtually(t, 1, func(r *rig) {
		r.produce(0, 50)
		_, one, _ := r.hold()
		if err := r.cluster.DeleteRecords(testTopic, 0, 30); err != nil {
			r.Fatal(err)
		}
		_, err := r.readUntil(one, r.fence(one, 10), 1)
		wantPosition(t, err, consumer.ErrPassedBy, 10, 30)
		if got, err := r.readUntil(one, r.fence(one, 30), 20); err != nil || !slices.Equal(got, sequence(30, 50)) {
			r.Errorf("Read again from where the log begins: %v, %v", got, err)
		}
	})
}

func TestAPositionAboveTheEndOfTheLogIsAnError(t *testing.T) {
	virtually(t, 1, func(r *rig) {
		r.produce(0, 5)
		_, one, _ := r.hold()
		_, err := r.readUntil(one, r.fence(one, 9), 1)
		wantPosition(t, err, consumer.ErrTruncated, 9, 5)
		from := r.fence(one, 9)
		from.LeaderEpoch = 0
		_, err = r.readUntil(one, from, 1)
		wantPosition(t, err, consumer.ErrTruncated, 9, 5)
	})
}

// The log ends above the position again, but not with the messages that were
// applied: only their leader epoch tells (KIP-320). kfake does not truncate, so
// the broker's answer is made up.
func TestALogThatWasRewrittenBelowThePositionIsAnError(t *testing.T) {
	virtually(t, 1, func(r *rig) {
		r.produce(0, 50)
		_, one, _ := r.hold()
		r.cluster.ControlKey(int16(kmsg.OffsetForLeaderEpoch), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
			r.cluster.KeepControl()
			req := kreq.(*kmsg.OffsetForLeaderEpochRequest)
			resp := req.ResponseKind().(*kmsg.OffsetForLeaderEpochResponse)
			for _, rt := range req.Topics {
				st := kmsg.NewOffsetForLeaderEpochResponseTopic()
				st.Topic = rt.Topic
				for _, rp := range rt.Partitions {
					sp := kmsg.NewOffsetForLeaderEpochResponseTopicPartition()
					sp.Partition, sp.LeaderEpoch, sp.EndOffset = rp.Partition, 0, 20
					st.Partitions = append(st.Partitions, sp)
				}
				resp.Topics = append(resp.Topics, st)
			}
			return resp, nil, true
		})
		from := r.fence(one, 30)
		from.LeaderEpoch = 0
		_, err := r.readUntil(one, from, 1)
		wantPosition(t, err, consumer.ErrTruncated, 30, 20)
		from.Next = 20
		if got, err := r.readUntil(one, from, 30); err != nil || !slices.Equal(got, sequence(20, 50)) {
			r.Errorf("from a position that is still in the log: %v, %v", got, err)
		}
	})
}

// What was fetched and not applied before a truncation is in the log no more.
func TestWhatIsQueuedAboveATruncationIsDropped(t *testing.T) {
	f := newFeed(place{testTopic, 0}, [16]byte{1}, epoch.Fence{Next: 10, LeaderEpoch: 1})
	var rs []*kgo.Record
	for o := int64(10); o < 20; o++ {
		rs = append(rs, &kgo.Record{Offset: o})
	}
	f.push(&kgo.FetchPartition{Records: rs})
	loss := &kgo.ErrDataLoss{ConsumedTo: 20, ResetTo: 15}
	(&fetcher{}).trouble(f, loss, stops{map[string][]int32{}, map[string][]int32{}})
	ms, err, _ := f.take(1<<20, 1<<20)
	if len(ms) != 0 || !errors.Is(err, loss) {
		t.Errorf("took %d messages, %v", len(ms), err)
	}
}

func TestAnOffsetThatComesAgainIsAnError(t *testing.T) {
	f := newFeed(place{testTopic, 0}, [16]byte{1}, epoch.Fence{Next: 10, LeaderEpoch: 1})
	if _, err := f.push(&kgo.FetchPartition{Records: []*kgo.Record{{Offset: 10}, {Offset: 12}}}); err != nil {
		t.Fatal("a gap that compaction leaves is no error")
	}
	_, again := f.push(&kgo.FetchPartition{Records: []*kgo.Record{{Offset: 12}}})
	if again == nil {
		t.Fatal("an offset that came before was taken")
	}
	f.fail(again, false)
	if ms, err, _ := f.take(1<<20, 0); len(ms) != 2 || err != nil {
		t.Fatalf("took %v, %v; want what was good first", ms, err)
	}
	_, err, _ := f.take(1<<20, 0)
	var fault *positionFault
	if !errors.As(err, &fault) || fault.kind != consumer.ErrOutOfOrder || fault.position != 13 || fault.found != 12 {
		t.Errorf("%v", err)
	}
}

func TestAGapBelowTheStartOfTheLogIsAnError(t *testing.T) {
	f := newFeed(place{testTopic, 0}, [16]byte{1}, epoch.Fence{Next: 10})
	if _, err := f.push(&kgo.FetchPartition{LogStartOffset: 30, Records: []*kgo.Record{{Offset: 30}}}); err == nil {
		t.Error("skipped from 10 to 30")
	}
}

func TestATopicThatWasCreatedAgainIsAnotherLogAndGoesOnWithoutARestartOnceSomebodyDecides(t *testing.T) {
	for _, p := range protocols {
		t.Run(p.name, func(t *testing.T) {
			virtually(t, 1, func(r *rig) {
				r.produce(0, 20)
				w := &worker{sink: r.sink}
				r.run(r.source(short(p)), w.own)
				r.until("applied", func() bool { return r.sink.exactly(part(0), 20) })
				old := r.sink.fence(part(0))
				if err := r.cluster.DeleteTopic(testTopic); err != nil {
					r.Fatal(err)
				}
				if err := r.cluster.CreateTopic(testTopic, 1, nil); err != nil {
					r.Fatal(err)
				}
				r.kafka.PurgeTopicsFromClient(testTopic)
				r.produce(0, 40)
				var changed *epoch.LogChangedError
				r.until("the change is reported", func() bool {
					errs := r.sink.errs[part(0)]
					return len(errs) > 0 && errors.As(errs[len(errs)-1], &changed)
				})
				if changed.Fence != old.Log || changed.Next != 20 || changed.Source == old.Log {
					r.Errorf("%+v", changed)
				}
				if n := len(r.sink.offsets(part(0))); n != 20 {
					r.Errorf("%d messages were applied, of which %d are of the new log", n, n-20)
				}
				r.sink.do(func() { // a person decides
					f := r.sink.fences[part(0)]
					f.Log, f.Next, f.LeaderEpoch = changed.Source, 0, -1
					r.sink.fences[part(0)] = f
					r.sink.applied[part(0)] = nil
				})
				r.until("the new log is applied", func() bool { return r.sink.exactly(part(0), 40) })
			}, shortNextGen)
		})
	}
}

func TestADeletedTopicIsAnErrorAndNoOtherPartitionSuffers(t *testing.T) {
	virtually(t, 1, func(r *rig) {
		r.produce(0, 20)
		r.produceTo("doomed", 0, 20)
		w := &worker{sink: r.sink}
		doomed := epoch.Partition{Group: testGroup, Topic: "doomed"}
		r.run(r.source(short(protocols[1]), func(o *Options) { o.Topics = []string{testTopic, "doomed"} }), w.own)
		r.until("both are applied", func() bool { return r.sink.exactly(part(0), 20) && r.sink.exactly(doomed, 20) })
		if err := r.cluster.DeleteTopic("doomed"); err != nil {
			r.Fatal(err)
		}
		r.until("the error is reported", func() bool {
			errs := r.sink.errs[doomed]
			return len(errs) > 0 && strings.Contains(errs[len(errs)-1].Error(), "deleted") || len(errs) > 0 && errors.Is(errs[len(errs)-1], kerr.UnknownTopicOrPartition)
		})
		r.Log(r.sink.errors(doomed))
		r.produce(0, 20)
		r.until("the other goes on", func() bool { return r.sink.exactly(part(0), 40) })
	}, kfake.SeedTopics(1, "doomed"))
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

func TestMarkersAreBehindThePositionAndAbortedTransactionsAreNotRead(t *testing.T) {
	virtually(t, 1, func(r *rig) {
		tx := r.client(kgo.TransactionalID("tx"), kgo.RecordPartitioner(kgo.ManualPartitioner()))
		transact := func(n int, how kgo.TransactionEndTry) {
			if err := tx.BeginTransaction(); err != nil {
				r.Fatal(err)
			}
			for range n {
				if err := tx.ProduceSync(r.Context(), &kgo.Record{Topic: testTopic, Value: []byte("v")}).FirstErr(); err != nil {
					r.Fatal(err)
				}
			}
			if err := tx.EndTransaction(r.Context(), how); err != nil {
				r.Fatal(err)
			}
		}
		transact(3, kgo.TryCommit) // 0 to 2, and the marker at 3
		transact(2, kgo.TryAbort)  // 4 and 5, and the marker at 6
		transact(1, kgo.TryCommit) // 7, and the marker at 8
		transact(4, kgo.TryAbort)  // 9 to 12, and the marker at 13
		w := &worker{sink: r.sink}
		r.run(r.source(), w.own)
		r.until("applied", func() bool {
			return slices.Equal(r.sink.applied[part(0)], []epoch.Offset{0, 1, 2, 7})
		})
		<-time.After(6 * time.Second)
		if at, end := r.committed(0), r.cluster.PartitionInfo(testTopic, 0).HighWatermark; at != end {
			r.Errorf("the group has %d, the log ends at %d: there is lag where there is nothing to read", at, end)
		}
		if f := r.sink.fence(part(0)); f.Next != 8 {
			r.Errorf("the fence stands at %d", f.Next)
		}
	})
}

func TestPositionsAreMirroredTogetherAndAtTheEndOfATenure(t *testing.T) {
	virtually(t, 20, func(r *rig) {
		var commits atomic.Int32
		w := &worker{sink: r.sink}
		run := r.run(r.source(func(o *Options) { o.MirrorInterval = 30 * time.Second }), w.own)
		r.until("all are claimed", func() bool { return len(r.sink.claims) == 20 })
		r.cluster.ControlKey(int16(kmsg.OffsetCommit), func(kmsg.Request) (kmsg.Response, error, bool) {
			r.cluster.KeepControl()
			commits.Add(1)
			return nil, nil, false
		})
		for p := range int32(20) {
			r.produce(p, 10)
		}
		r.until("all is applied", func() bool {
			for p := range int32(20) {
				if !r.sink.exactly(part(p), 10) {
					return false
				}
			}
			return true
		})
		if at := r.committed(7); at != 0 {
			r.Errorf("the group has %d before the interval", at)
		}
		<-time.After(31 * time.Second)
		if at := r.committed(7); at != 10 || commits.Load() != 1 {
			r.Errorf("the group has %d after %d requests, want 10 after one", at, commits.Load())
		}
		<-time.After(2 * time.Minute)
		if commits.Load() != 1 {
			r.Errorf("%d requests though nothing changed", commits.Load())
		}
		r.produce(7, 5)
		r.until("applied", func() bool { return r.sink.exactly(part(7), 15) })
		if err := run.stop(); err != nil {
			r.Error(err)
		}
		if at := r.committed(7); at != 15 {
			r.Errorf("the group has %d after the drain, want 15", at)
		}
	})
}

func TestHundredsOfPartitionsConfirmInAHandfulOfRequests(t *testing.T) {
	const partitions = 300
	for _, p := range protocols {
		t.Run(p.name, func(t *testing.T) {
			virtually(t, partitions, func(r *rig) {
				var commits atomic.Int32
				r.cluster.ControlKey(int16(kmsg.OffsetCommit), func(kmsg.Request) (kmsg.Response, error, bool) {
					r.cluster.KeepControl()
					commits.Add(1)
					r.cluster.SleepControl(func() { <-time.After(50 * time.Millisecond) })
					return nil, nil, false
				})
				w := &worker{sink: r.sink}
				r.run(r.source(with(p.opts...)), w.own)
				r.until("all are claimed", func() bool { return len(r.sink.claims) == partitions })
				if n := commits.Load(); n > 5 {
					r.Errorf("%d requests", n)
				} else {
					r.Logf("%d requests", n)
				}
			})
		})
	}
}

func TestADrainEndsReadAndTheBatchInHandIsStillPublished(t *testing.T) {
	for _, p := range protocols {
		t.Run(p.name, func(t *testing.T) {
			virtually(t, 1, func(r *rig) {
				r.produce(0, 10)
				inHand, let := make(chan struct{}), make(chan struct{})
				w := &worker{sink: r.sink, apply: func(context.Context, []consumer.Message) error {
					close(inHand)
					<-let
					return nil
				}}
				run := r.run(r.source(short(p)), w.own)
				<-inHand
				run.cancel()
				<-time.After(time.Second)
				close(let)
				if err := run.wait(); err != nil {
					r.Error(err)
				}
				if n := len(r.sink.offsets(part(0))); n == 0 || r.committed(0) != int64(n) {
					r.Errorf("applied %d, the group has %d", n, r.committed(0))
				}
			}, shortNextGen)
		})
	}
}

func TestOneReadAtATime(t *testing.T) {
	virtually(t, 1, func(r *rig) {
		r.produce(0, 1)
		_, one, _ := r.hold()
		for _, err := range one.Read(r.Context(), r.fence(one, 0)) {
			if err != nil {
				r.Fatal(err)
			}
			for _, err := range one.Read(r.Context(), r.fence(one, 0)) {
				if !errors.Is(err, errReading) {
					r.Errorf("a second Read = %v", err)
				}
			}
			break
		}
	})
}

func TestReadRefusesAFenceOfAnotherLogOrPlace(t *testing.T) {
	virtually(t, 1, func(r *rig) {
		_, one, _ := r.hold()
		from := r.fence(one, 0)
		from.Log = "kafka:other/x"
		if _, err := r.readUntil(one, from, 1); !errors.Is(err, epoch.ErrLogChanged) {
			r.Errorf("another log: %v", err)
		}
		if _, err := one.Confirm(r.Context(), from); !errors.Is(err, epoch.ErrLogChanged) {
			r.Errorf("Confirm of another log: %v", err)
		}
		if _, err := r.readUntil(one, r.fence(one, -1), 1); !errors.Is(err, errBadPosition) {
			r.Errorf("a negative position: %v", err)
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
