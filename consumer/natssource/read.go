package natssource

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sort"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/jsapi"
	"github.com/epochfence/epochfence/internal/waits"
)

// This file decides which messages are delivered: none below the position, and none above a gap
// that may have lost messages (R10). open.go decides which consumer is believed, flight.go how much
// may be requested.

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

	turn    *turn
	backlog int // messages that are known to wait
	largest int // bytes of the largest message that came last; 0: not known

	at    uint64     // the next sequence: everything below was put into the feed
	print epoch.Mark // fingerprint of the message at-1; -1 if it is not known
	fresh bool       // no message was applied or put into the feed

	// since is when the server stored the message at-1, or an earlier one; zero if it is not known.
	// Later messages are not older.
	since time.Time

	pull      *pull
	opened    time.Time
	moved     time.Time // when at last changed
	delivered uint64    // the consumer's sequence of its last message
	owed      owed
	stalls    int // consumers that did not deliver the owed message
	lastSkip  time.Time
	pause     time.Duration // until the next skip
	pressed   bool          // pause is short because the stream's beginning comes near
	begins    uint64        // the stream's first sequence at looked
	looked    time.Time
	alarm     *time.Timer
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
	return errors.As(err, &api) && !passing(err)
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

// fetch requests messages and puts them into the feed.
func (r *reader) fetch(ctx context.Context) error {
	window, err := r.window(ctx)
	if err != nil {
		return err
	}
	defer func() { r.feed.done(window) }()
	before := r.delivered
	if err := r.receiveSome(ctx, window); err != nil {
		return err
	}
	if r.pull.tooLarge && r.delivered == before {
		return r.receiveLarge(ctx, window) // it comes alone
	}
	return nil
}

// window waits for room in the budget. Meanwhile it skips, so that messages that the stream drops
// at its beginning are known not to be ours.
func (r *reader) window(ctx context.Context) (int, error) {
	for {
		if w := r.feed.window(); w > 0 {
			return w, nil
		}
		r.alarm.Reset(time.Until(r.nextSkip()))
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-r.feed.room:
		case <-r.alarm.C:
			if err := r.skipIfDue(ctx, false); err != nil {
				return 0, err
			}
		}
	}
}

// receive makes one request. Messages that have arrived together become one slice.
func (r *reader) receive(ctx context.Context, messages, bytes, window int, expires time.Duration) error {
	if err := r.pull.request(messages, bytes, expires); err != nil {
		return err
	}
	r.owed.first = 0 // no consumer was asked for it until now
	r.alarm.Reset(r.due())
	for !r.pull.ended {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case m := <-r.pull.arrived:
			if err := r.arrived(ctx, m, window); err != nil {
				return err
			}
		case <-r.alarm.C:
			if err := r.wake(ctx); err != nil {
				return err
			}
			r.alarm.Reset(r.due())
		}
	}
	if r.pull.err == nil {
		r.endTurn()
	}
	return r.pull.err
}

func (r *reader) arrived(ctx context.Context, m *nats.Msg, window int) error {
	s, err := r.slice(m, window)
	if err != nil {
		return err
	}
	good, err := r.verify(ctx, s.Messages)
	first := 0
	if r.fresh { // the stream may begin among these messages
		first = sort.Search(good, func(i int) bool { return uint64(s.Messages[i].Offset) >= r.at })
	}
	s.keep(first, good)
	r.put(s)
	return err
}

func (r *reader) due() time.Duration {
	at := r.nextSkip()
	for _, t := range []time.Time{r.pull.ends.Add(ending), r.owed.due(r.patience())} {
		if t.Before(at) {
			at = t
		}
	}
	if arrived := r.pull.asked.Add(r.l.flight.delay()); at.Before(arrived) {
		at = arrived
	}
	if slow := r.pull.asked.Add(r.tooSlow()); r.isLarge() && slow.Before(at) {
		at = slow
	}
	return time.Until(at)
}

func (r *reader) wake(ctx context.Context) error {
	if r.pull.hasMore() {
		return nil // read it first
	}
	r.sayLarge()
	if r.onTheWay() {
		return nil
	}
	if r.pull.silent() {
		return jsapi.Denied(r.pull.conn, r.pull.requests, errSilent)
	}
	if err := r.lookForOwed(ctx); err != nil {
		return err
	}
	return r.skipIfDue(ctx, true)
}

func (r *reader) skipIfDue(ctx context.Context, idle bool) error {
	if time.Now().Before(r.nextSkip()) || r.isAtEnd(ctx) {
		return nil
	}
	return r.skip(ctx, idle)
}

func (r *reader) put(s slice) {
	if len(s.Messages) == 0 {
		return
	}
	r.at, r.print, r.since = uint64(s.Next), s.Mark, s.Messages[len(s.Messages)-1].Time
	now := time.Now()
	r.fresh, r.moved, r.lastSkip = false, now, now
	r.owed, r.stalls = owed{looked: now, asked: r.owed.asked}, 0
	s.End = s.Next + epoch.Offset(r.l.lag(r.p.Number))
	r.feed.put(s)
}

// slice takes m and what has arrived behind it. It leaves out messages below the position: the
// stream's leader had deleted them before the consumer's server did.
func (r *reader) slice(m *nats.Msg, window int) (slice, error) {
	s := sliceOf(min(len(r.pull.arrived)+1, mostSlice))
	came, largest := 0, 0
	defer func() { r.l.flight.came(r.turn, came, largest) }()
	for m != nil {
		if meta := r.pull.delivery(m); meta != nil {
			if meta.Sequence.Consumer != r.delivered+1 {
				return s, errSequence
			}
			r.delivered++
			came, largest = came+m.Size(), max(largest, m.Size())
			r.backlog = int(meta.NumPending)
			r.l.lags[r.p.Number].Store(int64(meta.NumPending))
			if meta.Sequence.Stream >= r.at {
				message := r.message(m, meta)
				s.add(message, size(message)+overhead)
			}
		}
		if r.pull.ended || len(s.Messages) >= mostSlice || s.bytes >= window/2 {
			break
		}
		select {
		case m = <-r.pull.arrived:
		default:
			m = nil
		}
	}
	return s, nil
}

// verify checks the gaps between the messages: after the last message had arrived, the stream began
// no later than the first gap. So missing messages were not ours, or were deleted from inside the
// stream. It returns the number of messages that it has verified.
func (r *reader) verify(ctx context.Context, ms []consumer.Message) (int, error) {
	next := r.at
	for i, m := range ms {
		at := uint64(m.Offset)
		if at != next {
			return r.verifyGap(ctx, ms, i, next)
		}
		next = at + 1
	}
	return len(ms), nil
}

// lookBehind is lookAgain with an answer from a leader that has stored last. A replica may be ahead
// of its leader for a moment. It may then have deleted messages for a limit that the leader has not
// reached yet.
func (r *reader) lookBehind(ctx context.Context, last uint64) (*jetstream.StreamInfo, error) {
	began := time.Now()
	for pause := waits.New(time.Millisecond, time.Second); ; {
		info, err := r.lookAgain(ctx)
		if err != nil || info.State.LastSeq >= last {
			return info, err
		}
		if time.Since(began) > 2*time.Second || !waits.Sleep(ctx, pause.Next()) {
			return nil, errBehind
		}
	}
}

func (r *reader) verifyGap(ctx context.Context, ms []consumer.Message, before int, begin uint64) (int, error) {
	last := uint64(ms[len(ms)-1].Offset)
	info, err := r.lookBehind(ctx, last)
	if err == nil && r.mayBeAhead(info, ms) {
		if before, err = r.compare(ctx, info, ms); err == nil {
			info, err = r.lookBehind(ctx, last)
		}
	}
	if err == nil && info.State.FirstSeq > begin {
		err = r.passed(begin, info.State.FirstSeq)
	}
	if err == nil {
		before, err = r.expiredInside(ctx, info, ms)
	}
	if err == nil {
		before, err = r.lostByOrigin(ctx, info, ms)
	}
	if err != nil {
		return before, err
	}
	return len(ms), nil
}
