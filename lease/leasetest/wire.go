package leasetest

import (
	"context"
	"errors"
	"iter"
	"strings"
	"sync"

	"github.com/epochfence/epochfence/cas"
)

var errWire = errors.New("the connection was lost")

// wire is one member's way to the store, on which requests and answers are lost, late or old.
type wire struct {
	store cas.Store

	mu      sync.Mutex
	isCut   bool
	mended  chan struct{}       // closed when the wire is whole again
	faults  []fault             // of the next writes to matching keys
	old     map[string]cas.Item // answers of a lagging replica
	lags    bool
	counted int
}

// fault is what happens to one write whose key contains in.
type fault struct {
	in      string
	request bool            // the request is lost
	until   <-chan struct{} // the write is carried out once this is closed; its sender gets an error at once
	done    chan<- error    // gets the late write's result
}

func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.isCut, w.mended = true, make(chan struct{})
}

func (w *wire) mend() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.isCut = false
	close(w.mended)
}

// cutOff cuts the wire unless it is cut.
func (w *wire) cutOff() {
	if w.mu.Lock(); w.isCut {
		w.mu.Unlock()
		return
	}
	w.mu.Unlock()
	w.cut()
}

// whole mends the wire if it is cut.
func (w *wire) whole() {
	if w.mu.Lock(); !w.isCut {
		w.mu.Unlock()
		return
	}
	w.mu.Unlock()
	w.mend()
}

func (w *wire) next(f fault) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.faults = append(w.faults, f)
}

// pass counts a request, and fails while the wire is cut.
func (w *wire) pass(ctx context.Context) error {
	w.mu.Lock()
	cut := w.isCut
	w.counted++
	w.mu.Unlock()
	if cut {
		<-ctx.Done()
		return errors.Join(errWire, ctx.Err())
	}
	return ctx.Err()
}

func (w *wire) faultOf(key string) (fault, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, f := range w.faults {
		if strings.Contains(key, f.in) {
			w.faults = append(w.faults[:i:i], w.faults[i+1:]...)
			return f, true
		}
	}
	return fault{}, false
}

// write carries out a write, or the fault that was set for it.
func (w *wire) write(ctx context.Context, key string, do func(context.Context) error) error {
	if err := w.pass(ctx); err != nil {
		return err
	}
	f, faulty := w.faultOf(key)
	switch {
	case !faulty:
		return do(ctx)
	case f.request:
		return errWire
	case f.until != nil:
		go func() {
			<-f.until
			f.done <- do(context.WithoutCancel(ctx))
		}()
		return errWire
	}
	if err := do(ctx); err != nil {
		return err
	}
	return errWire
}

func (w *wire) Facts(ctx context.Context) (cas.Facts, error) {
	if err := w.pass(ctx); err != nil {
		return cas.Facts{}, err
	}
	return w.store.Facts(ctx)
}

func (w *wire) Get(ctx context.Context, key string) (cas.Item, error) {
	if err := w.pass(ctx); err != nil {
		return cas.Item{}, err
	}
	item, err := w.store.Get(ctx, key)
	if err != nil {
		return item, err
	}
	return w.lag(item), nil
}

// lag returns each second answer of a key from before.
func (w *wire) lag(item cas.Item) cas.Item {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.lags {
		return item
	}
	if w.old == nil {
		w.old = map[string]cas.Item{}
	}
	if was, ok := w.old[item.Key]; ok && was.Version != item.Version {
		delete(w.old, item.Key)
		return was
	}
	w.old[item.Key] = item
	return item
}

func (w *wire) Swap(ctx context.Context, seen cas.Item, value, note []byte) (cas.Item, error) {
	value = append([]byte{}, value...)
	var made cas.Item // also written when the write lands late
	err := w.write(ctx, seen.Key, func(ctx context.Context) (err error) {
		made, err = w.store.Swap(ctx, seen, value, note)
		return err
	})
	if err != nil {
		return cas.Item{}, err
	}
	return made, nil
}

func (w *wire) Delete(ctx context.Context, seen cas.Item) error {
	return w.write(ctx, seen.Key, func(ctx context.Context) error { return w.store.Delete(ctx, seen) })
}

func (w *wire) List(ctx context.Context, prefix string) iter.Seq2[cas.Item, error] {
	return func(yield func(cas.Item, error) bool) {
		if err := w.pass(ctx); err != nil {
			yield(cas.Item{}, err)
			return
		}
		for item, err := range w.store.List(ctx, prefix) {
			if err == nil {
				item = w.lag(item)
			}
			if !yield(item, err) {
				return
			}
		}
	}
}

// watchedWire is the wire of a store that reports changes, none of which passes while it is cut.
type watchedWire struct {
	*wire
	watcher cas.Watcher
}

func (w watchedWire) Watch(ctx context.Context, prefix string) iter.Seq2[cas.Item, error] {
	return func(yield func(cas.Item, error) bool) {
		if err := w.pass(ctx); err != nil {
			yield(cas.Item{}, err)
			return
		}
		for item, err := range w.watcher.Watch(ctx, prefix) {
			w.mu.Lock()
			cut, mended := w.isCut, w.mended
			w.mu.Unlock()
			if cut {
				select {
				case <-mended:
				case <-ctx.Done():
				}
			}
			if !yield(item, err) {
				return
			}
		}
	}
}

func (w *wire) hasFault() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.faults) > 0
}

// cutAfter cuts the wire once do has sent the write that has a fault.
func (w *wire) cutAfter(do func()) {
	do()
	w.cut()
}
