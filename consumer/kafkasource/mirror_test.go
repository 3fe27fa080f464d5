package kafkasource

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
)

func TestThePositionPassesMarkersAndAbortedTransactionsAreNotRead(t *testing.T) {
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
		if f := r.sink.fence(part(0)); f.Next != 14 {
			r.Errorf("the fence is at %d, want 14: retention may take the markers before another message comes", f.Next)
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

func TestAPositionIsPublishedBeforeARebalanceMovesThePartition(t *testing.T) {
	virtually(t, 1, func(r *rig) {
		type commit struct {
			member string
			at     int64
		}
		var mu sync.Mutex
		var commits []commit
		r.cluster.ControlKey(int16(kmsg.OffsetCommit), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
			r.cluster.KeepControl()
			req := kreq.(*kmsg.OffsetCommitRequest)
			mu.Lock()
			defer mu.Unlock()
			for _, t := range req.Topics {
				for _, p := range t.Partitions {
					commits = append(commits, commit{req.MemberID, p.Offset})
				}
			}
			return nil, nil, false
		})
		rarely := func(o *Options) { o.MirrorInterval = time.Hour }
		r.produce(0, 10)
		r.run(r.source(short(protocols[0]), rarely), (&worker{sink: r.sink}).own)
		r.until("applied", func() bool { return r.sink.exactly(part(0), 10) })
		r.run(r.source(short(protocols[0]), rarely), (&worker{sink: r.sink}).own)
		r.until("claimed again", func() bool { return len(r.sink.claims[part(0)]) == 2 })
		mu.Lock()
		defer mu.Unlock()
		if len(commits) < 2 || commits[0].at != 0 || commits[1] != (commit{commits[0].member, 10}) {
			r.Errorf("%v; want the member that had it to publish 10 after its claim at 0", commits)
		}
	})
}
