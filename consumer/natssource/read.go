package natssource

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/jsapi"
	"github.com/epochfence/epochfence/internal/waits"
)

// This file runs a reader and decides what it delivers: nothing below the position. gaps.go decides
// whether messages were lost in a gap (R10), open.go which consumers of the server are used, and
// request.go what is requested of them.

const (
	// longSilence is how long a read retries without progress before it returns the error.
	longSilence = 20 * time.Second

	// absence is the same if the stream is missing.
	absence = 3 * time.Second

	// lasting is how long a consumer must last to count as progress.
	lasting = 3 * time.Second

	leastWait     = 50 * time.Millisecond
	mostRetryWait = time.Second

	// mostSlice limits the messages of one slice. With 500, bench's row nats/partitions=8 was 1.2
	// of a consumer by hand instead of 1.4.
	mostSlice = 2000
)

var (
	errBadPosition = errors.New("the fence's position is negative")

	errSequence = errors.New("a message from the consumer was lost on the way")
)

// read yields messages from the fence's position on. It ends without an error when ctx ends.
func (l *streamLog) read(ctx context.Context, in incarnation, p epoch.Partition, from *epoch.Fence) iter.Seq2[consumer.Batch, error] {
	return func(yield func(consumer.Batch, error) bool) {
		if from.Next < 0 {
			yield(consumer.Batch{}, fmt.Errorf("natssource: read %s at offset %d: %w", p, from.Next, errBadPosition))
			return
		}
		ctx, cancel := context.WithCancel(ctx)
		r := l.newReader(in, p, from)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			r.feed.fail(r.run(ctx))
		}()
		defer func() {
			cancel()
			<-ended
			r.alarm.Stop()
			r.leave()
			r.feed.close()
		}()
		r.handOn(ctx, yield)
	}
}

// newReader returns a reader at a fence's position. newReader and handOn are separate functions
// because an idle partition keeps the stack on which it waits.
func (l *streamLog) newReader(in incarnation, p epoch.Partition, from *epoch.Fence) *reader {
	return &reader{
		l: l, in: in, p: p, fence: from, filter: l.filters[p.Number], feed: newFeed(l.budget), leave: l.flight.join(),
		at: max(uint64(from.Next), 1), print: from.Mark, fresh: !from.Applied, lastSkip: time.Now(),
		pause: l.skipPause(), alarm: time.NewTimer(0),
	}
}

func (r *reader) handOn(ctx context.Context, yield func(consumer.Batch, error) bool) {
	for {
		batch, err := r.feed.take()
		switch {
		case ctx.Err() != nil:
			return
		case batch != nil:
			if !yield(*batch, nil) {
				return
			}
		case err != nil:
			yield(consumer.Batch{}, err)
			return
		default:
			select {
			case <-r.feed.ready:
			case <-ctx.Done():
			}
		}
	}
}

// reader fetches one partition into its feed. It belongs to one goroutine.
//
// It does not use the ordered consumer of nats.go, which replaces its consumer silently. The reader
// has to know whether a new consumer reads the same stream before it uses its messages. See [pull]
// for why it does not use Fetch.
type reader struct {
	l      *streamLog
	in     incarnation
	p      epoch.Partition
	fence  *epoch.Fence // where it began
	filter string
	feed   *feed
	leave  func()

	permit  *permit
	backlog int // messages that are known to wait
	largest int // bytes of the largest message that came last; 0: not known

	at    uint64     // the next sequence: everything below was put into the feed
	print epoch.Mark // fingerprint of the message at-1; -1 if it is not known
	fresh bool       // no message was applied or put into the feed

	// since is when the server stored the message at-1, or an earlier one; zero if it is not known.
	// Later messages are not older.
	since time.Time

	pull        *pull
	opened      time.Time
	moved       time.Time // when at last changed
	delivered   uint64    // the consumer's sequence of its last message
	undelivered undelivered
	stalls      int // consumers that did not deliver the first message
	lastSkip    time.Time
	pause       time.Duration // until the next skip
	pressed     bool          // pause is short because the stream's beginning comes near
	begins      uint64        // the stream's first sequence at looked
	looked      time.Time
	alarm       *time.Timer
}

func (r *reader) run(ctx context.Context) error {
	var failing time.Time // since when nothing has worked
	var wait *waits.Backoff
	for {
		at := r.at
		r.opened = time.Time{}
		err := r.once(ctx)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // whatever it was, nobody reads any more
		}
		worked := r.at > at || !r.opened.IsZero() && time.Since(r.opened) > lasting
		if worked || failing.IsZero() {
			failing, wait = time.Now(), waits.New(leastWait, mostRetryWait)
		}
		quiet := time.Since(failing)
		if final(err) || quiet > longSilence || quiet > absence && errors.Is(err, jetstream.ErrStreamNotFound) {
			return r.explain(err)
		}
		if !waits.Sleep(ctx, wait.Next()) {
			return nil
		}
	}
}

func (r *reader) once(ctx context.Context) error {
	if err := r.open(ctx); err != nil {
		return err
	}
	defer r.discard()
	for {
		if err := r.fetch(ctx); err != nil {
			return err
		}
	}
}

// final reports whether a retry cannot help.
func final(err error) bool {
	var (
		misfit  *consumer.PositionError
		changed *epoch.LogChangedError
		refused *PermissionError
		moved   *TransformError
		api     *jetstream.APIError
	)
	switch {
	case errors.As(err, &misfit), errors.As(err, &changed), errors.As(err, &refused), errors.As(err, &moved):
		return true
	case errors.Is(err, nats.ErrConnectionClosed):
		return true
	case errors.Is(err, jetstream.ErrStreamNotFound), jsapi.HasCode(err, jetstream.JSErrCodeConsumerNotFound):
		return false
	}
	return errors.As(err, &api) && !jsapi.Passing(err)
}

func (r *reader) explain(err error) error {
	var (
		misfit  *consumer.PositionError
		changed *epoch.LogChangedError
	)
	switch {
	case errors.As(err, &misfit):
		return misfit
	case errors.As(err, &changed):
		return changed
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return fmt.Errorf("natssource: read %s: the stream was deleted: %w", r.p, err)
	}
	return fmt.Errorf("natssource: read %s at offset %d: %w", r.p, r.at, err)
}

func (r *reader) misfit(kind error, position, found uint64) error {
	if position == max(uint64(r.fence.Next), 1) {
		position = uint64(r.fence.Next) // report zero as zero
	}
	return &consumer.PositionError{Partition: r.p, Kind: kind, Position: epoch.Offset(position), Found: epoch.Offset(found)}
}

func (r *reader) sameIncarnation(info *jetstream.StreamInfo) error {
	if now := incarnationOf(info); now != r.in {
		return &epoch.LogChangedError{
			Partition: r.p, Fence: r.fence.Log, Source: r.l.logID(now, r.p.Number), Next: epoch.Offset(r.at),
		}
	}
	return nil
}

// message converts a JetStream message. It does not copy the value.
func (r *reader) message(m *nats.Msg, meta *nats.MsgMetadata) consumer.Message {
	return consumer.Message{
		Partition: r.p, Offset: epoch.Offset(meta.Sequence.Stream),
		Key: []byte(m.Subject), Value: m.Data, Headers: headers(m.Header), Time: meta.Timestamp,
	}
}

// headers sorts headers by key and keeps the order of the values of a key. nats.go does not keep
// the order of keys, and has no headers of a block that it cannot parse.
func headers(sent nats.Header) []consumer.Header {
	var hs []consumer.Header
	for key, values := range sent {
		for _, v := range values {
			hs = append(hs, consumer.Header{Key: key, Value: []byte(v)})
		}
	}
	slices.SortStableFunc(hs, func(a, b consumer.Header) int {
		switch {
		case a.Key < b.Key:
			return -1
		case a.Key > b.Key:
			return 1
		}
		return 0
	})
	return hs
}

func size(m consumer.Message) int {
	n := len(m.Key) + len(m.Value)
	for _, h := range m.Headers {
		n += len(h.Key) + len(h.Value)
	}
	return n
}

// fingerprint returns the mark by which a fence recognises a message, because a log may be written
// again with the same sequences. The mark is a hash, of 31 bits, of the time in nanoseconds at
// which the server stored the message. All replicas and backups of a stream have the same time.
func fingerprint(stored time.Time) epoch.Mark {
	const golden = 0x9e3779b97f4a7c15 // spreads neighbours; Fibonacci hashing
	return epoch.Mark(uint64(stored.UnixNano()) * golden >> 33)
}
