package kafkasource

import (
	"context"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
)

// heap is what is in use after a collection, in bytes.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// endless serves every partition from one batch, for ever.
func endless(b kfake.SyntheticBatch) []kfake.Opt {
	return []kfake.Opt{kfake.SyntheticFetch(b)}
}

func TestTheHeapStaysWithinBufferBytesThoughReadersAreSlow(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it takes seconds")
	}
	const buffer = 32 << 20
	for name, c := range map[string]struct {
		partitions int32
		batch      kfake.SyntheticBatch
	}{
		"small records":              {8, kfake.SyntheticBatch{Records: 100, RecordBytes: 10, RandomFrac: 1}},
		"middling records":           {8, kfake.SyntheticBatch{Records: 20, RecordBytes: 1000, RandomFrac: 1}},
		"records that compress well": {8, kfake.SyntheticBatch{Records: 100, RecordBytes: 1000, Compression: kgo.GzipCompression()}},
		"one partition":              {1, kfake.SyntheticBatch{Records: 20, RecordBytes: 1000, RandomFrac: 1}},
		"many partitions":            {100, kfake.SyntheticBatch{Records: 10, RecordBytes: 1000, RandomFrac: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			virtually(t, c.partitions, func(r *rig) {
				before := heap()
				var read atomic.Int64
				r.run(r.source(func(o *Options) { o.BufferBytes = buffer }), func(ctx context.Context, t consumer.Tenure) {
					for b, err := range t.Read(ctx, r.fence(t, 0)) {
						if err != nil {
							r.Error(err)
							return
						}
						read.Add(int64(len(b.Messages)))
						select { // with the messages in hand
						case <-time.After(time.Second):
						case <-t.Draining():
						}
						runtime.KeepAlive(b)
					}
				})
				most := int64(0)
				for range 12 { // when no reader takes anything: the broker is in this process, with responses of its own
					<-time.After(2170 * time.Millisecond)
					synctest.Wait() // for responses that are under way
					most = max(most, heap()-before)
				}
				r.Logf("%d messages read, the heap grew by up to %d KiB of %d", read.Load(), most>>10, buffer>>10)
				if most > buffer {
					r.Error("more than BufferBytes")
				}
				if most < buffer/50 || read.Load() == 0 {
					r.Error("the test does not fill the buffer")
				}
			}, endless(c.batch)...)
		})
	}
}

func TestAPartitionThatIsStuckTakesNothingFromTheOthers(t *testing.T) {
	virtually(t, 3, func(r *rig) {
		var read [3]atomic.Int64
		r.run(r.source(func(o *Options) { o.BufferBytes = leastBuffer }), func(ctx context.Context, t consumer.Tenure) {
			p := t.Origin().Partition.Number
			for b, err := range t.Read(ctx, r.fence(t, 0)) {
				if err != nil {
					r.Error(err)
					return
				}
				if read[p].Add(int64(len(b.Messages))); p == 0 {
					select { // stuck with what it has got
					case <-t.Draining():
					case <-ctx.Done():
					}
					return
				}
				select {
				case <-time.After(10 * time.Millisecond):
				case <-t.Draining():
				}
			}
		})
		<-time.After(30 * time.Second)
		one, two := read[1].Load(), read[2].Load()
		<-time.After(30 * time.Second)
		if read[1].Load() < one*3/2 || read[2].Load() < two*3/2 {
			r.Errorf("the others came to a halt: %d to %d and %d to %d", one, read[1].Load(), two, read[2].Load())
		}
	}, endless(kfake.SyntheticBatch{Records: 20, RecordBytes: 1000, RandomFrac: 1})...)
}

// The tenure of a partition that was lost, or that has halted, lasts longer than its Read.
func TestAPartitionThatIsNotReadAnyMoreKeepsNothing(t *testing.T) {
	virtually(t, 1, func(r *rig) {
		before := heap()
		stop, left := make(chan struct{}), make(chan struct{})
		r.run(r.source(), func(ctx context.Context, t consumer.Tenure) {
			for _, err := range t.Read(ctx, r.fence(t, 0)) {
				if err != nil {
					r.Error(err)
				}
				<-stop
				break
			}
			close(left)
			<-t.Draining()
		})
		held := func() int64 {
			<-time.After(10 * time.Second)
			synctest.Wait()
			return heap() - before
		}
		full := held()
		close(stop)
		<-left
		if kept := held(); kept > full/4 {
			r.Errorf("%d KiB of %d are kept", kept>>10, full>>10)
		}
	}, endless(kfake.SyntheticBatch{Records: 20, RecordBytes: 1000, RandomFrac: 1})...)
}

func TestAMessageLargerThanTheBufferIsDelivered(t *testing.T) {
	virtually(t, 2, func(r *rig) {
		r.kafka = r.client(kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerBatchMaxBytes(20<<20), kgo.ProducerBatchCompression(kgo.NoCompression()))
		r.produce(0, 5)
		huge := &kgo.Record{Topic: testTopic, Partition: 0, Value: make([]byte, 8<<20)}
		if err := r.kafka.ProduceSync(r.Context(), huge).FirstErr(); err != nil {
			r.Fatal(err)
		}
		r.produce(0, 5)
		r.produce(1, 5)
		w := &worker{sink: r.sink}
		r.run(r.source(func(o *Options) { o.BufferBytes = leastBuffer }), w.own)
		r.until("all are applied", func() bool { return r.sink.exactly(part(0), 11) && r.sink.exactly(part(1), 5) })
	}, kfake.BrokerConfigs(map[string]string{"message.max.bytes": "20000000"}))
}

// A reader that is slower than the network is paused and resumed over and over.
// What is fetched for a paused partition is thrown away by kgo and fetched
// again; hysteresis keeps that rare.
func TestPausingWastesLittle(t *testing.T) {
	virtually(t, 4, func(r *rig) {
		const perBatch = 20
		var batches, read atomic.Int64
		r.run(r.source(with(kgo.WithHooks(batchCounter{&batches})), func(o *Options) { o.BufferBytes = 8 << 20 }), func(ctx context.Context, t consumer.Tenure) {
			for b, err := range t.Read(ctx, r.fence(t, 0)) {
				if err != nil {
					r.Error(err)
					return
				}
				read.Add(int64(len(b.Messages)))
				select {
				case <-time.After(100 * time.Millisecond):
				case <-t.Draining():
				}
			}
		})
		<-time.After(20 * time.Second)
		fetched := batches.Load() * perBatch
		waste := float64(fetched-read.Load()) / float64(fetched)
		r.Logf("fetched %d, read %d: %.0f%% more", fetched, read.Load(), waste*100)
		if waste > 0.35 {
			r.Error("too much is fetched twice")
		}
	}, endless(kfake.SyntheticBatch{Records: 20, RecordBytes: 1000, RandomFrac: 1})...)
}

type batchCounter struct{ n *atomic.Int64 }

func (c batchCounter) OnFetchBatchRead(kgo.BrokerMetadata, string, int32, kgo.FetchBatchMetrics) {
	c.n.Add(1)
}

// The reader may be done with everything between the moment a feed is found to be
// full and the moment it is paused. Nobody would resume it then.
func TestAFeedThatWasEmptiedMeanwhileIsNotPaused(t *testing.T) {
	f := newFeed(topicPartition{testTopic, 0}, [16]byte{1}, epoch.Fence{})
	err := f.push(&kgo.FetchPartition{Records: []*kgo.Record{{Offset: 0, Value: make([]byte, 1000)}}}, false)
	held := f.holds()
	if held < 1000 || err != nil {
		t.Fatal(held, err)
	}
	_, _, _ = f.take(1 << 20)
	_, _, _ = f.take(1 << 20) // which lets go of what was taken before
	if f.pause(held) {
		t.Error("paused, though there is nothing to take that would resume it")
	}
}

// One partition may be slow, and have a record in each response, while another fills them.
func TestAMessageThatWaitsDoesNotKeepTheRestOfItsResponse(t *testing.T) {
	const responses, size = 100, 1 << 20
	f := newFeed(topicPartition{testTopic, 0}, [16]byte{1}, epoch.Fence{})
	before := heap()
	for o := range int64(responses) {
		response := make([]byte, size)
		copy(response, "key, value, header")
		r := &kgo.Record{Offset: o, Key: response[:3], Value: response[5:10], Headers: []kgo.RecordHeader{{Key: "h", Value: response[12:18]}, {Value: nil}, {Value: response[:0]}}}
		if err := f.push(&kgo.FetchPartition{Records: []*kgo.Record{r}}, true); err != nil {
			t.Fatal(err)
		}
	}
	if kept := heap() - before; kept > responses*size/10 {
		t.Errorf("%d KiB are kept for %d small messages", kept>>10, responses)
	}
	b, err, _ := f.take(1 << 20)
	if err != nil || len(b.Messages) != responses {
		t.Fatalf("took %+v, %v", b, err)
	}
	m := b.Messages[responses-1]
	if hs := m.Headers; string(m.Key) != "key" || string(m.Value) != "value" || string(hs[0].Value) != "header" || hs[1].Value != nil || hs[2].Value == nil {
		t.Errorf("it is %+v", m)
	}
}

// A reader may be slow while others write nothing but transaction markers.
func TestMarkersThatNobodyTakesDoNotPileUp(t *testing.T) {
	f := newFeed(topicPartition{testTopic, 0}, [16]byte{1}, epoch.Fence{})
	for next := range int64(1000) {
		f.add(chunk{next: next + 1, epoch: int32(next / 100)})
	}
	if len(f.chunks) != 1 {
		t.Errorf("%d chunks are kept", len(f.chunks))
	}
	f.add(chunk{records: []*kgo.Record{{Offset: 1000}}, next: 1001, epoch: 9})
	f.add(chunk{next: 1003, epoch: 10})
	b, err, _ := f.take(1 << 20)
	if err != nil || len(b.Messages) != 1 || b.Messages[0].Offset != 1000 || b.Next != 1003 || b.Mark != 10 {
		t.Errorf("took %+v, %v", b, err)
	}
}

func TestTheMarksOfABatchAreThoseOfItsRecordsLeaderEpochs(t *testing.T) {
	f := newFeed(topicPartition{testTopic, 0}, [16]byte{1}, epoch.Fence{})
	at := func(offset int64, epoch int32) *kgo.Record { return &kgo.Record{Offset: offset, LeaderEpoch: epoch} }
	f.add(chunk{records: []*kgo.Record{at(0, 4), at(1, 4)}, next: 2, epoch: 4})
	if b, _, _ := f.take(1 << 20); b.Position(1) != (epoch.Position{Offset: 1, Mark: 4}) || b.Position(2) != (epoch.Position{Offset: 2, Mark: 4}) {
		t.Errorf("took %+v", b)
	}
	f.add(chunk{records: []*kgo.Record{at(2, 4), at(3, 5)}, next: 4, epoch: 5})
	f.add(chunk{next: 6, epoch: 6})
	if b, _, _ := f.take(1 << 20); b.Position(1) != (epoch.Position{Offset: 3, Mark: 4}) || b.Position(2) != (epoch.Position{Offset: 6, Mark: 6}) {
		t.Errorf("took %+v", b)
	}
}

func TestBudgetAddsUpToItsTotal(t *testing.T) {
	for _, total := range []int{leastBuffer, defaultBuffer, 1 << 30} {
		for _, partitions := range []int{0, 1, 7, 100} {
			for _, brokers := range []int{0, 1, 3, 9} {
				for _, growth := range []float64{1, 4, 30} {
					for _, lent := range []int64{0, int64(total) / 9, int64(total) / 8, int64(total)} {
						b := newBudget(total, 100<<20)
						b.growth = growth
						spare := b.spare(lent)
						s, _ := b.sizes(partitions, partitions, brokers, spare)
						shares := b.share(partitions) * int64(max(partitions, 1))
						flight := float64(s.fetch) * growth * float64(max(brokers, 1))
						brought := float64(s.partition) * growth * float64(max(partitions, 1)) // by one fetch, to all
						if shares > int64(total)/4 || min(lent, int64(total)/8)+spare > int64(total)/8 ||
							s.fetch > leastFetch && flight > float64(total)/8+1 ||
							s.partition > leastFetch && brought > float64(shares/2+spare)+1 {
							t.Errorf("total %d, %d partitions, %d brokers, growth %v, lent %d: %+v", total, partitions, brokers, growth, lent, s)
						}
					}
				}
			}
		}
	}
}

func TestAMessageKeepsWhatTheRecordHad(t *testing.T) {
	at := time.UnixMilli(1234)
	p := epoch.Partition{Group: "g", Topic: "t", Number: 3}
	m := consumer.Message{Key: []byte("another"), Headers: make([]consumer.Header, 1), Under: new(epoch.Fence), Replay: 1}
	(&feed{partition: p}).set(&m, &kgo.Record{
		Topic: "t", Partition: 3, Offset: 7, Key: []byte{}, Value: nil, Timestamp: at, LeaderEpoch: 5,
		Headers: []kgo.RecordHeader{{Key: "a", Value: nil}, {Key: "a", Value: []byte{}}},
	})
	if m.Partition != p || m.Offset != epoch.Offset(7) || m.Key == nil || m.Value != nil || !m.Time.Equal(at) || m.Under != nil || m.Replay != 0 || len(m.Headers) != 2 {
		t.Errorf("%+v", m)
	}
	if !slices.EqualFunc(m.Headers, []consumer.Header{{Key: "a"}, {Key: "a", Value: []byte{}}}, func(a, b consumer.Header) bool {
		return a.Key == b.Key && (a.Value == nil) == (b.Value == nil)
	}) {
		t.Errorf("%+v", m.Headers)
	}
}
