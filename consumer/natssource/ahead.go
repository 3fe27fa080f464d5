package natssource

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
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

// aged reports whether messages that came after since are as old as the
// stream's maximum age. It does not say that they are gone: the server takes its time.
func aged(info *jetstream.StreamInfo, since time.Time) bool {
	if info.State.FirstTime.After(since) {
		since = info.State.FirstTime
	}
	return info.Config.MaxAge > 0 && info.TimeStamp.Sub(since) >= info.Config.MaxAge
}

// errMovedOn: what was asked is about a beginning that the stream no longer has.
var errMovedOn = errors.New("the stream has lost its beginning while it was looked at")

// mayHaveExpired reports whether messages of ours from next on, which are not there and
// came after since, may have expired although the stream's beginning is not
// above them. Messages expire in their order, from the beginning on
// (nats-server's expireMsgs), but for one that never does (Nats-TTL: never): that
// stays, and what is behind it goes. So one that is there, and can expire, proves that
// nothing behind it has, however late the server is.
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
	// Whoever has the place where the gap begins came before all that is missing.
	at, err := r.stored(ctx, seqRequest{Seq: next, NoHeaders: true})
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return true, nil
	}
	return err == nil && aged(info, at.Time), err
}

func neverExpires(m storedMessage) bool {
	if len(m.Header) == 0 {
		return false
	}
	h, err := nats.DecodeHeadersMsg(m.Header)
	return err != nil || strings.EqualFold(h.Get(jetstream.MsgTTLHeader), "never")
}

// upTo is when what the stream does not hold yet is stored at the earliest: now,
// but for what is on its way. A mirror keeps the times of its origin.
func upTo(info *jetstream.StreamInfo) time.Time {
	if info.Config.Mirror != nil {
		return time.Time{}
	}
	return info.TimeStamp.Add(-min(askTimeout, info.Config.MaxAge/2))
}

// expiredInside looks for the first gap between the messages that may be of such as have
// expired, and returns how many messages come before it.
func (r *reader) expiredInside(ctx context.Context, info *jetstream.StreamInfo, ms []consumer.Message) (int, error) {
	next, since := r.at, r.since
	for i, m := range ms {
		if uint64(m.Offset) < r.at {
			continue // the stream has been found to begin above
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
