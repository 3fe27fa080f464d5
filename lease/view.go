package lease

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/internal/waits"
)

// This file keeps the picture of the group's keys up to date. What follows from the picture is
// decided in balance.go.

// view keeps a picture of the group's keys. It follows the changes of a [cas.Watcher], and lists the
// keys of another store again and again.
type view struct {
	store   cas.Store
	keys    keys
	ttl     time.Duration
	wake    *waits.Signal // fires at every change that matters
	again   chan struct{} // asks for a full read
	trouble func(what string, err error)
	well    func()
	asked   func(err error) // gets what Facts has returned

	whole  bool                // List sets values
	source string              // of the store that is watched; belongs to follow
	looked time.Time           // when the facts were last asked for; belongs to run
	read   map[string]cas.Item // the items of the last list, where it does not; belongs to readAll

	mu    sync.Mutex
	now   *picture
	suits time.Time // when suitable last asked
}

func (v *view) snapshot() *picture {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.now.clone()
}

func (v *view) hasEnded(id string) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.now.members[id].Ended
}

// sinceJoin returns how long ago a member was first seen.
func (v *view) sinceJoin() time.Duration {
	v.mu.Lock()
	defer v.mu.Unlock()
	last := time.Time{}
	for _, r := range v.now.members {
		if r.first.After(last) {
			last = r.first
		}
	}
	return time.Since(last)
}

func (v *view) refresh() { waits.Notify(v.again) }

// learn records an answer of the store. It reports false if the answer is older than the view: then the
// store may be another one.
func (v *view) learn(item cas.Item) bool {
	late := v.apply(item)
	if late {
		v.refresh()
	}
	return !late
}

// fullReads is the number of TTLs between two full reads of a store that reports changes.
const fullReads = 4

// readLimit limits a request. A full read ends if nothing comes for as long.
const readLimit = 5 * time.Second

// whileItComes returns a context that ends if readLimit passes without a call of came.
func whileItComes(ctx context.Context) (_ context.Context, came, cancel func()) {
	ctx, end := context.WithCancelCause(ctx)
	timer := time.AfterFunc(readLimit, func() { end(context.DeadlineExceeded) })
	return ctx, func() { timer.Reset(readLimit) }, func() { timer.Stop(); end(nil) }
}

// run follows the store until ctx ends.
func (v *view) run(ctx context.Context) {
	for ctx.Err() == nil {
		var err error
		if w, ok := v.store.(cas.Watcher); ok {
			err = v.follow(ctx, w)
		} else {
			err = v.poll(ctx)
		}
		if err != nil && ctx.Err() == nil {
			v.source = "" // so that it is asked, which creates a store that is gone
			v.trouble("cannot read the keys of the group, trying again", err)
			waits.Sleep(ctx, waits.Jitter(v.ttl/10))
		}
	}
}

// poll lists the keys every tenth of the TTL.
func (v *view) poll(ctx context.Context) error {
	for ctx.Err() == nil {
		if time.Since(v.looked) >= v.ttl {
			v.askSource(ctx)
		}
		if err := v.readAll(ctx); err != nil {
			return err
		}
		v.well()
		timer := time.NewTimer(waits.Jitter(v.ttl / 10))
		select {
		case <-timer.C:
		case <-v.again:
		case <-ctx.Done():
		}
		timer.Stop()
	}
	return nil
}

func (v *view) readAll(ctx context.Context) error {
	ctx, came, cancel := whileItComes(ctx)
	defer cancel()
	asked, fresh, read := time.Now(), newPicture(), map[string]cas.Item{}
	for item, err := range v.store.List(ctx, v.keys.prefix) {
		came()
		if err == nil && !v.whole {
			item, err = v.fill(ctx, item)
			read[item.Key] = item
		}
		if err != nil {
			return cmp.Or(context.Cause(ctx), err)
		}
		fresh.apply(v.keys, item, asked)
	}
	v.read = read
	v.replace(fresh, asked)
	return nil
}

// fill reads a listed item, unless its version was read before.
func (v *view) fill(ctx context.Context, item cas.Item) (cas.Item, error) {
	if was, ok := v.read[item.Key]; ok && was.Version == item.Version {
		return was, nil
	}
	return v.store.Get(ctx, item.Key)
}

// replace installs a full read. It does not compare numbers: the store may be another one, and if a
// lagging replica has answered, swaps will say so.
func (v *view) replace(fresh *picture, asked time.Time) {
	v.mu.Lock()
	fresh.keep(v.now, asked)
	v.now = fresh
	v.mu.Unlock()
	v.wake.Fire()
}

// follow reads everything and then applies changes until the next full read is due. Changes do not
// show that the store was emptied or restored from a backup, so follow asks for its source once a TTL
// and returns if it is another one.
func (v *view) follow(ctx context.Context, w cas.Watcher) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if v.source == "" {
		v.source = v.askSource(ctx)
	}
	changes := v.watch(ctx, w)
	if err := v.readChanges(ctx, changes); err != nil {
		return err
	}
	v.well()
	look := time.NewTicker(waits.Jitter(v.ttl))
	defer look.Stop()
	due := time.NewTimer(waits.Jitter(fullReads * v.ttl))
	defer due.Stop()
	for {
		select {
		case c := <-changes:
			if c.err != nil {
				return c.err
			}
			v.apply(c.item)
		case <-look.C:
			if now := v.askSource(ctx); now != "" && now != v.source {
				v.source = now
				return nil
			}
		case <-due.C:
			return nil
		case <-v.again:
			return nil
		case <-ctx.Done():
			return nil
		}
	}
}

// askSource returns the store's source, or "" if it is not known.
func (v *view) askSource(ctx context.Context) string {
	v.looked = time.Now()
	facts, _ := v.facts(ctx)
	return facts.Source
}

// facts asks the store what it promises now.
func (v *view) facts(ctx context.Context) (cas.Facts, error) {
	ctx, cancel := context.WithTimeout(ctx, min(readLimit, v.ttl/3))
	defer cancel()
	facts, err := v.store.Facts(ctx)
	v.asked(err)
	return facts, err
}

// suitable returns [cas.ErrUnsuitable] if the store can forget items. Members call it before they act on
// the absence of a key. It asks each tenth of TTL at most.
func (v *view) suitable(ctx context.Context) error {
	v.mu.Lock()
	due := time.Since(v.suits) >= v.ttl/10
	if due {
		v.suits = time.Now()
	}
	v.mu.Unlock()
	if !due {
		return nil
	}
	if _, err := v.facts(ctx); errors.Is(err, cas.ErrUnsuitable) {
		return err
	}
	return nil
}

// change is an item that a watcher yields, or the error with which it ends.
type change struct {
	item cas.Item
	err  error
}

var errWatchEnded = errors.New("the watch has ended")

// watch starts a watch that ends with ctx.
func (v *view) watch(ctx context.Context, w cas.Watcher) <-chan change {
	changes := make(chan change, mostMoving)
	send := func(c change) bool {
		select {
		case changes <- c:
			return true
		case <-ctx.Done():
			return false
		}
	}
	go func() {
		for item, err := range w.Watch(ctx, v.keys.prefix) {
			if !send(change{item, err}) || err != nil {
				return
			}
		}
		send(change{err: errWatchEnded})
	}()
	return changes
}

// readChanges replaces the view by what a watch yields first.
func (v *view) readChanges(ctx context.Context, changes <-chan change) error {
	ctx, came, cancel := whileItComes(ctx)
	defer cancel()
	asked, fresh := time.Now(), newPicture()
	for {
		select {
		case c := <-changes:
			came()
			switch {
			case c.err != nil:
				return c.err
			case c.item.Key == "":
				v.replace(fresh, asked)
				return nil
			}
			fresh.apply(v.keys, c.item, asked)
		case <-ctx.Done():
			return fmt.Errorf("read the keys of the group: %w", context.Cause(ctx))
		}
	}
}

func (v *view) apply(item cas.Item) (late bool) {
	v.mu.Lock()
	changed, late := v.now.apply(v.keys, item, time.Now())
	v.mu.Unlock()
	if changed {
		v.wake.Fire()
	}
	return late
}

// ask asks the store what it promises.
func (v *view) ask(ctx context.Context) error {
	facts, err := v.store.Facts(ctx)
	v.whole = facts.ListsWhole
	return err
}

// start reads everything once.
func (v *view) start(ctx context.Context) error {
	w, ok := v.store.(cas.Watcher)
	if !ok {
		return v.readAll(ctx)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	return v.readChanges(ctx, v.watch(ctx, w))
}
