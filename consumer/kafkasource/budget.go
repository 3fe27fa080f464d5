package kafkasource

import (
	"math/bits"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"
)

// This file decides how much memory the parts of reading may take, and how large the next fetch may
// be. fetch.go keeps to it, and feed.go counts and says when a record is no longer needed.

// budget divides Options.BufferBytes, called B below. It counts memory. A fetch is limited in bytes
// on the wire, which are fewer because of compression and the size of a Record. growth is the last
// ratio of the two.
//
//	B/4  queues: an equal share for each partition that is being read.
//	B/8  queues beyond the shares: lent to partitions that have more to come.
//	B/8  what kgo has fetched and not handed over: one response per broker.
//	B/2  responses while they are read, the rest of responses that have a queued record,
//	     and the garbage collector.
//
// Only a record batch larger than its limit exceeds this: the broker sends at least one batch,
// whatever the limit.
type budget struct {
	total int64
	limit int32 // of a response, by the client's options

	mu     sync.Mutex
	memory int64 // of the batches read since the last call of sizes
	wire   int64

	// Only the poller uses these.
	growth float64
	seen   bool // growth was measured
	set    sizes
}

type sizes struct{ fetch, partition int32 }

const (
	// firstGrowth is the growth of small records that compress well. The first fetch uses it.
	firstGrowth = 64.0

	leastFetch = 4 << 10
	mostFetch  = 50 << 20
)

func newBudget(total int, limit int32) *budget {
	return &budget{total: int64(total), limit: limit, growth: firstGrowth}
}

func (b *budget) share(n int) int64 { return b.total / 4 / int64(max(n, 1)) }

func (b *budget) spare(lent int64) int64 { return max(b.total/8-lent, 0) }

// sizes returns the limits of a fetch, and whether they have changed. hungry is the number of
// partitions that have more to come. The spare memory is divided among them.
func (b *budget) sizes(partitions, hungry, brokers int, spare int64) (sizes, bool) {
	b.mu.Lock()
	memory, wire := b.memory, b.wire
	b.memory, b.wire = 0, 0
	b.mu.Unlock()
	if wire > 0 {
		// Rise at once and fall slowly: one topic may grow more than the others, and is read again.
		least := b.growth * 0.97
		if !b.seen {
			least, b.seen = 0, true
		}
		b.growth = max(1, least, float64(memory)/float64(wire))
	}
	onWire := func(cost int64) int32 {
		return int32(min(max(float64(cost)/b.growth, leastFetch), mostFetch, float64(b.limit)))
	}
	now := sizes{
		fetch:     onWire(b.total / 8 / int64(max(brokers, 1))),
		partition: onWire(b.share(partitions)/2 + spare/int64(max(hungry, 1))),
	}
	now.partition = 1 << (bits.Len32(uint32(min(now.partition, now.fetch))) - 1) // changes rarely: a fetch session sends each change
	if near(now.fetch, b.set.fetch) && now.partition == b.set.partition {
		return b.set, false
	}
	b.set = now
	return now, true
}

func near(a, b int32) bool { return a >= b-b/8 && a <= b+b/8 && b > 0 }

// OnFetchBatchRead implements [kgo.HookFetchBatchRead].
func (b *budget) OnFetchBatchRead(_ kgo.BrokerMetadata, _ string, _ int32, m kgo.FetchBatchMetrics) {
	const header = 61 // of a record batch
	b.mu.Lock()
	defer b.mu.Unlock()
	b.memory += int64(m.UncompressedBytes) + int64(m.NumRecords)*recordCost
	b.wire += int64(m.CompressedBytes) + header
}

// recordPool keeps records that have become messages, so that kgo can reuse them. Nobody outside
// this package sees a record, and a message keeps only slices of the response. Without the pool,
// the row kafka/read of bench takes 1.8 times the processor time, and Kafka to PostgreSQL 1.1 times.
//
// Slices are pooled by length. A slice far longer than a batch would stay in memory with the batch,
// and the budget counts only the batch's records.
type recordPool struct{ about [bits.UintSize + 1]sync.Pool } // by bits.Len of their lengths

// GetRecords implements [kgo.PoolRecords].
func (p *recordPool) GetRecords(n int) []kgo.Record {
	if rs, ok := p.about[bits.Len(uint(n))].Get().(*[]kgo.Record); ok && cap(*rs) >= n {
		return *rs
	}
	return make([]kgo.Record, n)
}

// PutRecords implements [kgo.PoolRecords]. The records are zero.
func (p *recordPool) PutRecords(rs []kgo.Record) {
	p.about[bits.Len(uint(cap(rs)))].Put(&rs)
}

// mayRecycle reports whether records can be reused: no hook of the caller sees records, because it
// might keep them, and the caller has no pools, because these might reuse bytes of a record that a
// message still has.
func mayRecycle(cl *kgo.Client) bool {
	if pools, _ := cl.OptValue(kgo.WithPools).([]kgo.Pool); len(pools) > 0 {
		return false
	}
	hooks, _ := cl.OptValue(kgo.WithHooks).([]kgo.Hook)
	for _, h := range hooks {
		switch h.(type) {
		case kgo.HookFetchRecordBuffered, kgo.HookFetchRecordUnbuffered:
			return false
		}
	}
	return true
}
