package kafkasource

import (
	"context"
	"fmt"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
)

// A handler may keep the messages it was given. What they were read from is used again
// meanwhile.
func TestAMessageThatIsKeptStaysAsItWas(t *testing.T) {
	type kept struct {
		m    consumer.Message
		want int
	}
	for name, opts := range map[string][]kgo.Opt{
		"records are used again":              nil,
		"a hook sees records":                 {kgo.WithHooks(&recordHook{})},
		"the caller has a pool for the bytes": {kgo.WithPools(&bytePool{})},
	} {
		t.Run(name, func(t *testing.T) {
			virtually(t, 1, func(r *rig) {
				const rounds, each = 40, 50
				var all []kept // under the sink's lock
				r.run(r.source(with(opts...)), func(ctx context.Context, t consumer.Tenure) {
					for b, err := range t.Read(ctx, r.fence(t, 0)) {
						if err != nil {
							r.Error(err)
							return
						}
						r.sink.do(func() {
							for _, m := range b.Messages {
								all = append(all, kept{m, len(all) % each})
							}
						})
					}
				})
				for i := range rounds {
					r.produce(0, each)
					r.until("they are read", func() bool { return len(all) == (i+1)*each })
				}
				for i, k := range all {
					m := k.m
					if m.Offset != epoch.Offset(i) || string(m.Key) != "key" || string(m.Value) != fmt.Sprint(k.want) ||
						len(m.Headers) != 1 || m.Headers[0].Key != "h" || string(m.Headers[0].Value) != "v" {
						r.Fatalf("message %d is %+v by now", i, m)
					}
					if traced := m.Context != nil && m.Context.Value(recordHook{}) == int64(i); traced != (name == "a hook sees records") {
						r.Fatalf("message %d has the context %v", i, m.Context)
					}
					if m.Context != nil && name == "records are used again" {
						r.Fatalf("message %d has a context of its own", i)
					}
				}
			})
		})
	}
}

// recordHook is what a tracer is to kgo: it puts a context on each record.
type recordHook struct{}

func (h *recordHook) OnFetchRecordBuffered(r *kgo.Record) {
	r.Context = context.WithValue(context.Background(), recordHook{}, r.Offset)
}

// bytePool writes over what comes back to it.
type bytePool struct{}

func (*bytePool) GetDecompressBytes([]byte, kgo.CompressionCodecType) []byte { return nil }
func (*bytePool) PutDecompressBytes(b []byte)                                { clear(b[:cap(b)]) }

func TestRecordsAreUsedAgainWhereNobodyElseSeesThem(t *testing.T) {
	for name, c := range map[string]struct {
		opts []kgo.Opt
		want bool
	}{
		"nothing else":             {nil, true},
		"a hook that sees none":    {[]kgo.Opt{kgo.WithHooks(batchCounter{})}, true},
		"one of two sees them":     {[]kgo.Opt{kgo.WithHooks(batchCounter{}, &recordHook{})}, false},
		"one sees them afterwards": {[]kgo.Opt{kgo.WithHooks(afterwards{})}, false},
		"a pool of the caller's":   {[]kgo.Opt{kgo.WithPools(&bytePool{})}, false},
	} {
		t.Run(name, func(t *testing.T) {
			set, err := Options{Group: "g", Topics: []string{"t"}, Client: c.opts}.resolve()
			if err != nil || set.recycle != c.want {
				t.Errorf("recycle is %v, %v", set.recycle, err)
			}
		})
	}
}

type afterwards struct{}

func (afterwards) OnFetchRecordUnbuffered(*kgo.Record, bool) {}

// What is kept for a batch is about what it needs, as its records are what is counted.
func TestThePoolHandsOutNothingFarLargerThanWhatIsAskedFor(t *testing.T) {
	var p recordPool
	for range 100 { // the runtime may drop some
		p.PutRecords(make([]kgo.Record, 1000))
	}
	for _, n := range []int{0, 1, 10, 400, 511, 512, 900, 1000, 1023, 1024, 5000} {
		if c := cap(p.GetRecords(n)); c < n || c > 2*n {
			t.Errorf("asked for %d records, it hands out %d", n, c)
		}
	}
}

func filled(from epoch.Offset, n int) chunk {
	c := chunk{next: int64(from) + int64(n), epoch: 1, cost: int64(n) * recordCost}
	for i := range n {
		c.records = append(c.records, &kgo.Record{Offset: int64(from) + int64(i), LeaderEpoch: 1, Value: []byte("value")})
	}
	return c
}

func TestABatchIsMadeInThePlaceOfTheOneBefore(t *testing.T) {
	const limit = 100 * messageCost
	f := newFeed(topicPartition{testTopic, 0}, [16]byte{1}, epoch.Fence{})
	take := func(from epoch.Offset, n int) []consumer.Message {
		f.add(filled(from, n))
		b, err, _ := f.take(limit)
		if err != nil || len(b.Messages) != n || b.Messages[0].Offset != from {
			t.Fatalf("took %+v, %v", b, err)
		}
		return b.Messages
	}
	first := take(0, 100)
	again := take(100, 60)
	if &first[0] != &again[0] {
		t.Error("the memory was not used again")
	}
	if first[60].Value != nil {
		t.Error("what is behind the new messages still holds on to the old ones")
	}
	if f.take(limit); again[0].Value != nil { //nolint:errcheck // there is nothing
		t.Error("a feed that has nothing holds on to what it had")
	}
	large := take(160, 1000)
	if small := take(1160, 10); &large[0] == &small[0] {
		t.Error("ten messages keep the memory of a thousand")
	}
	take(1170, 1000)
	if f.take(limit); cap(f.messages)*messageCost > limit { //nolint:errcheck // there is nothing
		t.Errorf("a feed that has nothing keeps memory for %d messages", cap(f.messages))
	}
}

// A fetch may bring far more than is to be taken at once.
func TestALargeChunkIsTakenInPieces(t *testing.T) {
	const limit = leastPiece * (messageCost + recordCost)
	f := newFeed(topicPartition{testTopic, 0}, [16]byte{1}, epoch.Fence{})
	var next epoch.Offset
	for _, n := range []int{10 * leastPiece, 1, 3*leastPiece + 1, 2, leastPiece + 1} {
		f.add(filled(next, n))
		next += epoch.Offset(n)
	}
	var at epoch.Offset
	for at < next {
		held := f.queued
		b, err, _ := f.take(limit)
		if err != nil || len(b.Messages) == 0 {
			t.Fatalf("took %+v, %v", b, err)
		}
		if n := len(b.Messages); n > 2*leastPiece && int64(n)*(messageCost+recordCost) > held/4+limit {
			t.Errorf("%d messages at once, of what costs %d", n, held)
		}
		for _, m := range b.Messages {
			if m.Offset != at {
				t.Fatalf("offset %d where %d is next", m.Offset, at)
			}
			at++
		}
		if b.Next != at || b.Mark != 1 || f.taken() != int64(at) {
			t.Errorf("the batch up to %d says %d, %d", at, b.Next, b.Mark)
		}
	}
	if b, err, _ := f.take(limit); b != nil || err != nil || f.holds() != 0 {
		t.Errorf("%+v, %v and %d are left", b, err, f.holds())
	}
}

// BenchmarkTake is what a record costs between kgo and a batch.
func BenchmarkTake(b *testing.B) {
	const n = 4096
	f := newFeed(topicPartition{testTopic, 0}, [16]byte{1}, epoch.Fence{})
	c := filled(0, n)
	b.ReportAllocs()
	for b.Loop() {
		f.add(c)
		if batch, _, _ := f.take(1 << 30); len(batch.Messages) != n {
			b.Fatal(len(batch.Messages))
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/message")
}
