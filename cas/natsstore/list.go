package natsstore

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/internal/jsapi"
)

// This file lists items, and decides whether the replica that has answered lags behind the leader.

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
