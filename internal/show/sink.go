package show

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/epochfence/epochfence/epoch"
)

// Fenced returns sink with the points of stage in its transactions. The points are around the
// handler, so that readers can copy the handler unchanged.
func Fenced[TX any](sink epoch.Sink[TX], stage *Stage) epoch.Sink[TX] {
	return FencedAt(sink, stage, func(a epoch.Advance) Scene {
		return Scene{Subject(a.Partition.Number, int64(a.From)), InHand, AfterWrites, AfterCommit}
	})
}

// Scene has the points of one transaction. A zero point is none.
type Scene struct {
	Subject string
	Before  Point // where the transaction has not begun
	Written Point // where the handler has returned
	Last    Point // AfterCommit, or none
}

// FencedAt is [Fenced] with points that depend on where a transaction begins.
func FencedAt[TX any](sink epoch.Sink[TX], stage *Stage, scene func(epoch.Advance) Scene) epoch.Sink[TX] {
	return &stagedSink[TX]{sink, stage, scene}
}

type stagedSink[TX any] struct {
	epoch.Sink[TX]
	stage *Stage
	scene func(epoch.Advance) Scene
}

// Unwrap lets [epoch.As] find what else the sink can do.
func (s *stagedSink[TX]) Unwrap() epoch.Sink[TX] { return s.Sink }

func (s *stagedSink[TX]) Commit(ctx context.Context, as []epoch.Advance, o epoch.TxOptions, calls ...func(context.Context, TX) error) error {
	if len(as) == 0 || len(calls) == 0 { // no messages, which could be done elsewhere
		return s.Sink.Commit(ctx, as, o, calls...)
	}
	at := s.scene(as[0])
	cue := s.stage.Cue(at.Subject, at.Before, at.Written, at.Last)
	ctx = cue.Context(ctx)
	cue.Reach(at.Before)
	calls = slices.Clone(calls)
	last := calls[len(calls)-1]
	calls[len(calls)-1] = func(ctx context.Context, tx TX) error {
		if err := last(ctx, tx); err != nil {
			return err
		}
		cue.Reach(at.Written)
		return nil
	}
	return cue.Done(s.Sink.Commit(ctx, as, o, calls...))
}

// Subject names a transaction by the partition and offset of its first message.
func Subject(partition int32, offset int64) string { return fmt.Sprintf("%d/%d", partition, offset) }

// Position returns the partition and offset of a [Subject]. ok is false if it is the subject of a
// request.
func Position(subject string) (partition int32, offset int64, ok bool) {
	n, _ := fmt.Sscanf(subject, "%d/%d", &partition, &offset)
	return partition, offset, n == 2
}

// Sending is Base with the points [BeforeSend] and [Answered]. A request that was stopped before it is
// sent even if its context has ended meanwhile, so that only the receiver can refuse it. Its subject is
// its idempotency key.
type Sending struct {
	Base  http.RoundTripper
	Stage *Stage
}

// RoundTrip sends a request.
func (s Sending) RoundTrip(r *http.Request) (*http.Response, error) {
	cue := s.Stage.Cue(strings.Trim(r.Header.Get("Idempotency-Key"), `"`), BeforeSend, Answered)
	r = r.WithContext(cue.Context(r.Context()))
	cue.Reach(BeforeSend)
	answer, err := s.Base.RoundTrip(r)
	switch {
	case err != nil:
		cue.End(Failed)
	case answer.StatusCode == http.StatusPreconditionFailed:
		cue.End(Refused)
	default:
		cue.End(answered)
		cue.Reach(Answered)
	}
	return answer, err
}
