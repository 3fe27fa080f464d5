package kafkasource

import (
	"math/bits"
	"reflect"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"
)

// recordPool keeps the records of batches that were made into messages, for kgo to read
// the next ones into. Nobody outside this package sees a record, and a message has nothing
// of one but the slices of what the broker sent. It made reading small messages a third
// faster: BenchmarkFeed, and the row kafka/read of bench.
//
// A slice is kept beside those of about its length. One far longer than a batch would stay
// in memory with it, which is counted by its records.
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

// mayRecycle says whether records can be used again: the caller's hooks see none, which
// they might keep, and the caller has no pools, into which the bytes of a record may go
// that a message still has.
func mayRecycle(cl *kgo.Client) bool {
	if !empty(reflect.ValueOf(cl.OptValue(kgo.WithPools))) {
		return false
	}
	hooks := reflect.ValueOf(cl.OptValue(kgo.WithHooks))
	for i := range hooks.Len() {
		switch hooks.Index(i).Interface().(type) {
		case kgo.HookFetchRecordBuffered, kgo.HookFetchRecordUnbuffered:
			return false
		}
	}
	return true
}
