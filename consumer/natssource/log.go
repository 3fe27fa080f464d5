package natssource

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/semaphore"

	"github.com/epochfence/epochfence/internal/jsapi"
)

// This file knows a stream as its leader sees it, for all readers of the stream: whether its settings
// and limits fit, where it begins and ends. It accepts no answer of a replica (L3). What an answer
// means for a position is decided in open.go, gaps.go and skip.go.

const (
	// skipEvery is how often [reader.skip] runs for a partition that has nothing to deliver.
	skipEvery = 10 * time.Second

	watchEvery = 5 * time.Second

	askTimeout = 5 * time.Second
)

// ErrRetention is returned for a stream that deletes messages once they are acknowledged. The sink
// keeps the position, and may need those messages again.
var ErrRetention = errors.New("the stream deletes what was acknowledged; read it from a new stream with limits retention that sources this one; the retention of an interest stream can also be changed (nats stream edit STREAM --retention limits)")

// incarnation is one life of a stream, from its creation to its deletion.
type incarnation struct{ created int64 } // by the server's clock, in nanoseconds

func incarnationOf(info *jetstream.StreamInfo) incarnation {
	return incarnation{info.Created.UnixNano()}
}

// streamLog is a stream whose partitions are read. Its methods are safe for concurrent use.
type streamLog struct {
	js      jetstream.JetStream
	group   string
	stream  Stream
	filters []string // by partition; an empty filter matches the whole stream
	budget  *budget
	flight  *flight
	log     *slog.Logger
	ttl     time.Duration // of the lease
	asking  inquiry[*jetstream.StreamInfo]
	durable inquiry[durableInfo] // of the consumer that did this work before
	mirror  mirrorGaps
	lags    []atomic.Int64
	large   []atomic.Uint64 // by partition: the position at which a large message was last logged
	keeps   atomic.Int64    // how long the server is to keep a consumer that requests nothing, in nanoseconds

	skipEvery time.Duration
	renewed   func() // called when the stream was created again; set before anything else

	first incarnation

	mu     sync.Mutex
	latest incarnation
	maxAge time.Duration
	last   sighting
}

// sighting is the state of a stream as its leader reported it.
type sighting struct {
	info  *jetstream.StreamInfo // read-only
	asked time.Time             // info is no older
}

// openLog checks the stream. All streams of a source share one flight.
func openLog(ctx context.Context, o Options, s Stream, f *flight) (*streamLog, error) {
	l := &streamLog{
		js: o.JetStream, group: o.Group, stream: s, budget: newBudget(o.BufferBytes / max(len(o.Streams), 1)),
		flight: f, log: o.Logger, ttl: o.LeaseTTL,
		skipEvery: skipEvery, renewed: func() {}, mirror: mirrorGaps{asking: semaphore.NewWeighted(1)},
	}
	l.asking.ask, l.durable.ask = l.request, l.requestDurable
	if err := l.open(ctx); err != nil {
		return nil, fmt.Errorf("natssource: stream %q: %w", s.Name, err)
	}
	return l, nil
}

func (l *streamLog) open(ctx context.Context) error {
	var err error
	switch {
	case l.stream.Transform != nil:
		if l.filters, err = l.stream.Transform.filters(); err != nil {
			return err
		}
	case len(l.stream.Filters) > 0:
		l.filters = l.stream.Filters
	default:
		l.filters = []string{""}
	}
	l.lags, l.large = make([]atomic.Int64, len(l.filters)), make([]atomic.Uint64, len(l.filters))
	info, err := l.asking.answer(ctx)
	if err != nil {
		return err
	}
	l.latest, l.maxAge = incarnationOf(info), info.Config.MaxAge
	l.first = l.latest
	l.note(info)
	if err := checkLimits(info.Config, len(l.filters)); err != nil {
		return err
	}
	return checkStream(info, l.stream)
}

func checkStream(info *jetstream.StreamInfo, s Stream) error {
	c := info.Config
	if c.Retention != jetstream.LimitsPolicy {
		return fmt.Errorf("it has %v retention: %w", c.Retention, ErrRetention)
	}
	if s.Transform != nil {
		if differs := s.Transform.differs(info); differs != nil {
			return differs
		}
		return nil
	}
	return checkFilters(s.Filters, storedSubjects(c))
}

// storedSubjects returns patterns of the subjects that a stream may hold; nil: not known.
func storedSubjects(c jetstream.StreamConfig) []string {
	if c.Mirror != nil || len(c.Sources) > 0 {
		return nil
	}
	stored := c.Subjects
	if t := c.SubjectTransform; t != nil {
		filters, err := Transform{t.Source, t.Destination}.filters()
		if err != nil {
			return nil
		}
		stored = append(filters, stored...) // subjects that the source does not match stay as they are
	}
	return stored
}

func (l *streamLog) partitions() int32 { return int32(len(l.filters)) }

func (l *streamLog) incarnation() incarnation {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.latest
}

// logID names the log that a partition's offsets count. In a stream that was created again, or with
// another filter, the same offsets mean other messages.
func (l *streamLog) logID(in incarnation, n int32) string {
	return fmt.Sprintf("%s@%d/%d/%d/%s", l.stream.Name, in.created, n, len(l.filters), l.filters[n])
}

// lag is for operators: a lagging replica may have reported it.
func (l *streamLog) lag(n int32) int64 { return l.lags[n].Load() }

// look asks the stream's leader for the stream's state, with a request that is sent after the call.
func (l *streamLog) look(ctx context.Context) (*jetstream.StreamInfo, error) {
	asked := time.Now()
	info, err := l.asking.answer(ctx)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	l.note(info)
	other := incarnationOf(info) != l.latest
	l.latest, l.maxAge = incarnationOf(info), info.Config.MaxAge
	if asked.After(l.last.asked) {
		l.last = sighting{info, asked}
	}
	l.mu.Unlock()
	if other {
		l.renewed()
	}
	return info, nil
}

// seen returns the last answer to look if it is recent enough, and calls look otherwise.
func (l *streamLog) seen(ctx context.Context, within time.Duration) (sighting, error) {
	l.mu.Lock()
	s := l.last
	l.mu.Unlock()
	if s.info != nil && time.Since(s.asked) <= within {
		return s, nil
	}
	asked := time.Now()
	info, err := l.look(ctx)
	return sighting{info, asked}, err
}

const leastSkipPause = 100 * time.Millisecond

// skipPause returns the time between two skips of a partition that has nothing to deliver. It is a
// fraction of the maximum age, so that the stream's beginning does not pass the position.
func (l *streamLog) skipPause() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	every := max(l.skipEvery, l.flight.pace())
	if l.maxAge == 0 {
		return every
	}
	return min(every, max(l.maxAge/5, leastSkipPause))
}

// watch polls the stream, so that a recreated stream is noticed even while nobody reads.
func (l *streamLog) watch(ctx context.Context) {
	tick := time.NewTicker(min(watchEvery, l.skipEvery))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if info, err := l.look(ctx); err == nil && info.Config.Mirror != nil && !whole(info.State) {
				_ = l.askOrigin(ctx, info) // while the origin still begins below the gaps
			} // after an error, the next tick asks again
			if l.incarnation() != l.first {
				l.renewed() // again, for a tenure that was just beginning then
			}
		}
	}
}

// request asks for the stream's state. It accepts only the leader's answer, because callers halt a
// partition, or begin one, because of it.
func (l *streamLog) request(ctx context.Context) (*jetstream.StreamInfo, error) {
	asked := time.Now()
	s, err := l.js.Stream(ctx, l.stream.Name)
	if err != nil {
		return nil, jsapi.Denied(l.js.Conn(), jsapi.Prefix(l.js)+"STREAM.INFO.", err)
	}
	l.flight.answered(time.Since(asked))
	info := s.CachedInfo()
	if !jsapi.Leads(info.Cluster, info.Config.Replicas) {
		return nil, jsapi.ErrNoLeader
	}
	return info, nil
}

// inquiry shares answers about a stream among concurrent callers. No caller gets an answer to a
// request that was sent before its call.
type inquiry[T any] struct {
	ask func(context.Context) (T, error)

	mu   sync.Mutex
	busy bool
	next *inquired[T]
}

type inquired[T any] struct {
	done chan struct{}
	info T // read-only
	err  error
}

func (q *inquiry[T]) answer(ctx context.Context) (info T, err error) {
	q.mu.Lock()
	a := q.next
	if a == nil {
		a = &inquired[T]{done: make(chan struct{})}
		if q.busy {
			q.next = a
		} else {
			q.busy = true
			go q.run(a)
		}
	}
	q.mu.Unlock()
	select {
	case <-a.done:
		return a.info, a.err
	case <-ctx.Done():
		return info, ctx.Err()
	}
}

func (q *inquiry[T]) run(a *inquired[T]) {
	for a != nil {
		ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
		a.info, a.err = q.ask(ctx)
		cancel()
		close(a.done)
		q.mu.Lock()
		a, q.next = q.next, nil
		q.busy = a != nil
		q.mu.Unlock()
	}
}

const (
	// forgotten is how long the server keeps a consumer that requests nothing, because its process
	// has died or its handler is slow. A slow handler then gets a new consumer.
	forgotten = time.Minute

	// soonForgotten is the least useful value of forgotten: it outlasts a lost request, and the
	// time between two requests if handlers are quick.
	soonForgotten = 5 * time.Second
)

func (l *streamLog) note(info *jetstream.StreamInfo) {
	keeps := forgotten
	if limit := info.Config.ConsumerLimits.InactiveThreshold; limit > 0 {
		keeps = min(keeps, limit)
	}
	l.keeps.Store(int64(keeps))
}

func (l *streamLog) kept() time.Duration { return time.Duration(l.keeps.Load()) }

// checkLimits refuses a stream whose limits let readers of that many partitions work only for a
// while, or only now and then.
func checkLimits(c jetstream.StreamConfig, partitions int) error {
	if limit := c.ConsumerLimits.InactiveThreshold; limit > 0 && limit < soonForgotten {
		return fmt.Errorf("its ConsumerLimits delete a consumer after %v without a request, which is too soon for a reader: "+
			"update the stream with an InactiveThreshold of %v or more, or without one", limit, soonForgotten)
	}
	// The consumers of a killed member count until the server forgets them.
	if most, need := c.MaxConsumers, 2*partitions; most > 0 && most < need {
		return fmt.Errorf("it allows %d consumers, and its %d partitions need up to %d: one each, and one more each for the consumer that a killed member has left, until the server forgets it; "+
			"update the stream with MaxConsumers of at least %d plus the number of other consumers (a server that cannot change it needs a new stream)", most, partitions, need, need)
	}
	return nil
}

func (l *streamLog) explainLimit(err error) error {
	if jsapi.HasCode(err, jetstream.JSErrCodeMaximumConsumersLimit) {
		return fmt.Errorf("the stream or the account allows no more consumers (MaxConsumers); those of members that were killed go after %v: %w", l.kept(), err)
	}
	return err
}
