package natssource

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/semaphore"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/internal/jsapi"
	"github.com/epochfence/epochfence/internal/waits"
)

// This file decides whether messages are missing in a gap (R10): whether the stream may have lost
// them, whether a mirror's origin has them, and whether they have expired, everywhere or only on the
// consumer's server, which deletes by a clock of its own.

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

// span is a range of sequences, including both ends. An empty span ends before it begins.
type span struct{ first, last uint64 }

func (s span) holds(other span) bool { return s.first <= other.first && other.last <= s.last }

// lost reports whether messages in a span may have been lost before the stream got them. info is
// from after the stream has passed the span.
//
// A mirror has the sequences of its origin. It lacks messages that were deleted from inside the
// origin, which is no loss, and messages that the origin's retention dropped while the mirror was
// behind, which is a loss. Both look the same in the mirror, so lost asks the origin: if the origin
// still begins no later than the span after the mirror has passed it, retention has dropped nothing
// there. Otherwise nobody knows, and missing messages may have been lost.
func (l *streamLog) lost(ctx context.Context, info *jetstream.StreamInfo, s span) (bool, error) {
	if s.last < s.first || info.Config.Mirror == nil || whole(info.State) || l.mirror.explains(info, s) {
		return false, nil
	}
	if err := l.askOrigin(ctx, info); err != nil || l.mirror.explains(info, s) {
		return false, err
	}
	return l.lacks(ctx, s)
}

// whole reports whether the stream holds all sequences from its first to its last.
func whole(s jetstream.StreamState) bool { return s.Msgs == 0 || s.LastSeq-s.FirstSeq+1 == s.Msgs }

type mirrorGaps struct {
	asking *semaphore.Weighted // one request at a time, what is missing in the mirror

	mu        sync.Mutex
	of        incarnation
	explained span     // messages that are missing here were deleted from inside the origin
	missing   []uint64 // sorted; complete up to upTo
	upTo      uint64
}

func (g *mirrorGaps) explains(info *jetstream.StreamInfo, s span) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.of == incarnationOf(info) && g.explained.holds(s)
}

func (g *mirrorGaps) explain(info *jetstream.StreamInfo, now span) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if in := incarnationOf(info); g.of != in {
		g.of, g.explained, g.missing, g.upTo = in, now, nil, 0
	}
	if before := g.explained; before.first <= now.first && now.first <= before.last+1 {
		now = span{before.first, max(before.last, now.last)}
	}
	g.explained = now
}

// askOrigin asks the origin of a mirror where it begins. Gaps from there to the mirror's last
// sequence in info are explained.
func (l *streamLog) askOrigin(ctx context.Context, info *jetstream.StreamInfo) error {
	begin, err := l.originBegins(ctx, info)
	if err != nil {
		return fmt.Errorf("the stream is a mirror with gaps, and whether its origin has dropped what is missing is not known: %w", err)
	}
	l.mirror.explain(info, span{begin, info.State.LastSeq})
	return nil
}

const mostMirrors = 8

var (
	errBelowMirror = errors.New("it ends below its mirror")
	errNoOrigin    = errors.New("there is no such stream")
)

// originBegins returns where the origin begins, or a mirror in between if it begins later.
func (l *streamLog) originBegins(ctx context.Context, info *jetstream.StreamInfo) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	prefix, begin := jsapi.Prefix(l.js), uint64(0)
	of := info.Config.Mirror
	for n := 0; of != nil && n < mostMirrors; n++ {
		if of.External != nil && of.External.APIPrefix != "" {
			prefix = strings.TrimSuffix(of.External.APIPrefix, ".") + "."
		}
		var origin jetstream.StreamInfo
		err := jsapi.AskAt(ctx, l.js.Conn(), prefix+"STREAM.INFO."+of.Name, struct{}{}, &origin)
		switch {
		case jsapi.HasCode(err, jetstream.JSErrCodeStreamNotFound):
			err = errNoOrigin
		case err != nil:
			err = jsapi.Denied(l.js.Conn(), prefix+"STREAM.INFO.", err)
		case !jsapi.Leads(origin.Cluster, origin.Config.Replicas):
			err = jsapi.ErrNoLeader
		case origin.State.LastSeq < info.State.LastSeq:
			err = errBelowMirror // it was created again, or restored
		}
		if err != nil {
			return 0, fmt.Errorf("its origin %q: %w", of.Name, err)
		}
		begin, of = max(begin, origin.State.FirstSeq), origin.Config.Mirror
	}
	return begin, nil
}

func (l *streamLog) lacks(ctx context.Context, s span) (bool, error) {
	g := &l.mirror
	if err := g.asking.Acquire(ctx, 1); err != nil {
		return false, err
	}
	defer g.asking.Release(1)
	if lacks, known := g.lacks(s); known {
		return lacks, nil
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var info jetstream.StreamInfo
	err := jsapi.Ask(ctx, l.js, "STREAM.INFO."+l.stream.Name, map[string]bool{"deleted_details": true}, &info)
	switch {
	case err != nil:
		return false, jsapi.Denied(l.js.Conn(), jsapi.Prefix(l.js)+"STREAM.INFO.", err)
	case !jsapi.Leads(info.Cluster, info.Config.Replicas) || !g.learn(&info):
		return false, jsapi.ErrNoLeader
	}
	lacks, known := g.lacks(s)
	if !known {
		return false, errBehind
	}
	return lacks, nil
}

// learn reports whether the answer is about the stream that the gaps are of.
func (g *mirrorGaps) learn(info *jetstream.StreamInfo) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if incarnationOf(info) != g.of {
		return false
	}
	if info.State.NumDeleted == len(info.State.Deleted) { // else the answer is not whole
		g.missing, g.upTo = info.State.Deleted, info.State.LastSeq
		slices.Sort(g.missing)
	}
	return true
}

func (g *mirrorGaps) lacks(s span) (lacks, known bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.upTo < s.last {
		return false, false
	}
	at, _ := slices.BinarySearch(g.missing, s.first)
	return at < len(g.missing) && g.missing[at] <= s.last, true
}

// lostByOrigin looks for the first gap whose messages the origin of a mirror may have dropped. It
// returns the number of messages before that gap.
func (r *reader) lostByOrigin(ctx context.Context, info *jetstream.StreamInfo, ms []consumer.Message) (int, error) {
	next := r.at
	for i, m := range ms {
		lost, err := r.l.lost(ctx, info, span{next, uint64(m.Offset) - 1})
		if lost {
			err = r.misfit(consumer.ErrOffsetExpired, next, uint64(m.Offset))
		}
		if err != nil {
			return i, err
		}
		next = uint64(m.Offset) + 1
	}
	return len(ms), nil
}

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
