package show

import (
	"context"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
)

// Fenced returns sink with the points of stage in its transactions. They are
// around the handler, so that the handler is the one a reader would copy.
func Fenced[TX any](sink epoch.Sink[TX], stage *Stage) epoch.Sink[TX] {
	return &stagedSink[TX]{Sink: sink, stage: stage}
}

type stagedSink[TX any] struct {
	epoch.Sink[TX]
	stage *Stage
}

func (s *stagedSink[TX]) Commit(ctx context.Context, as []epoch.Advance, apply func(context.Context, TX) error) error {
	work := make(Work, len(as))
	messages := 0
	for i, a := range as {
		work[i] = Span{Partition: a.Number, From: int64(a.From), To: int64(a.To)}
		messages += int(a.To - a.From)
	}
	cue := s.stage.Cue(work)
	ctx = cue.Context(ctx)
	cue.Reach(InHand)
	err := s.Sink.Commit(ctx, as, func(ctx context.Context, tx TX) error {
		cue.Reach(BeforeWrites)
		if err := apply(ctx, tx); err != nil {
			return err
		}
		cue.Reach(AfterWrites)
		return nil
	})
	cue.Done(messages, err)
	return err
}

// Holdings is an observer that reports to stage which partitions are claimed.
func Holdings(stage *Stage) consumer.Observer {
	return consumer.ObserverFunc(func(e consumer.Event) {
		if e, ok := e.(consumer.Claimed); ok {
			stage.Holds(e.Fence.Partition.Number)
		}
	})
}
