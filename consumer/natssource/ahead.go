package natssource

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/internal/jsapi"
)

// This file decides whether the messages in a gap may have expired: everywhere, or only on the
// consumer's server, which deletes by a clock of its own.

var errAhead = errors.New("the consumer's server has let a message expire that the stream's leader still has")

// expiring reports whether a message may be about to expire on some server. Each server of a stream
// with a maximum age deletes by its own clock (nats-server's fileStore.expireMsgs), so the
// consumer's server may delete before the leader. The clocks are assumed to be less than half the
// maximum age apart.
func expiring(info *jetstream.StreamInfo, stored time.Time) bool {
	c := info.Config
	return c.Replicas > 1 && c.MaxAge > 0 && info.TimeStamp.Sub(stored) > c.MaxAge/2
}

// aged reports whether messages stored after since may have reached the stream's maximum age. The
// server may still hold them, because it expires messages with a delay.
func aged(info *jetstream.StreamInfo, since time.Time) bool {
	if info.State.FirstTime.After(since) {
		since = info.State.FirstTime
	}
	return info.Config.MaxAge > 0 && info.TimeStamp.Sub(since) >= info.Config.MaxAge
}

var errMovedOn = errors.New("the stream has lost its beginning while it was looked at")

// mayHaveExpired reports whether missing messages of the partition, stored after since and from
// next on, may have expired although the stream begins no later than next. The server expires
// messages in order, from the beginning on (nats-server's expireMsgs). It keeps a message that
// never expires (Nats-TTL: never) and expires the messages behind it. So a first message that can
// expire proves that no later message has expired, however late the server is.
func (r *reader) mayHaveExpired(ctx context.Context, info *jetstream.StreamInfo, next uint64, since time.Time) (bool, error) {
	if !info.Config.AllowMsgTTL || !aged(info, since) || r.fresh && next == r.at {
		return false, nil
	}
	first, err := r.stored(ctx, seqRequest{Seq: info.State.FirstSeq, NextFor: everything})
	switch {
	case errors.Is(err, jetstream.ErrMsgNotFound), err == nil && first.Sequence > next:
		return false, errMovedOn
	case err != nil:
		return false, err
	case !neverExpires(first):
		return false, nil
	}
	// The message at next is older than every missing message.
	at, err := r.stored(ctx, seqRequest{Seq: next, NoHeaders: true})
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return true, nil
	}
	return err == nil && aged(info, at.Time), err
}

func neverExpires(m jsapi.Message) bool {
	if len(m.Header) == 0 {
		return false
	}
	h, err := nats.DecodeHeadersMsg(m.Header)
	return err != nil || strings.EqualFold(h.Get(jetstream.MsgTTLHeader), "never")
}

// upTo returns the earliest time of a message that the stream does not hold yet: now, less a margin
// for messages on their way. A mirror keeps the times of its origin.
func upTo(info *jetstream.StreamInfo) time.Time {
	if info.Config.Mirror != nil {
		return time.Time{}
	}
	return info.TimeStamp.Add(-min(askTimeout, info.Config.MaxAge/2))
}

// expiredInside looks for the first gap in which messages of ours may have expired. It returns the
// number of messages before that gap.
func (r *reader) expiredInside(ctx context.Context, info *jetstream.StreamInfo, ms []consumer.Message) (int, error) {
	next, since := r.at, r.since
	for i, m := range ms {
		if uint64(m.Offset) < r.at {
			continue // the stream was found to begin above it
		}
		if uint64(m.Offset) != next {
			lost, err := r.mayHaveExpired(ctx, info, next, since)
			if lost {
				err = r.misfit(consumer.ErrOffsetExpired, next, uint64(m.Offset))
			}
			if err != nil {
				return i, err
			}
		}
		next, since = uint64(m.Offset)+1, m.Time
	}
	return len(ms), nil
}

// mayBeAhead reports whether messages in a gap may have expired on the consumer's server only.
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

// compare asks the leader about each such gap. It returns the number of messages before the first
// gap in which the leader has a message of ours.
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
