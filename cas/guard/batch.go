package guard

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/epoch"
)

// This file collects the changes of several messages, decides which items are written together and which
// after one another, and writes them at the end. item.go decides what is written to each.

// Batch makes the changes of several messages of one partition, and writes the items when all are
// complete. Until Write, nothing is written. It is safe for concurrent use.
//
// A batch begins at the position of the fence, which moves when Write has returned nil. So all messages
// before it have been applied completely. The replay of a dead letter is a batch of its own.
type Batch struct {
	store cas.Store
	first Stamp
	dead  []DeadLetter
	keeps func(id int64) bool

	observe func(Event)
	doubted bool // the answer to a write of the same change in an earlier batch was lost

	mu    sync.Mutex
	items map[string]*item
	told  map[epoch.Offset][]*item // items whose outcomes a message got that are not written yet
	steps []step                   // the changes to be written

	again sync.Mutex // held while a change is made again
}

// DeadLetter is a message that has failed and may be replayed. An earlier owner may have applied it
// in part, even after the failure was recorded.
type DeadLetter struct {
	ID     int64
	Era    epoch.Epoch // in which it has failed
	Offset epoch.Offset
}

// Begin returns an empty batch. The offset of the stamp is the position of the fence, and its mark is
// not used. dead are the dead letters of the partition. Items remember what these have changed until
// they are replayed.
func Begin(store cas.Store, first Stamp, dead ...DeadLetter) *Batch {
	return &Batch{
		store: store, first: first, dead: dead, keeps: func(int64) bool { return false },
		items: map[string]*item{}, told: map[epoch.Offset][]*item{},
	}
}

// Keep makes items remember the replays with these ids, however many other replays change them.
// Call it before other methods. It is for ids that may be replayed until their deletion is
// committed, such as entries of an outbox.
func (b *Batch) Keep(keeps func(id int64) bool) { b.keeps = keeps }

// Observe makes the batch call f with an [Event] for each decided change, as [Message.Observe] does. Call
// it before other methods. Update calls f if the item has the change already, or refuses it. Write
// calls f for the other changes, one at a time, after the last of its writes. Changes of items that Write did
// not try to write are not decided, nor those that end with [ErrOutcomeChanged].
func (b *Batch) Observe(f func(Event)) { b.observe = f }

func (b *Batch) report(events ...Event) {
	if b.observe == nil {
		return
	}
	for _, e := range events {
		if e.Decision != undecided {
			b.observe(e)
		}
	}
}

// Update changes an item for the message whose offset and mark are at, and returns the outcome, as [Apply]
// does. Messages change an item in the order of their offsets. Other messages of
// the batch see the change, and nobody else does before Write.
func (b *Batch) Update(ctx context.Context, at epoch.Position, key string, change Change) (outcome []byte, err error) {
	outcome, e, err := b.update(ctx, at, key, change)
	b.report(e)
	return outcome, err
}

func (b *Batch) update(ctx context.Context, at epoch.Position, key string, change Change) ([]byte, Event, error) {
	it, told := b.item(key), b.toldTo(at.Offset)
	outcome, made, e, err := it.update(ctx, at, change)
	if err != nil {
		return nil, e, fmt.Errorf("guard: apply %s@%d to %q: %w", b.first.Partition, at.Offset, key, err)
	}
	if made {
		b.made(step{it, at.Offset, told, len(outcome) > 0})
	}
	return outcome, e, nil
}

// toldTo returns the items whose outcomes a message knows.
func (b *Batch) toldTo(offset epoch.Offset) []*item {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.told[offset]
}

// made adds a change to those to be written.
func (b *Batch) made(s step) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.steps = append(b.steps, s)
	if s.tells {
		b.told[s.offset] = append(b.told[s.offset], s.item)
	}
}

// Read returns an item as the messages of the batch have left it. A decision that depends on it may be
// another one when the message is delivered again: decide in a [Change].
func (b *Batch) Read(ctx context.Context, key string) (State, error) {
	state, err := b.item(key).read(ctx)
	if err != nil {
		return State{}, fmt.Errorf("guard: read %q: %w", key, err)
	}
	return state, nil
}

// Load reads items, so that Update and Read need not ask the store for one after the other: in one
// request if the store is a [cas.BatchGetter], and otherwise several at a time. Items that are not
// changed afterwards are not written.
func (b *Batch) Load(ctx context.Context, keys ...string) error {
	if s, ok := b.store.(cas.BatchGetter); ok && b.loadTogether(ctx, s, keys) == nil {
		return nil
	}
	var readers errgroup.Group
	readers.SetLimit(sideBySide)
	for _, key := range keys {
		readers.Go(func() error {
			_, err := b.Read(ctx, key)
			return err
		})
	}
	return readers.Wait()
}

// loadTogether reads those of the items that were not read before.
func (b *Batch) loadTogether(ctx context.Context, s cas.BatchGetter, keys []string) error {
	keys = slices.Compact(slices.Sorted(slices.Values(keys)))
	b.mu.Lock()
	keys = slices.DeleteFunc(keys, func(key string) bool { return b.items[key] != nil })
	b.mu.Unlock()
	if len(keys) == 0 {
		return nil
	}
	ctx, cancel := limited(ctx)
	defer cancel()
	found, err := s.GetAll(ctx, keys)
	if err != nil {
		return err
	}
	for i, key := range keys {
		if err := b.item(key).takeFirst(ctx, found[i]); err != nil {
			return err
		}
	}
	return nil
}

func (b *Batch) item(key string) *item {
	b.mu.Lock()
	defer b.mu.Unlock()
	it, ok := b.items[key]
	if !ok {
		it = newItem(b, key)
		b.items[key] = it
	}
	return it
}

// sideBySide limits how many items of a batch are read or written at a time.
const sideBySide = 32

// Fits returns [cas.ErrTooLarge] if an item is too large for a store with these limits. It also does so
// if the changes of several messages leave other partitions too little room in the item's note. The note
// keeps a partition's changes until that partition changes the item again.
func (b *Batch) Fits(f cas.Facts) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, it := range b.items {
		if err := it.fits(f); err != nil {
			return fmt.Errorf("guard: write %q for messages of %s: %w", it.key, b.first.Partition, err)
		}
	}
	return nil
}

// Write writes the items, several at a time. What a message has changed with an outcome is written before what
// the message changed after it, and before what later messages changed. So a batch in which each message
// has an outcome takes about as many writes after one another as it has messages, and one without
// outcomes takes one. After an error some items may be written, and others not: have the messages
// delivered again, from the position of the fence on. Its errors are those of [Apply] and
// [ErrOutcomeChanged].
func (b *Batch) Write(ctx context.Context) error {
	events, err := b.write(ctx)
	b.report(events...)
	return err
}

func (b *Batch) write(ctx context.Context) (events []Event, err error) {
	b.mu.Lock()
	all := rounds(b.steps)
	b.mu.Unlock() // a change that is made again may read other items
	for _, round := range all {
		var writers errgroup.Group
		writers.SetLimit(sideBySide)
		rest := b.together(ctx, round)
		for it, first := range rest {
			write := func() error {
				if err := it.write(ctx, round[it], first); err != nil {
					return fmt.Errorf("guard: write %q for messages of %s: %w", it.key, b.first.Partition, err)
				}
				return nil
			}
			if len(rest) == 1 {
				err = write()
			} else {
				writers.Go(write)
			}
		}
		err = cmp.Or(err, writers.Wait())
		for it := range round {
			events, it.events = append(events, it.events...), nil
		}
		if err != nil {
			return events, err
		}
	}
	return events, nil
}

// most limits the items of one request, and so how long it takes.
const most = 128

// together tries to write the items of a round in few requests, and returns those that are to be written one by
// one, with the result of the first request if it made one.
func (b *Batch) together(ctx context.Context, r round) map[*item]*tried {
	rest := make(map[*item]*tried, len(r))
	for some := range slices.Chunk(slices.Collect(maps.Keys(r)), most) {
		var writes []cas.Write
		var held []*item
		for _, it := range some {
			// A change that reads other items may use this one, so nobody waits for it who has others.
			if rest[it] = nil; len(r) == 1 || !it.tryLock() {
				continue
			}
			if len(upTo(it.made, r[it])) > 0 {
				if w, t := it.prepare(r[it]); t.err == nil {
					rest[it], writes, held = t, append(writes, w), append(held, it)
					continue
				}
			}
			it.unlock()
		}
		if len(writes) == 0 {
			continue
		}
		ctx, cancel := limited(ctx)
		for i, result := range cas.SwapAll(ctx, b.store, writes) {
			it := held[i]
			t := rest[it]
			if t.stored, t.err = result.Item, result.Err; t.err == nil {
				it.settle(it.made[:t.n], b.doubted, nil)
				it.wrote(t)
				delete(rest, it)
			}
			it.unlock()
		}
		cancel()
	}
	return rest
}

// step is a change to be written.
type step struct {
	item   *item
	offset epoch.Offset // of the message
	knows  []*item      // those whose outcomes the message got before
	tells  bool         // it has an outcome
}

// round is what is written at a time: items, and the last message whose change of the item is written.
type round map[*item]epoch.Offset

// rounds returns the order in which changes are written. An outcome that is not written may become another
// one when the message is delivered again, because others were faster or this process has died. The message
// may change other items then. An item that has a later message refuses that, and a change that was made by
// the first outcome would stay. So an outcome is written before what its message has changed after it,
// and before what later messages have changed.
func rounds(steps []step) (found []round) {
	slices.SortStableFunc(steps, func(a, b step) int { return cmp.Compare(a.offset, b.offset) })
	of, last := map[*item]int{}, map[*item]int{} // the round of the last step of an item, and which it is
	in := make([]int, len(steps))
	var told latest // by the messages before
	for begin, end := 0, 0; begin < len(steps); begin = end {
		for ; end < len(steps) && steps[end].offset == steps[begin].offset; end++ {
			s := steps[end]
			n := max(of[s.item], told.besides(s.item))
			for _, before := range s.knows {
				n = max(n, of[before]+1)
			}
			of[s.item], last[s.item], in[end] = n, end, n
		}
		for i := begin; i < end; i++ {
			if steps[i].tells {
				told.add(steps[i].item, in[i]+1)
			}
		}
	}
	for i, s := range steps {
		if !s.tells && last[s.item] != i {
			continue // it is written with a later one
		}
		for len(found) <= in[i] {
			found = append(found, round{})
		}
		found[in[i]][s.item] = s.offset
	}
	return found
}

// latest has the round that is the first after all outcomes of messages, and after those of other items than one.
type latest struct {
	item         *item // which has the last outcome
	round, other int
}

func (l latest) besides(it *item) int {
	if it == l.item {
		return l.other
	}
	return l.round
}

func (l *latest) add(it *item, round int) {
	switch {
	case it == l.item:
		l.round = max(l.round, round)
	case round > l.round:
		l.item, l.round, l.other = it, round, l.round
	default:
		l.other = max(l.other, round)
	}
}
