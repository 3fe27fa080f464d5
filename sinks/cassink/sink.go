package cassink

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/guard"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/form"
)

// This file opens the sink, reads fences for others and while the handlers of a transaction run, so that a
// process that has lost one meanwhile writes nothing, and names the sink's own items. One that loses a
// fence later is stopped by the items. It decides which errors of a store leave an outcome unknown.

// Options configure a [Sink]. The zero Options are valid.
type Options struct {
	// Prefix begins the keys of the sink's own items: fences, dead letters, the audit log. The keys
	// that handlers change must not begin with it and a slash. Two sinks of one prefix and store
	// are one sink. Set it to keep several sinks in one store apart. Defaults to "epochfence".
	Prefix string

	// Observe, if set, is called with a [guard.Event] for each decided change of an item: during
	// [Tx.Update] if the item has the change already, or refuses it, and otherwise after the items
	// of the transaction were written and before the position is. The transaction waits for
	// Observe, so it must return soon. It must not panic. Calls may overlap.
	// [guard.Message.Observe] lists what is not decided. Set it for a log of changed items.
	Observe func(guard.Event)
}

// Sink is an [epoch.Sink] over a [cas.Store]. It is safe for concurrent use.
type Sink struct {
	store cas.Store
	keys  keys
	facts cas.Facts

	observe func(guard.Event) // or nil

	mu   sync.Mutex
	held map[epoch.Partition]item   // what this process has claimed, as it has written it last
	seen map[epoch.Partition]record // of which the fence and LastEntry are set

	mostRiding int // the constant, or less in tests

	turns    map[epoch.Partition]chan struct{} // of the writes of each fence
	outboxes map[epoch.Partition]*entryCache
}

// The suite skips the histories of interfaces that a sink lacks, so the compiler checks them here.
var (
	_ epoch.Sink[*Tx]    = (*Sink)(nil)
	_ epoch.Holding[*Tx] = (*Sink)(nil)
)

// Open returns a sink. It returns [cas.ErrUnsuitable] if the store's settings lose items.
func Open(ctx context.Context, store cas.Store, o Options) (*Sink, error) {
	facts, err := store.Facts(ctx)
	if err != nil {
		return nil, fmt.Errorf("cassink: open: %w", err)
	}
	if o.Prefix == "" {
		o.Prefix = "epochfence"
	}
	return &Sink{
		store: store, keys: keys{o.Prefix}, facts: facts, observe: o.Observe, mostRiding: mostRiding,
		held: map[epoch.Partition]item{}, seen: map[epoch.Partition]record{},
		turns: map[epoch.Partition]chan struct{}{}, outboxes: map[epoch.Partition]*entryCache{},
	}, nil
}

// Facts implements [epoch.Sink]. A transaction has one partition.
func (s *Sink) Facts() epoch.Facts {
	return epoch.Facts{Guarantee: epoch.PerItem, Partitions: 1, Transactions: 8}
}

// Look implements [epoch.Sink].
func (s *Sink) Look(ctx context.Context, ps []epoch.Partition) (epoch.Fences, error) {
	var mu sync.Mutex
	found := epoch.Fences{}
	var readers errgroup.Group
	readers.SetLimit(sideBySide)
	for _, p := range ps {
		readers.Go(func() error {
			at, err := s.fence(ctx, p)
			if errors.Is(err, epoch.ErrMissing) {
				return nil
			}
			mu.Lock()
			defer mu.Unlock()
			found[p] = at.record.Fence
			return err
		})
	}
	if err := readers.Wait(); err != nil {
		return nil, fmt.Errorf("cassink: read fence %s: %w", epoch.Names(ps), err)
	}
	return found, nil
}

// sideBySide limits requests that are sent beside each other.
const sideBySide = 16

// doubtful returns err as one whose outcome is not known, unless the store reports that nothing was done.
func doubtful(err error) error {
	switch {
	case errors.Is(err, cas.ErrFull):
		return fmt.Errorf("%w: %w", epoch.ErrUnhealthy, err)
	case errors.Is(err, cas.ErrTooLarge):
		return fmt.Errorf("%w: %w", epoch.ErrTooLarge, err)
	case errors.Is(err, cas.ErrKey), errors.Is(err, cas.ErrForeign), errors.Is(err, cas.ErrConflict), errors.Is(err, form.ErrUnreadable):
		return err
	}
	return fmt.Errorf("%w: %w", epoch.ErrInDoubt, err)
}

// keys are the keys of a sink's own items, where epochfence is Options.Prefix:
//
//	epochfence/fence/GROUP/TOPIC/NUMBER          a fence: claim, epoch and position, as JSON
//	epochfence/topic/GROUP/TOPIC                 where each partition begins
//	epochfence/dead/GROUP/TOPIC/NUMBER/ID        a dead letter; what does not fit is in dead-parts
//	epochfence/log/GROUP/TOPIC/NUMBER            the last entries of the audit log
//	epochfence/lists/GROUP/TOPIC/NUMBER          ids of dead letters and outbox entries
//	epochfence/outbox/GROUP/TOPIC/NUMBER/ID      an outbox entry, with its body as the value
//	epochfence/process/RUN                       a sign of life of a process
//	epochfence/requests                          what operators have asked for
//
// Values and notes are JSON, and change as package form has it. A new kind of item gets a word of its
// own after epochfence/: everything below the words above is listed.
type keys struct{ prefix string }

// has reports whether a key is one that the sink may use.
func (k keys) has(key string) bool { return strings.HasPrefix(key, cas.Join(k.prefix)+"/") }

func (k keys) fences() string { return cas.Join(k.prefix, "fence") + "/" }
func (k keys) fence(p epoch.Partition) string {
	return k.fences() + of(p)
}

// topic is the item that has decided where the partitions of a topic begin.
func (k keys) topic(group, topic string) string { return cas.Join(k.prefix, "topic", group, topic) }

func (k keys) log(p epoch.Partition) string { return k.logs() + of(p) }
func (k keys) logs() string                 { return cas.Join(k.prefix, "log") + "/" }

func (k keys) lists(p epoch.Partition) string { return cas.Join(k.prefix, "lists") + "/" + of(p) }

func (k keys) letters() string { return cas.Join(k.prefix, "dead") + "/" }
func (k keys) letter(p epoch.Partition, id int64) string {
	return k.lettersOf(p) + strconv.FormatInt(id, 10)
}

// part is the item that has a part of the content of a dead letter.
func (k keys) part(p epoch.Partition, id int64, n int) string {
	return cas.Join(k.prefix, "dead-parts") + "/" + of(p) + "/" + strconv.FormatInt(id, 10) + "/" + strconv.Itoa(n)
}

func (k keys) lettersOf(p epoch.Partition) string { return k.letters() + of(p) + "/" }

func (k keys) entries(p epoch.Partition) string {
	return cas.Join(k.prefix, "outbox") + "/" + of(p) + "/"
}
func (k keys) entry(p epoch.Partition, id int64) string {
	return k.entries(p) + strconv.FormatInt(id, 10)
}

// requests is the item that owners of partitions poll.
func (k keys) requests() string { return cas.Join(k.prefix, "requests") }

func (k keys) processes() string         { return cas.Join(k.prefix, "process") + "/" }
func (k keys) process(run string) string { return k.processes() + cas.Join(run) }

// parse returns what a key below a prefix is about: a partition, and perhaps an id.
func (k keys) parse(prefix, key string) (p epoch.Partition, id int64, ok bool) {
	parts := strings.Split(strings.TrimPrefix(key, prefix), "/")
	if len(parts) != 3 && len(parts) != 4 {
		return p, 0, false
	}
	number, err := strconv.ParseInt(parts[2], 10, 32)
	group, inGroup := url.PathUnescape(parts[0])
	topic, inTopic := url.PathUnescape(parts[1])
	if len(parts) == 4 {
		id, _ = strconv.ParseInt(parts[3], 10, 64)
	}
	return epoch.Partition{Group: group, Topic: topic, Number: int32(number)}, id, errors.Join(err, inGroup, inTopic) == nil
}

func of(p epoch.Partition) string {
	return cas.Join(p.Group, p.Topic, strconv.Itoa(int(p.Number)))
}

// look is the store of a transaction's items. The first request for one of them also reads the fence.
type look struct {
	cas.BatchGetter
	sink  *Sink
	began cas.Item // the fence
	asked atomic.Bool
	found chan cas.Written
}

// looks returns a look, and the store for handlers. A store that reads one item in each request reads the fence
// beside the others.
func (s *Sink) looks(ctx context.Context, fence item) (*look, cas.Store) {
	l, p := &look{sink: s, began: fence.stored, found: make(chan cas.Written, 1)}, fence.record.Partition
	if all, ok := s.store.(cas.BatchGetter); ok {
		l.BatchGetter = all
		return l, l
	}
	l.asked.Store(true)
	go func() { l.found <- s.readFence(ctx, p) }()
	return l, s.store
}

// stillOurs returns an error unless the transaction fits the fence that was read.
func (l *look) stillOurs(ctx context.Context, g goal) error {
	var first cas.Written
	asked := !l.asked.CompareAndSwap(false, true)
	if asked {
		first = <-l.found
	}
	if !asked || first.Err != nil { // perhaps the error of another item
		first = l.sink.readFence(ctx, g.Partition)
	}
	if first.Err == nil && bytes.Equal(first.Item.Value, l.began.Value) {
		return nil
	}
	at, err := l.sink.fenceFrom(ctx, g.Partition, first)
	if err != nil {
		return lost(err)
	}
	_, err = g.after(at.record.Fence)
	return err
}

// Get implements [cas.Store].
func (l *look) Get(ctx context.Context, key string) (cas.Item, error) {
	items, err := l.GetAll(ctx, []string{key})
	if err != nil {
		return l.BatchGetter.Get(ctx, key) // for the error of this item
	}
	return items[0], nil
}

// GetAll implements [cas.BatchGetter].
func (l *look) GetAll(ctx context.Context, keys []string) ([]cas.Item, error) {
	fence := l.began.Key
	if slices.Contains(keys, fence) || !l.asked.CompareAndSwap(false, true) {
		return l.BatchGetter.GetAll(ctx, keys)
	}
	items, err := l.BatchGetter.GetAll(ctx, append([]string{fence}, keys...))
	if err != nil {
		l.found <- cas.Written{Err: err}
		return nil, err
	}
	l.found <- cas.Written{Item: items[0]}
	return items[1:], nil
}

// SwapAll implements [cas.BatchSwapper].
func (l *look) SwapAll(ctx context.Context, writes []cas.Write) []cas.Written {
	return cas.SwapAll(ctx, l.BatchGetter, writes)
}
