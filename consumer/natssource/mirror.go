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
)

// span is some sequences, the first and the last included. An empty one ends
// before it begins.
type span struct{ first, last uint64 }

func (s span) holds(other span) bool { return s.first <= other.first && other.last <= s.last }

// lost reports whether messages of a span of the stream may have been lost before
// the stream got them.
//
// A mirror has the sequences of its origin, and leaves out what the origin did not have
// when it asked: what was deleted from inside, which is no loss, and what the origin's
// retention had dropped while the mirror was behind, which is one. Both look the same in
// the mirror. The origin knows: what is not below its beginning after the mirror has
// gone past was never dropped. Where the origin's beginning has moved on nobody knows, and what
// is missing may have been lost.
//
// Info is of a stream that has gone past the span.
func (l *streamLog) lost(ctx context.Context, info *jetstream.StreamInfo, s span) (bool, error) {
	if s.last < s.first || info.Config.Mirror == nil || whole(info.State) || l.mirror.explains(info, s) {
		return false, nil
	}
	if err := l.askOrigin(ctx, info); err != nil || l.mirror.explains(info, s) {
		return false, err
	}
	return l.lacks(ctx, s)
}

// whole reports whether every sequence from the stream's first to its last is there.
func whole(s jetstream.StreamState) bool { return s.Msgs == 0 || s.LastSeq-s.FirstSeq+1 == s.Msgs }

// mirrorGaps is what is known of the gaps of a mirror.
type mirrorGaps struct {
	mu        sync.Mutex
	of        incarnation
	explained span     // what is missing here was deleted from inside the origin
	missing   []uint64 // in order, up to the sequence
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

// askOrigin asks the origin of a mirror where it begins, and notes what that says of the gaps
// up to where the mirror had got before.
func (l *streamLog) askOrigin(ctx context.Context, info *jetstream.StreamInfo) error {
	begin, err := l.originBegins(ctx, info)
	if err != nil {
		return fmt.Errorf("the stream is a mirror with gaps, and whether its origin has dropped what is missing is not known: %w", err)
	}
	l.mirror.explain(info, span{begin, info.State.LastSeq})
	return nil
}

// mostMirrors bounds a chain of mirrors.
const mostMirrors = 8

var (
	errBelowMirror = errors.New("it ends below its mirror")
	errNoOrigin    = errors.New("there is no such stream")
)

// originBegins returns the first sequence of the origin of a mirror, or that of a
// mirror in between that begins later.
func (l *streamLog) originBegins(ctx context.Context, info *jetstream.StreamInfo) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	prefix, begin := apiPrefix(l.js), uint64(0)
	of := info.Config.Mirror
	for n := 0; of != nil && n < mostMirrors; n++ {
		if of.External != nil && of.External.APIPrefix != "" {
			prefix = strings.TrimSuffix(of.External.APIPrefix, ".") + "."
		}
		var origin jetstream.StreamInfo
		err := askAt(ctx, l.js.Conn(), prefix+"STREAM.INFO."+of.Name, struct{}{}, &origin)
		switch {
		case hasCode(err, jetstream.JSErrCodeStreamNotFound):
			err = errNoOrigin
		case err != nil:
			err = denied(l.js.Conn(), prefix+"STREAM.INFO.", err)
		case !leads(origin.Cluster, origin.Config.Replicas):
			err = errNoLeader
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

// lacks reports whether the stream does not hold every sequence of a span.
func (l *streamLog) lacks(ctx context.Context, s span) (bool, error) {
	g := &l.mirror
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.upTo < s.last {
		ctx, cancel := context.WithTimeout(ctx, askTimeout)
		defer cancel()
		var info jetstream.StreamInfo
		err := ask(ctx, l.js, "STREAM.INFO."+l.stream.Name, map[string]bool{"deleted_details": true}, &info)
		switch {
		case err != nil:
			return false, denied(l.js.Conn(), apiPrefix(l.js)+"STREAM.INFO.", err)
		case !leads(info.Cluster, info.Config.Replicas) || incarnationOf(&info) != g.of:
			return false, errNoLeader
		case info.State.LastSeq < s.last || info.State.NumDeleted != len(info.State.Deleted):
			return false, errBehind
		}
		g.missing, g.upTo = info.State.Deleted, info.State.LastSeq
		slices.Sort(g.missing)
	}
	at, _ := slices.BinarySearch(g.missing, s.first)
	return at < len(g.missing) && g.missing[at] <= s.last, nil
}

// lostByOrigin looks for the first gap between the messages that may be of such as the
// origin of a mirror has dropped, and returns how many messages come before it.
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
