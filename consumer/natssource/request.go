package natssource

import (
	"context"
	"sort"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/jsapi"
)

// This file decides when a reader requests messages, a small request at once and a large one in its
// permit, and puts the answers into the feed. flight.go decides how many bytes that are, and feed.go
// sends the request.

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

// window waits for space in the budget. Meanwhile it skips, so that messages that the stream drops
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
		case <-r.feed.freed:
		case <-r.alarm.C:
			if err := r.skipIfDue(ctx, false); err != nil {
				return 0, err
			}
		}
	}
}

// receiveSome makes a request and puts its messages into the feed. It takes a permit if messages are
// known to wait for this reader and may be larger than a request without a permit.
func (r *reader) receiveSome(ctx context.Context, window int) error {
	messages, quiet := messagesIn(window), r.l.flight.quiet()
	if r.backlog == 0 || r.largest > 0 && int64(r.backlog)*int64(r.largest) <= int64(quiet) {
		return r.receive(ctx, messages, min(window, quiet), window, laterExpires)
	}
	if err := r.takePermit(ctx, min(max(2*r.largest, leastQuiet), window), window); err != nil {
		return err
	}
	return r.receive(ctx, min(messages, r.backlog), r.permit.bytes, window, permitExpires)
}

// receiveLarge requests one message, of any size that the server allows.
func (r *reader) receiveLarge(ctx context.Context, window int) error {
	most := int(r.pull.conn.MaxPayload())
	if err := r.takePermit(ctx, most, most); err != nil {
		return err
	}
	return r.receive(ctx, 1, 0, window, permitExpires)
}

// takePermit waits for a permit. Meanwhile it skips if the stream's beginning comes near.
func (r *reader) takePermit(ctx context.Context, need, want int) error {
	r.permit = r.l.flight.ask(need, want)
	err := r.awaitPermit(ctx)
	if err != nil {
		r.l.flight.end(r.permit, false) // nothing was requested with it
		r.permit = nil
	}
	return err
}

func (r *reader) awaitPermit(ctx context.Context) error {
	for {
		r.alarm.Reset(r.pause)
		select {
		case <-r.permit.granted:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-r.alarm.C:
			if r.pressed {
				if err := r.skipIfDue(ctx, false); err != nil {
					return err
				}
			}
		}
	}
}

func (r *reader) endPermit() {
	if r.pull.brought > 0 {
		r.largest = r.pull.largest
	}
	if r.pull.expired {
		r.backlog = 0 // the messages that waited are gone
	}
	r.l.flight.end(r.permit, r.pull.brought > 0 && !r.pull.expired)
	r.permit = nil
}

// stored asks the leader for a message, under the permit that this reader has or waits for.
func (r *reader) stored(ctx context.Context, request seqRequest) (jsapi.Message, error) {
	if r.permit != nil {
		return r.l.storedNow(ctx, request)
	}
	return r.l.stored(ctx, request)
}

// onTheWay reports whether requested messages may still be on their way.
func (r *reader) onTheWay() bool {
	return time.Since(r.pull.asked) < r.l.flight.delay() && !r.pull.forgotten()
}

// tooSlow returns how long a message may take to arrive before sayLarge logs it. A lease that was
// due for renewal all that time has as long again.
func (r *reader) tooSlow() time.Duration { return r.l.ttl / 3 }

// isLarge reports whether a message that was requested alone is under way and was not logged yet.
func (r *reader) isLarge() bool {
	return !r.pull.limited && r.l.ttl > 0 && r.l.large[r.p.Number].Load() != r.at
}

// sayLarge logs, once, a message that takes so long that the lease may be lost before it arrives.
func (r *reader) sayLarge() {
	took := time.Since(r.pull.asked)
	if !r.isLarge() || took < r.tooSlow() {
		return
	}
	r.l.large[r.p.Number].Store(r.at)
	r.l.log.Error("a message takes so long to arrive that the lease may end before it has: "+
		"each message must cross the connection within half of LeaseTTL; raise LeaseTTL in all processes of the group, or use a faster connection",
		"stream", r.p.Topic, "partition", r.p.Number, "from", r.at, "waited", took.Round(time.Millisecond), "bytes/s", r.l.flight.carried(), "LeaseTTL", r.l.ttl)
}

// receive makes one request. Messages that have arrived together become one slice.
func (r *reader) receive(ctx context.Context, messages, bytes, window int, expires time.Duration) error {
	if err := r.pull.request(messages, bytes, expires); err != nil {
		return err
	}
	r.undelivered.first = 0 // no consumer was asked for it until now
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
		r.endPermit()
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
	for _, t := range []time.Time{r.pull.ends.Add(ending), r.undelivered.due(r.patience())} {
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
	if err := r.checkUndelivered(ctx); err != nil {
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
	r.undelivered, r.stalls = undelivered{looked: now, asked: r.undelivered.asked}, 0
	s.End = s.Next + epoch.Offset(r.l.lag(r.p.Number))
	r.feed.put(s)
}

// slice takes m and what has arrived behind it. It leaves out messages below the position: the
// stream's leader had deleted them before the consumer's server did.
func (r *reader) slice(m *nats.Msg, window int) (slice, error) {
	s := sliceOf(min(len(r.pull.arrived)+1, mostSlice))
	came, largest := 0, 0
	defer func() { r.l.flight.came(r.permit, came, largest) }()
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
