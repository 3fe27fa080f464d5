package natssource

import (
	"context"
	"time"

	"github.com/epochfence/epochfence/internal/jsapi"
)

// This file decides when a reader requests messages: a small request at once, a large one in its
// turn. flight.go decides how many bytes that are.

// receiveSome makes a request and puts its messages into the feed. It takes a turn if messages are
// known to wait for this reader and may be larger than a request without a turn.
func (r *reader) receiveSome(ctx context.Context, window int) error {
	messages, quiet := messagesIn(window), r.l.flight.quiet()
	if r.backlog == 0 || r.largest > 0 && int64(r.backlog)*int64(r.largest) <= int64(quiet) {
		return r.receive(ctx, messages, min(window, quiet), window, laterExpires)
	}
	if err := r.takeTurn(ctx, min(max(2*r.largest, leastQuiet), window), window); err != nil {
		return err
	}
	return r.receive(ctx, min(messages, r.backlog), r.turn.bytes, window, turnExpires)
}

// receiveLarge requests one message, of any size that the server allows.
func (r *reader) receiveLarge(ctx context.Context, window int) error {
	most := int(r.pull.conn.MaxPayload())
	if err := r.takeTurn(ctx, most, most); err != nil {
		return err
	}
	return r.receive(ctx, 1, 0, window, turnExpires)
}

// takeTurn waits for a turn. Meanwhile it skips if the stream's beginning comes near.
func (r *reader) takeTurn(ctx context.Context, need, want int) error {
	r.turn = r.l.flight.ask(need, want)
	err := r.awaitTurn(ctx)
	if err != nil {
		r.l.flight.end(r.turn, false) // nothing was requested with it
		r.turn = nil
	}
	return err
}

func (r *reader) awaitTurn(ctx context.Context) error {
	for {
		r.alarm.Reset(r.pause)
		select {
		case <-r.turn.granted:
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

func (r *reader) endTurn() {
	if r.pull.brought > 0 {
		r.largest = r.pull.largest
	}
	if r.pull.expired {
		r.backlog = 0 // the messages that waited are gone
	}
	r.l.flight.end(r.turn, r.pull.brought > 0 && !r.pull.expired)
	r.turn = nil
}

// stored asks the leader for a message, under the turn that this reader has or waits for.
func (r *reader) stored(ctx context.Context, request seqRequest) (jsapi.Message, error) {
	if r.turn != nil {
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
