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

// This file lists items, decides whether the replica that has answered lags behind the leader, and reports
// changes through a watcher of nats.go. Facts notices that the bucket was deleted.

// page is the number of items that List fetches at a time.
const page = 256

// List implements [cas.Store].
func (s *Store) List(ctx context.Context, prefix string) iter.Seq2[cas.Item, error] {
	return func(yield func(cas.Item, error) bool) {
		for item, err := range s.list(ctx, prefix) {
			if err != nil {
				yield(cas.Item{}, failed("list", prefix, jsapi.Denied(s.js.Conn(), jsapi.Prefix(s.js), err)))
				return
			}
			if item.Live && strings.HasPrefix(item.Key, prefix) && !yield(item, nil) {
				return
			}
		}
	}
}

// list returns the last message of each subject that may have the prefix. A consumer delivers them in
// the order of their sequences. It leaves out those that are replaced before it comes to them, and the
// server places it on any replica, which may lag behind. So the bucket's leader is asked for the last
// sequence, before and after: if it has changed, or the consumer has not delivered it, those that did
// not come are read one by one.
func (s *Store) list(ctx context.Context, prefix string) iter.Seq2[cas.Item, error] {
	return func(yield func(cas.Item, error) bool) {
		l := &listing{store: s, filter: s.filter(prefix), came: map[string]bool{}}
		var err error
		if l.end, err = s.end(ctx, l.filter); err == nil && l.end > 0 {
			err = l.items(ctx, yield)
		}
		if err != nil {
			yield(cas.Item{}, err)
		}
	}
}

// end returns the sequence of the last message of a filter that the bucket's leader has, or 0.
func (s *Store) end(ctx context.Context, filter string) (uint64, error) {
	ctx, cancel := limited(ctx)
	defer cancel()
	m, err := s.ask(ctx, map[string]any{"last_by_subj": filter, "no_hdr": true})
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return 0, nil
	}
	return m.Sequence, err
}

// listing is the state of a list.
type listing struct {
	store  *Store
	filter string
	end    uint64          // the last sequence at the beginning
	came   map[string]bool // whether the message of a subject that has come is an item
	whole  bool            // the consumer was on a replica that had everything up to end
}

// replicas is the number of consumers that a list makes until one is on a replica that does not lag.
const replicas = 3

// items yields all items, unless the reader wants no more.
func (l *listing) items(ctx context.Context, yield func(cas.Item, error) bool) error {
	for n := 0; n < replicas && !l.whole; n++ {
		if more, err := l.lasts(ctx, yield); err != nil || !more {
			return err
		}
	}
	if now, err := l.store.end(ctx, l.filter); err != nil || l.whole && now == l.end {
		return err
	}
	return l.others(ctx, yield)
}

// lasts yields what a consumer delivers of what was in the bucket at the beginning. more is false if
// the reader wants no more.
func (l *listing) lasts(ctx context.Context, yield func(cas.Item, error) bool) (more bool, err error) {
	js, in := l.store.js, l.store.stream()
	c, err := js.CreateConsumer(ctx, in, jetstream.ConsumerConfig{
		FilterSubject: l.filter, DeliverPolicy: jetstream.DeliverLastPerSubjectPolicy,
		AckPolicy: jetstream.AckNonePolicy, MemoryStorage: true, Replicas: 1, InactiveThreshold: time.Minute,
	})
	if err != nil {
		return false, err
	}
	defer func() { // without it the server deletes the consumer after a minute
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = js.DeleteConsumer(ctx, in, c.CachedInfo().Name)
	}()
	received, silences := uint64(0), 0
	for pending := c.CachedInfo().NumPending; pending > 0; {
		p, err := cas.Await(ctx, func() (fetched, error) { return l.store.page(c) })
		for _, m := range p.messages {
			if m.number != received+1 { // messages were lost on their way
				return true, nil
			}
			received, pending = m.number, m.pending
			if uint64(m.item.Number) >= l.end {
				l.whole = true
			}
			if uint64(m.item.Number) > l.end {
				return true, nil
			}
			if l.came[m.subject] {
				continue
			}
			if l.came[m.subject] = m.item.Live; !yield(m.item, nil) {
				return false, nil
			}
		}
		switch {
		case err != nil:
			return false, err
		case l.whole:
			return true, nil
		case p.silent:
			if silences++; silences == 3 {
				return false, nats.ErrTimeout
			}
		case len(p.messages) == 0: // what was pending is gone, or was lost on its way
			return true, nil
		}
	}
	return true, nil
}

// others yields the items of the subjects that are in the bucket and did not come. A deletion that a
// lagging replica has delivered may be older than the item.
func (l *listing) others(ctx context.Context, yield func(cas.Item, error) bool) error {
	stream, err := l.store.js.Stream(ctx, l.store.stream())
	if err != nil {
		return err
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(l.filter))
	switch {
	case err != nil:
		return err
	case !jsapi.Leads(info.Cluster, info.Config.Replicas):
		return fmt.Errorf("the list may not be whole: %w", jsapi.ErrNoLeader)
	}
	for subject := range info.State.Subjects {
		key, ok := l.store.key(subject)
		if live, came := l.came[subject]; !ok || live || came && l.whole {
			continue
		}
		item, err := l.store.get(ctx, key)
		if err != nil {
			return err
		}
		if !yield(item, nil) {
			return nil
		}
	}
	return nil
}

// fetched is a page of a list. It is silent if the server has not reported that there is no more.
type fetched struct {
	messages []listed
	silent   bool
}

// listed is a message that a consumer has delivered: its subject, the item, its number among those
// delivered, and how many are pending after it. A stranger's key, which no key of the store has, is an item that is
// not Live.
type listed struct {
	subject         string
	item            cas.Item
	number, pending uint64
}

// silence is less than the second after which nats.go ends a fetch as if the server had answered.
const silence = 900 * time.Millisecond

// page returns the next messages, or none at the end. It does not wait for more: messages that were
// pending are gone once they are replaced.
func (s *Store) page(c jetstream.Consumer) (p fetched, err error) {
	batch, err := c.FetchNoWait(page)
	if err != nil {
		return p, err
	}
	last := time.Now()
	for m := range batch.Messages() {
		l, err := s.listed(m)
		if err != nil {
			return p, err
		}
		p.messages, last = append(p.messages, l), time.Now()
	}
	p.silent = len(p.messages) < page && time.Since(last) > silence
	return p, batch.Error()
}

func (s *Store) listed(m jetstream.Msg) (listed, error) {
	meta, err := m.Metadata()
	if err != nil {
		return listed{}, err
	}
	l := listed{m.Subject(), cas.Item{Number: int64(meta.Sequence.Stream)}, meta.Sequence.Consumer, meta.NumPending}
	if key, ok := s.key(m.Subject()); ok {
		if found, err := item(key, meta.Sequence.Stream, m.Headers(), m.Data()); err == nil { // otherwise somebody else's
			l.item = found
		}
	}
	return l, nil
}

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
