package show

import (
	"context"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

// Fenced returns sink with the points of stage in its transactions. The points are around the
// handler, so that readers can copy the handler unchanged.
func Fenced[TX any](sink epoch.Sink[TX], stage *Stage) epoch.Sink[TX] {
	staged := &stagedSink[TX]{Sink: sink, stage: stage}
	if o, ok := epoch.As[operate.Operable[TX]](sink); ok {
		return stagedOperable[TX]{staged, o}
	}
	return staged
}

type stagedOperable[TX any] struct {
	*stagedSink[TX]
	operate.Operable[TX]
}

func (s stagedOperable[TX]) Record(ctx context.Context, ds []operate.Decision) error {
	return s.stage.Writing(func() error { return s.Operable.Record(ctx, ds) })
}

func (s stagedOperable[TX]) ReplayFailed(ctx context.Context, r operate.RequestedReplay, e epoch.Epoch, cause error) error {
	return s.stage.Writing(func() error { return s.Operable.ReplayFailed(ctx, r, e, cause) })
}

type stagedSink[TX any] struct {
	epoch.Sink[TX]
	stage *Stage
}

func (s *stagedSink[TX]) Seed(ctx context.Context, starts []epoch.Start) error {
	return s.stage.Writing(func() error { return s.Sink.Seed(ctx, starts) })
}

func (s *stagedSink[TX]) Claim(ctx context.Context, seen epoch.Fence, c epoch.Claim) (f epoch.Fence, err error) {
	err = s.stage.Writing(func() error {
		f, err = s.Sink.Claim(ctx, seen, c)
		return err
	})
	return f, err
}

func (s *stagedSink[TX]) Commit(ctx context.Context, as []epoch.Advance, calls ...func(context.Context, TX) error) error {
	work := make(Work, len(as))
	for i, a := range as {
		work[i] = Span{Partition: a.Partition.Number, From: int64(a.From), To: int64(a.To)}
	}
	cue := s.stage.Cue(work, InHand, Unlocked, BeforeWrites, AfterWrites, AfterCommit)
	ctx = cue.Context(ctx)
	cue.Reach(InHand)
	commit := func() error {
		staged := make([]func(context.Context, TX) error, len(calls))
		for i, call := range calls {
			staged[i] = func(ctx context.Context, tx TX) error {
				if i == 0 {
					cue.Reach(Unlocked)
					cue.Reach(BeforeWrites)
				}
				if err := call(ctx, tx); err != nil {
					return err
				}
				if i == len(calls)-1 {
					cue.Reach(AfterWrites)
				}
				return nil
			}
		}
		return s.Sink.Commit(ctx, as, staged...)
	}
	var err error
	if cue.point == Unlocked {
		err = commit() // Reach waits until nothing else writes
	} else {
		err = s.stage.Writing(commit)
	}
	cue.Done(0, err) // Reporting counts the messages, because not every offset has one
	return err
}

func (s *stagedSink[TX]) CommitHeld(ctx context.Context, h epoch.Hold, apply func(context.Context, TX) error) error {
	work := Work{{Partition: h.Partition.Number}}
	return s.held(ctx, work, func(ctx context.Context) error { return epoch.CommitHeld(ctx, s.Sink, h, apply) })
}

// held commits a transaction of a relay, which moves no position. It has the point Answered if
// requests were answered since the last such transaction.
func (s *stagedSink[TX]) held(ctx context.Context, work Work, commit func(context.Context) error) error {
	cue := &Cue{stage: s.stage, work: work}
	if a := s.stage.takeAnswers(work); a.n > 0 {
		cue = s.stage.Cue(work, Answered).About(a.last)
		cue.answers = a.n
	}
	ctx = cue.Context(ctx)
	cue.Reach(Answered)
	err := s.stage.Writing(func() error { return commit(ctx) })
	cue.Done(0, err)
	return err
}

// Reporting returns an observer that reports claimed partitions and applied messages to stage, and
// passes every event to the stage's Stats.
func Reporting(stage *Stage) func(consumer.Event) {
	return func(e consumer.Event) {
		stage.Stats.Observe(e)
		switch e := e.(type) {
		case consumer.Claimed:
			stage.Holds(e.Fence.Partition.Number, int64(e.Fence.Epoch))
		case consumer.Advanced:
			stage.tell(report{Kind: reportCounted, Messages: e.Messages})
		}
	}
}
