package kafkasource

import (
	"math/bits"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"
)

// budget divides Options.BufferBytes, called B below. It counts memory, while a
// fetch is limited in bytes on the wire, which compression and the size of a
// Record make fewer; growth is the ratio of the two as last seen.
//
//	B/4  queues: an equal share for each partition that is being read, so that
//	     none can take another's.
//	B/8  queues beyond the shares: lent to those that have more to come, for as
//	     long as there is some left.
//	B/8  what kgo has fetched and not handed over: one response per broker.
//	B/2  room for responses while they are read, for what of a response stays because
//	     some record in it is still queued, and for the garbage collector.
//
// Only a record batch larger than its limit goes beyond this: the broker sends
// at least one, whatever the limit.
type budget struct {
	total int64
	limit int32 // of a response, by the client's options

	mu     sync.Mutex
	memory int64 // of the batches read since the last look
	wire   int64

	// The rest belongs to the poller.
	growth float64
	seen   bool // growth is of what was read
	set    sizes
}

type sizes struct{ fetch, partition int32 }

const (
	// A first fetch has no experience to go by. Small records that compress well
	// take this much more in memory than on the wire.
	firstGrowth = 64.0

	leastFetch = 4 << 10
	mostFetch  = 50 << 20
)

func newBudget(total int, limit int32) *budget {
	return &budget{total: int64(total), limit: limit, growth: firstGrowth}
}

// share is what is kept for each of n partitions.
func (b *budget) share(n int) int64 { return b.total / 4 / int64(max(n, 1)) }

// spare is what may still be lent where so much is.
func (b *budget) spare(lent int64) int64 { return max(b.total/8-lent, 0) }

// sizes returns the limits of a fetch, and whether they are to be set anew. Of the
// partitions, the hungry are those that have more to come: what may be lent is
// divided among them.
func (b *budget) sizes(partitions, hungry, brokers int, spare int64) (sizes, bool) {
	b.mu.Lock()
	memory, wire := b.memory, b.wire
	b.memory, b.wire = 0, 0
	b.mu.Unlock()
	if wire > 0 {
		// Rise at once, come down slowly: one topic of several may grow more
		// than the rest, and it has its turn again.
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
	now.partition = 1 << (bits.Len32(uint32(min(now.partition, now.fetch))) - 1) // a fetch session tells the broker of each change
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
