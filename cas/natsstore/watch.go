package natsstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/internal/jsapi"
)

// This file reports changes through a watcher of nats.go. Facts notices that the bucket was
// deleted.

// Watch implements [cas.Watcher]. It ends with an error if the bucket does not exist. It does not
// notice that the bucket is deleted later: see Facts. Where a replica lags, it begins again, and yields
// some items once more: the server may place the watcher on another replica.
func (s *Store) Watch(ctx context.Context, prefix string) iter.Seq2[cas.Item, error] {
	return func(yield func(cas.Item, error) bool) {
		err, live := jsapi.ErrLags, map[string]bool{}
		for n := 0; n < replicas && errors.Is(err, jsapi.ErrLags); n++ {
			err = s.watch(ctx, prefix, live, func(item cas.Item) bool { return yield(item, nil) })
		}
		if err != nil {
			yield(cas.Item{}, failed("watch", prefix, err))
		}
	}
}

// watch adds the keys that it yields before the watch has begun to live.
func (s *Store) watch(ctx context.Context, prefix string, live map[string]bool, yield func(cas.Item) bool) error {
	end, err := s.end(ctx, s.filter(prefix))
	if err != nil {
		return jsapi.Denied(s.js.Conn(), jsapi.Prefix(s.js)+"STREAM.MSG.GET.", err)
	}
	ctx, cancel := context.WithCancel(ctx) // cancel ends the watcher
	w, err := s.watcher(ctx, cancel, prefix)
	if err != nil {
		cancel()
		return err
	}
	defer func() {
		cancel()
		go drain(w.Updates())
	}()
	// The watcher says that it has delivered everything, but may be on a replica that lags. The watch
	// begins once it has delivered the end, or the leader has it no more.
	began, said, reached := false, false, uint64(0)
	var look, late <-chan time.Time
	for {
		if !began && said && reached >= end {
			if began, live, look, late = true, nil, nil, nil; !yield(cas.Item{}) {
				return nil
			}
		}
		select {
		case e, ok := <-w.Updates():
			if !ok {
				return cmp.Or(ctx.Err(), jsapi.ErrWatchEnded)
			}
			if e == nil {
				said, look, late = true, time.Tick(leastWait), time.After(2*leastWait)
				continue
			}
			reached = max(reached, e.Revision())
			item, known := s.watched(e)
			switch {
			case !known || !strings.HasPrefix(item.Key, prefix) || !began && !item.Live && !live[item.Key]:
				continue
			case !began:
				live[item.Key] = true
			}
			if !yield(item) {
				return nil
			}
		case <-look:
			if end, err = s.end(ctx, s.filter(prefix)); err != nil {
				return err
			}
		case <-late:
			return fmt.Errorf("%w: it has delivered sequence %d, and the leader has %d", jsapi.ErrLags, reached, end)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// watchLimit is less than the time for which package lease waits for anything to come: a server that
// forbids the consumer does not answer, and is named then.
const watchLimit = requestLimit * 4 / 5

// watcher starts a watcher that lives as long as ctx, which cancel ends. Nothing else limits its
// start.
func (s *Store) watcher(ctx context.Context, cancel func(), prefix string) (jetstream.KeyWatcher, error) {
	begins := jsapi.Prefix(s.js)
	looking, looked := context.WithTimeout(ctx, requestLimit)
	kv, err := s.js.KeyValue(looking, s.o.Bucket)
	looked()
	started := time.AfterFunc(watchLimit, cancel)
	var w jetstream.KeyWatcher
	if err == nil {
		begins += "CONSUMER."
		w, err = kv.WatchFiltered(ctx, []string{strings.TrimPrefix(s.filter(prefix), s.prefix())})
	}
	if !started.Stop() {
		if err == nil {
			go drain(w.Updates())
		}
		err = fmt.Errorf("start a watch: %w", context.DeadlineExceeded)
	}
	if err != nil {
		return nil, jsapi.Denied(s.js.Conn(), begins, ofJetStream(err))
	}
	return w, nil
}

// drain takes what the callback of a watcher that was ended waits to hand over. nats.go does not
// close the channel if the watcher was ended while it started.
func drain(updates <-chan jetstream.KeyValueEntry) {
	for limit := time.After(drainLimit); ; {
		select {
		case _, ok := <-updates:
			if !ok {
				return
			}
		case <-limit:
			return
		}
	}
}

const drainLimit = 10 * time.Second

func (s *Store) watched(e jetstream.KeyValueEntry) (cas.Item, bool) {
	key, ok := s.key(s.prefix() + e.Key())
	item := cas.Item{Key: key, Version: strconv.FormatUint(e.Revision(), 10), Number: int64(e.Revision())}
	if e.Operation() == jetstream.KeyValuePut {
		item.Live, item.Value = true, e.Value()
	}
	return item, ok
}

// ofJetStream converts an error of nats.go's older package, which also makes the watchers of
// package jetstream, to one of package jetstream.
func ofJetStream(err error) error {
	var old *nats.APIError
	if !errors.As(err, &old) {
		return err
	}
	return &jetstream.APIError{Code: old.Code, ErrorCode: jetstream.ErrorCode(old.ErrorCode), Description: old.Description}
}
