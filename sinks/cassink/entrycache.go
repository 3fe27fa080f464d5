package cassink

import (
	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/epoch"
)

// This file remembers, under one claim, the entries that this process has read. The lists of the
// fence decide which entries exist.

// entryCache is what this process has read of the entries of a partition, under one claim.
type entryCache struct {
	claim epoch.ClaimID
	sink  *Sink
	of    map[int64]cachedEntry
	ended map[int64]bool // entries that were discarded
	swept bool
}

type cachedEntry struct {
	key    string
	stored cas.Item // without its value and note
}

func (s *Sink) cacheOf(p epoch.Partition, claim epoch.ClaimID) *entryCache {
	s.mu.Lock()
	defer s.mu.Unlock()
	k, ok := s.outboxes[p]
	if !ok || k.claim != claim {
		k = &entryCache{claim: claim, sink: s, of: map[int64]cachedEntry{}, ended: map[int64]bool{}}
		s.outboxes[p] = k
	}
	return k
}

func (k *entryCache) wasSwept() bool {
	k.sink.mu.Lock()
	defer k.sink.mu.Unlock()
	was := k.swept
	k.swept = true
	return was
}

func (k *entryCache) learn(at entryItem) {
	k.sink.mu.Lock()
	defer k.sink.mu.Unlock()
	at.stored.Value, at.stored.Note = nil, nil
	k.of[at.entry.ID] = cachedEntry{at.entry.Key, at.stored}
}

func (k *entryCache) gone(id int64) {
	k.sink.mu.Lock()
	defer k.sink.mu.Unlock()
	delete(k.of, id)
	k.ended[id] = true
}

func (k *entryCache) isGone(id int64) bool {
	k.sink.mu.Lock()
	defer k.sink.mu.Unlock()
	return k.ended[id]
}

func (k *entryCache) has(id int64) (cachedEntry, bool) {
	k.sink.mu.Lock()
	defer k.sink.mu.Unlock()
	at, ok := k.of[id]
	return at, ok
}

func (k *entryCache) forget(id int64) cas.Item {
	k.sink.mu.Lock()
	defer k.sink.mu.Unlock()
	at := k.of[id]
	delete(k.of, id)
	return at.stored
}
