package natssource

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/consumer"
)

// errAhead: the server of the consumer has deleted what the leader still has.
var errAhead = errors.New("the consumer's server has let a message expire that the stream's leader still has")

// expiring reports whether a message may be about to expire somewhere. Where a
// stream has a maximum age, each of its servers deletes by its own clock
// (nats-server's fileStore.expireMsgs), so that the consumer's may be ahead of
// the leader's. That they are apart by half the maximum age is not reckoned
// with.
func expiring(info *jetstream.StreamInfo, stored time.Time) bool {
	c := info.Config
	return c.Replicas > 1 && c.MaxAge > 0 && info.TimeStamp.Sub(stored) > c.MaxAge/2
}

// aged reports whether messages that came after since may have expired although
// the stream's beginning has not moved: a message that never expires
// (Nats-TTL: never) stays there, and those behind it go with the stream's
// maximum age.
func aged(info *jetstream.StreamInfo, since time.Time) bool {
	if info.State.FirstTime.After(since) {
		since = info.State.FirstTime
	}
	return info.Config.MaxAge > 0 && info.TimeStamp.Sub(since) >= info.Config.MaxAge
}

// upTo is when what the stream does not hold yet is stored at the earliest: now,
// but for what is on its way. A mirror keeps the times of its origin.
func upTo(info *jetstream.StreamInfo) time.Time {
	if info.Config.Mirror != nil {
		return time.Time{}
	}
	return info.TimeStamp.Add(-min(askTimeout, info.Config.MaxAge/2))
}

// agedInside looks for the first gap between the messages that may be of such,
// and returns how many messages come before it.
func (r *reader) agedInside(info *jetstream.StreamInfo, ms []consumer.Message) (int, error) {
	next, since := r.at, r.since
	for i, m := range ms {
		if uint64(m.Offset) != next && aged(info, since) {
			return i, r.misfit(consumer.ErrPassedBy, next, uint64(m.Offset))
		}
		next, since = uint64(m.Offset)+1, m.Time
	}
	return len(ms), nil
}

// mayBeAhead reports whether one of the gaps between the messages may be of
// messages that have expired at the consumer's server only.
func (r *reader) mayBeAhead(info *jetstream.StreamInfo, ms []consumer.Message) bool {
	next, since := r.at, r.since
	for _, m := range ms {
		if uint64(m.Offset) != next && expiring(info, since) {
			return true
		}
		next, since = uint64(m.Offset)+1, m.Time
	}
	return false
}

// compare asks the leader what it has in each such gap. It returns how many
// messages come before the first where that is a message of ours.
func (r *reader) compare(ctx context.Context, info *jetstream.StreamInfo, ms []consumer.Message) (int, error) {
	next, since := r.at, r.since
	for i, m := range ms {
		if uint64(m.Offset) != next && expiring(info, since) {
			ours, err := r.firstOfOurs(ctx, next)
			if err == nil && ours > 0 && ours < uint64(m.Offset) {
				err = errAhead // another consumer may be on a server that has it
			}
			if err != nil {
				return i, err
			}
		}
		next, since = uint64(m.Offset)+1, m.Time
	}
	return len(ms), nil
}
