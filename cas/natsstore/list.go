package natsstore

import (
	"context"
	"iter"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/internal/jsapi"
)

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

// list returns the last message of each subject that may have the prefix. The consumer leaves out
// those that are replaced before it comes to them, and delivers what replaces them after all others,
// if it has not been replaced as well. So if anything was written meanwhile, or messages were lost with
// a connection, those that did not come are read one by one.
func (s *Store) list(ctx context.Context, prefix string) iter.Seq2[cas.Item, error] {
	return func(yield func(cas.Item, error) bool) {
		stream, err := s.js.Stream(ctx, s.stream())
		if err != nil {
			yield(cas.Item{}, err)
			return
		}
		l := &listing{store: s, stream: stream, filter: s.filter(prefix), came: map[string]bool{}}
		more, err := l.lasts(ctx, yield)
		if err == nil && more {
			err = l.others(ctx, yield)
		}
		if err != nil {
			yield(cas.Item{}, err)
		}
	}
}

// listing is the state of a list. came are the subjects of the messages that have come.
type listing struct {
	store  *Store
	stream jetstream.Stream
	filter string
	came   map[string]bool
	lost   bool // messages were lost on their way
}

// lasts yields what a consumer delivers of what was in the bucket at the beginning. more is false if
// the reader wants no more.
func (l *listing) lasts(ctx context.Context, yield func(cas.Item, error) bool) (more bool, err error) {
	c, err := l.stream.CreateConsumer(ctx, jetstream.ConsumerConfig{
		FilterSubject: l.filter, DeliverPolicy: jetstream.DeliverLastPerSubjectPolicy,
		AckPolicy: jetstream.AckNonePolicy, MemoryStorage: true, Replicas: 1, InactiveThreshold: time.Minute,
	})
	if err != nil {
		return false, err
	}
	defer func() { // without it the server deletes the consumer after a minute
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = l.stream.DeleteConsumer(ctx, c.CachedInfo().Name)
	}()
	begin := int64(l.stream.CachedInfo().State.LastSeq)
	received, silences := uint64(0), 0
	for pending := c.CachedInfo().NumPending; pending > 0; {
		p, err := cas.Await(ctx, func() (fetched, error) { return l.store.page(c) })
		for _, m := range p.messages {
			if m.number != received+1 {
				l.lost = true
				return true, nil
			}
			received, pending = m.number, m.pending
			if m.item.Number > begin {
				return true, nil
			}
			if l.came[m.subject] = true; !yield(m.item, nil) {
				return false, nil
			}
		}
		switch {
		case err != nil:
			return false, err
		case p.silent:
			if silences++; silences == 3 {
				return false, nats.ErrTimeout
			}
		case len(p.messages) == 0: // what was pending is gone, or was lost on its way
			info, err := c.Info(ctx)
			if err != nil {
				return false, err
			}
			l.lost = info.Delivered.Consumer != received
			return true, nil
		}
	}
	return true, nil
}

// others yields the items of the subjects that are in the bucket and did not come.
func (l *listing) others(ctx context.Context, yield func(cas.Item, error) bool) error {
	begin := l.stream.CachedInfo().State.LastSeq
	info, err := l.stream.Info(ctx)
	if err != nil || info.State.LastSeq == begin && !l.lost {
		return err
	}
	if info, err = l.stream.Info(ctx, jetstream.WithSubjectFilter(l.filter)); err != nil {
		return err
	}
	for subject := range info.State.Subjects {
		key, ok := l.store.key(subject)
		if !ok || l.came[subject] {
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

// fetched is a page of a list. It is silent if the server has not said that there is no more.
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
