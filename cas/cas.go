// Package cas is the interface of stores whose items are replaced by compare-and-swap. etcd,
// Consul, ZooKeeper, Redis, DynamoDB, object stores, NATS and SQL databases can do that. Packages
// lease, guard and sinks/cassink are built on it, and hide it from handlers.
//
// A driver hides how its server names, compares and lists items: a value and a note that are
// written together, and a version that names one write and no other. A caller reads an item and
// swaps it as it was seen. What the items mean, and what follows from a refused write, is left to
// the caller.
//
// Each driver is a package of its own, such as cas/etcdstore, and passes the suite in cas/castest.
// docs/stores.md compares them. docs/extend.md describes how to write another one.
package cas

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"
)

// Store is a set of items. It is safe for concurrent use by several goroutines and processes.
//
// Only Swap and Delete must be linearizable. Get and List may return older items, because a Swap
// from an older item is refused. They never return an item that was not written.
//
// The errors name the operation and the key, as %q. A method returns soon after ctx has ended, with
// an error that matches ctx.Err(). The caller may change value and note once Swap has returned, and
// the Value of a returned Item at any time. nil and empty are the same.
type Store interface {
	// Get returns the item with the key. If there is none, it returns an item that is not Live. It
	// returns [ErrForeign] if another program has written what is there and it cannot be an item.
	Get(ctx context.Context, key string) (Item, error)

	// Swap writes value and note, if the item is still as seen, and returns the new item. seen is
	// an item that this store has returned, with its Key, Version and Note unchanged. Item{Key: key} is
	// an item that was never written.
	//
	// It does not repeat a request whose outcome is unknown. Its errors are
	//
	//   - [ErrConflict] if the item was not as seen: nothing was written, and never will be;
	//   - [ErrTooLarge], [ErrKey] and [ErrFull]: nothing was written;
	//   - any other error if the outcome is unknown: the write may have happened, may happen later,
	//     or never.
	Swap(ctx context.Context, seen Item, value, note []byte) (Item, error)

	// Delete removes the item if it is still as seen. Its errors are those of Swap. If seen is not
	// Live, it returns [ErrConflict] and deletes nothing.
	//
	// A store may forget deleted items. Then a Swap succeeds whose process saw the item absent,
	// although the item was written and deleted since. Where that matters, write an empty item instead.
	Delete(ctx context.Context, seen Item) error

	// List returns the live items whose keys begin with prefix, in any order, each at most once. An
	// item that is created or deleted while List runs may be missing. An item that is replaced is
	// not missing. What another program has written may be missing, and need not be an error. An
	// error is the last element. The caller may call the store between two items,
	// also Swap and Delete. Value and Note are set if [Facts.ListsWhole].
	List(ctx context.Context, prefix string) iter.Seq2[Item, error]

	// Facts returns what the store promises. It asks the store for the source each time.
	Facts(ctx context.Context) (Facts, error)
}

// Watcher is a [Store] that reports changes, and whose items have a Number.
type Watcher interface {
	Store

	// Watch returns the live items whose keys begin with prefix, then one Item without a Key, and then
	// each item that is written or deleted, until ctx ends. It may be late, and leave out all but the
	// last of several changes of an item. After a connection was lost it continues, or ends with an
	// error as its last element. Notes are not set. Swap and Delete accept these items
	// nevertheless.
	Watch(ctx context.Context, prefix string) iter.Seq2[Item, error]
}

// BatchGetter is a [Store] that reads several items in one request.
type BatchGetter interface {
	Store

	// GetAll returns the items with these keys, in this order, each as Get returns it. The caller
	// gives no key twice. It returns an error if it cannot read one of them.
	GetAll(ctx context.Context, keys []string) ([]Item, error)
}

// BatchSwapper is a [Store] that writes several items in one request. Call [SwapAll], which works with every
// store.
type BatchSwapper interface {
	Store

	// SwapAll does for each of the writes what Swap does, and returns their results in the same order. Each
	// item is compared and written by itself: one that is refused does not keep the others from being
	// written, and readers may see some of the writes before the others. Each result has an error of Swap. An
	// answer that is lost leaves the outcomes of those writes unknown that it was about, and each such
	// write may have happened or not. The caller gives no key twice.
	SwapAll(ctx context.Context, writes []Write) []Written
}

// Expirer is a [Store] that can delete an item by itself.
type Expirer interface {
	Store

	// SwapFor is Swap, and the store deletes the item if nobody has replaced it within ttl. It may do
	// so later, or not at all.
	SwapFor(ctx context.Context, seen Item, value []byte, ttl time.Duration) (Item, error)
}

// Clock is a [Store] that returns the time of its server.
type Clock interface {
	Store

	// Now returns the time by the server's wall clock.
	Now(ctx context.Context) (time.Time, error)
}

// Item is one item of a store.
type Item struct {
	// Key is any string of 1 to [Facts.MaxKey] bytes.
	Key string

	// Live reports whether the item exists.
	Live bool

	// Value and Note are written together. Other programs, which read the store without a driver,
	// see only Value, wherever the store can keep the note beside it.
	Value, Note []byte

	// Version names the write by which the item got this state. No other write has it, see
	// [Facts.Repeats]. An item that is not Live has a version only if the store remembers its
	// deletion.
	Version string

	// Number grows with each write of the item, also after a deletion. It may fall once the store
	// has lost writes. It is 0 unless [Facts.Numbers].
	Number int64
}

// NewItem returns a live item with copies of value and note. Drivers use it for what Swap writes
// and returns, because a request may outlive the call if the context ends.
func NewItem(key string, value, note []byte) Item {
	return Item{Key: key, Live: true, Value: append([]byte{}, value...), Note: append([]byte{}, note...)}
}

// Facts describes a store: what it promises, and its limits in bytes.
type Facts struct {
	// Source identifies the items. It changes when the store is replaced by an empty one or by a
	// restored backup, as far as the store can notice that.
	Source string

	// Forgets reports that a failover, or a crash of the server, may lose acknowledged writes.
	Forgets bool

	// Repeats reports that a version may name another write once the store has lost writes, by a
	// failover or a restored backup.
	Repeats bool

	// Numbers reports that items have a Number.
	Numbers bool

	// ListsWhole reports that List sets Value and Note.
	ListsWhole bool

	// MaxKey, MaxValue and MaxNote are the limits of an item. 0 means no limit.
	MaxKey, MaxValue, MaxNote int
}

var (
	// ErrConflict is returned by Swap and Delete when the item was not as seen.
	ErrConflict = errors.New("the item has changed")

	// ErrTooLarge is returned by Swap when a value exceeds [Facts.MaxValue], or a note
	// [Facts.MaxNote].
	ErrTooLarge = errors.New("the item is too large")

	// ErrFull is returned by Swap when the store reports that it has no space or capacity for the write.
	ErrFull = errors.New("the store is full")

	// ErrForeign is returned by Get when another program has written what is there, and the driver
	// cannot take it as an item. Swap and Delete do not change it. The error names what was found, and
	// how to get rid of it.
	ErrForeign = errors.New("another program has written it")

	// ErrUnsuitable is returned by Facts when a driver finds settings with which the store does not keep
	// what this package promises. The error names the change that is needed.
	ErrUnsuitable = errors.New("the store's settings lose items")

	// ErrKey is returned when a key is empty or longer than [Facts.MaxKey].
	ErrKey = errors.New("the store cannot have this key")
)

// Check returns [ErrKey] or [ErrTooLarge] if the store cannot have the item. Drivers call it before
// they send anything.
func (f Facts) Check(key string, value, note []byte) error {
	switch {
	case key == "":
		return fmt.Errorf("%w: it is empty", ErrKey)
	case f.MaxKey > 0 && len(key) > f.MaxKey:
		return fmt.Errorf("%w: it has %d bytes, the limit is %d", ErrKey, len(key), f.MaxKey)
	case f.MaxValue > 0 && len(value) > f.MaxValue:
		return fmt.Errorf("%w: the value has %d bytes, the limit is %d", ErrTooLarge, len(value), f.MaxValue)
	case f.MaxNote > 0 && len(note) > f.MaxNote:
		return fmt.Errorf("%w: the note has %d bytes, the limit is %d", ErrTooLarge, len(note), f.MaxNote)
	}
	return nil
}
