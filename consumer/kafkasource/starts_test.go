package kafkasource

import (
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
)

func TestStarts(t *testing.T) {
	for _, c := range []struct {
		policy consumer.StartPolicy
		want   []epoch.Offset // of partitions 0, 1, 2
	}{
		{consumer.StartEarliest, []epoch.Offset{5, 0, 0}},
		{consumer.StartLatest, []epoch.Offset{20, 10, 0}},
		{consumer.StartCommitted, []epoch.Offset{5, 0, 0}}, // what was committed is for the first claim
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
					if st.Next.Mark < 0 || st.Earliest.Mark < 0 {
						r.Errorf("partition %d begins without a leader epoch: %+v", i, st)
					}
					if st.Partition.Number != int32(i) || st.Next.Offset != c.want[i] || st.Earliest.Offset != earliest || st.Log != one.Origin().Log {
						r.Errorf("partition %d: %+v, want next %d, earliest %d", i, st, c.want[i], earliest)
					}
				}
			})
		})
	}
}

// Many clients commit none.
func TestWhatTheGroupHadCommittedCarriesALeaderEpoch(t *testing.T) {
	virtually(t, 1, func(r *rig) {
		r.produce(0, 20)
		for at, known := range map[int64]bool{12: true, 20: true, 30: false} {
			var os kadm.Offsets
			os.AddOffset(testTopic, 0, at, -1)
			if err := r.admin.CommitAllOffsets(r.Context(), testGroup, os); err != nil {
				r.Fatal(err)
			}
			_, one, run := r.hold()
			got, ok, err := one.Committed(r.Context())
			if err != nil || !ok || got.Offset != epoch.Offset(at) || (got.Mark >= 0) != known {
				r.Errorf("committed is %+v, %v, %v; want offset %d", got, ok, err, at)
			}
			if err := run.stop(); err != nil {
				r.Fatal(err)
			}
		}
	})
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
		if err != nil || starts[0].Next.Offset != 3 {
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

func TestStartsListsThePartitionThatAsksThoughItIsNew(t *testing.T) {
	virtually(t, 1, func(r *rig) {
		h, one, _ := r.hold(with(kgo.MetadataMaxAge(time.Second), kgo.MetadataMinAge(time.Second)))
		stop := make(chan struct{})
		asked := make(chan struct{})
		go func() { // so that there is always an answer of just now
			defer close(asked)
			for {
				select {
				case <-stop:
					return
				case <-time.After(10 * time.Millisecond):
					if _, err := one.Starts(r.Context(), consumer.StartLatest); err != nil {
						r.Error(err)
					}
				}
			}
		}()
		if _, err := r.admin.UpdatePartitions(r.Context(), 2, testTopic); err != nil {
			r.Fatal(err)
		}
		r.until("the new partition is granted", func() bool { return len(h.granted) > 1 })
		close(stop)
		<-asked
		last := h.nth(h.count() - 1)
		starts, err := last.Starts(r.Context(), consumer.StartLatest)
		if err != nil || len(starts) != 2 {
			r.Errorf("%v, %v", starts, err)
		}
	})
}
