package show

import (
	"context"
	"sync"

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
	stage   *Stage
	writing sync.RWMutex // read-locked by what writes beside Commit
}

func (s *stagedSink[TX]) Seed(ctx context.Context, starts []epoch.Start) error {
	s.writing.RLock()
	defer s.writing.RUnlock()
	return s.Sink.Seed(ctx, starts)
}

func (s *stagedSink[TX]) Claim(ctx context.Context, seen epoch.Fence, c epoch.Claim) (epoch.Fence, error) {
	s.writing.RLock()
	defer s.writing.RUnlock()
	return s.Sink.Claim(ctx, seen, c)
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
		s.unlocked(cue)
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

// unlocked reaches the point Unlocked once claims under way have ended, and lets
// none begin until it is told to go on. consumer.Run with one committer has no
// other writes.
func (s *stagedSink[TX]) unlocked(cue *Cue) {
	if cue.point == Unlocked {
		s.writing.Lock()
		defer s.writing.Unlock()
		cue.Reach(Unlocked)
	}
}

// Holdings is an observer that reports to stage which partitions are claimed.
func Holdings(stage *Stage) consumer.Observer {
	return consumer.ObserverFunc(func(e consumer.Event) {
		if e, ok := e.(consumer.Claimed); ok {
			stage.Holds(e.Fence.Partition.Number)
		}
	})
}
