package kafkasource

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
)

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
		wantPosition(t, err, consumer.ErrOffsetExpired, 10, 30)
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
		from.Mark = 0
		_, err = r.readUntil(one, from, 1)
		wantPosition(t, err, consumer.ErrTruncated, 9, 5)
	})
}

// Two transactions write under leader epoch 1. One is aborted while the other is open, so the
// reader passes the aborted messages, at offsets 1 to 3, but not the marker, at 5. The next leader
// says that epoch 0, that of the last message read, ended at 1: nothing is lost. Before 1.22.3,
// franz-go said that it was.
func TestAbortedMessagesUnderALaterLeaderEpochAreNoTruncatedLog(t *testing.T) {
	for _, p := range protocols {
		t.Run(p.name, func(t *testing.T) {
			virtually(t, 1, func(r *rig) {
				asked := make(chan int64, 100)
				r.cluster.ControlKey(int16(kmsg.Fetch), func(req kmsg.Request) (kmsg.Response, error, bool) {
					r.cluster.KeepControl()
					for _, t := range req.(*kmsg.FetchRequest).Topics {
						for _, p := range t.Partitions {
							select {
							case asked <- p.FetchOffset:
							default:
							}
						}
					}
					return nil, nil, false
				})
				nextLeader := func() {
					if err := r.cluster.MoveTopicPartition(testTopic, 0, 1-r.cluster.LeaderFor(testTopic, 0)); err != nil {
						r.Fatal(err)
					}
				}
				begin := func(id string, n int) *kgo.Client {
					tx := r.client(kgo.TransactionalID(id), kgo.RecordPartitioner(kgo.ManualPartitioner()))
					if err := tx.BeginTransaction(); err != nil {
						r.Fatal(err)
					}
					for range n {
						if err := tx.ProduceSync(r.Context(), &kgo.Record{Topic: testTopic, Value: []byte(id)}).FirstErr(); err != nil {
							r.Fatal(err)
						}
					}
					return tx
				}
				end := func(tx *kgo.Client, how kgo.TransactionEndTry) {
					if err := tx.EndTransaction(r.Context(), how); err != nil {
						r.Fatal(err)
					}
				}
				r.produce(0, 1)
				nextLeader()
				aborted, open := begin("aborted", 3), begin("open", 1)
				end(aborted, kgo.TryAbort)
				r.run(r.source(with(p.opts...), with(kgo.DisableFetchSessions())), (&worker{sink: r.sink}).own)
				r.until("the first is applied", func() bool { return r.sink.exactly(part(0), 1) })
				for <-asked != 4 {
				}
				nextLeader()
				end(open, kgo.TryCommit)
				r.until("the committed transaction is applied", func() bool {
					return slices.Equal(r.sink.applied[part(0)], []epoch.Offset{0, 4})
				})
				if errs := r.sink.errors(part(0)); len(errs) > 0 {
					r.Errorf("%v, want no error", errs)
				}
			})
		})
	}
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
		from.Mark = 0
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
	f := newFeed(topicPartition{testTopic, 0}, [16]byte{1}, epoch.Fence{Next: 10, Mark: 1})
	var rs []*kgo.Record
	for o := int64(10); o < 20; o++ {
		rs = append(rs, &kgo.Record{Offset: o})
	}
	if err := f.push(&kgo.FetchPartition{Records: rs}, false); err != nil {
		t.Fatal(err)
	}
	loss := &kgo.ErrDataLoss{ConsumedTo: 20, ResetTo: 15}
	(&fetcher{}).trouble(f, loss, stops{map[string][]int32{}, map[string][]int32{}})
	b, err, _ := f.take(1 << 20)
	if b != nil || !errors.Is(err, loss) {
		t.Errorf("took %+v, %v", b, err)
	}
}

func TestAnOffsetThatComesAgainIsAnError(t *testing.T) {
	f := newFeed(topicPartition{testTopic, 0}, [16]byte{1}, epoch.Fence{Next: 10, Mark: 1})
	if err := f.push(&kgo.FetchPartition{Records: []*kgo.Record{{Offset: 10}, {Offset: 12}}}, false); err != nil {
		t.Fatal("a gap that compaction leaves is no error")
	}
	again := f.push(&kgo.FetchPartition{Records: []*kgo.Record{{Offset: 12}}}, false)
	if again == nil {
		t.Fatal("an offset that came before was taken")
	}
	f.fail(again, false)
	if b, err, _ := f.take(1 << 20); b == nil || len(b.Messages) != 2 || err != nil {
		t.Fatalf("took %+v, %v; want what was good first", b, err)
	}
	_, err, _ := f.take(1 << 20)
	var fault *misfitError
	if !errors.As(err, &fault) || fault.kind != consumer.ErrOutOfOrder || fault.position != 13 || fault.found != 12 {
		t.Errorf("%v", err)
	}
}

func TestAGapBelowTheStartOfTheLogIsAnError(t *testing.T) {
	f := newFeed(topicPartition{testTopic, 0}, [16]byte{1}, epoch.Fence{Next: 10, Applied: true})
	if err := f.push(&kgo.FetchPartition{LogStartOffset: 30, Records: []*kgo.Record{{Offset: 30}}}, false); err == nil {
		t.Error("skipped from 10 to 30")
	}
}

func TestARecreatedTopicIsAnotherLogAndGoesOnOnceSomebodyDecides(t *testing.T) {
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
				r.sink.do(func() { // an operator decides
					f := r.sink.fences[part(0)]
					f.Log, f.Next, f.Mark = changed.Source, 0, epoch.NoMark
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
		r.until("the other continues", func() bool { return r.sink.exactly(part(0), 40) })
	}, kfake.SeedTopics(1, "doomed"))
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

func TestABatchSaysWhereTheLogEndsForThoseWhoReadWhatIsCommitted(t *testing.T) {
	f := newFeed(topicPartition{testTopic, 0}, [16]byte{1}, epoch.Fence{Next: 10, Mark: 1})
	for _, step := range []struct {
		stable int64
		want   epoch.Offset
	}{
		{-1, 0}, // it is not told
		{100, 100},
		{90, 100}, // of a broker that lags behind
		{120, 120},
	} {
		if err := f.push(&kgo.FetchPartition{LastStableOffset: step.stable, Records: []*kgo.Record{{Offset: f.next, LeaderEpoch: 1}}}, false); err != nil {
			t.Fatal(err)
		}
		if b, _, _ := f.take(1 << 20); b.End != step.want {
			t.Errorf("with a last stable offset of %d the log ends at %d, want %d", step.stable, b.End, step.want)
		}
	}
}
