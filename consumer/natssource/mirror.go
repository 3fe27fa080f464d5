package natssource

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/internal/jsapi"
)

// This file decides whether a gap in a mirror may have lost messages, by asking the mirror's
// origin.

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
	asking chan struct{} // has an element while the mirror is asked what is missing

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
	select {
	case g.asking <- struct{}{}: // one answer serves all partitions
		defer func() { <-g.asking }()
	case <-ctx.Done():
		return false, ctx.Err()
	}
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
