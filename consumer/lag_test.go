package consumer_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

// wantLag compares the lag of partition 0.
func (r *rig) wantLag(s *consumer.Status, when string, want int64) {
	r.Helper()
	if p := s.Partitions()[0]; p.Lag != want {
		r.Errorf("%s: the lag is %d, want %d: %+v", when, p.Lag, want, p)
	}
}

func TestTheLagOfAHaltedPartitionIsWhatItIsNow(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		h := func(ctx context.Context, tx tx, m consumer.Message, e epoch.Epoch) error {
			if m.Offset == 2 {
				return consumer.Permanent(errors.New("no such item"))
			}
			return record(ctx, tx, m, e)
		}
		r.fill(0, 10)
		p, s := r.watch("a", each(h), options{})
		r.pass(time.Minute)
		r.wantLag(s, "halted", 8)
		r.fill(0, 1000)
		r.pass(time.Minute)
		r.wantLag(s, "with 1000 more", 1008)
		p.end()

		p, s = r.watch("a", each(h), options{})
		r.pass(time.Minute)
		r.wantLag(s, "restarted", 1008)
		p.end()
	})
}

func TestTheLagOfAPausedPartitionIsWhatItIsNow(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		p, s := r.watch("a", each(record), options{})
		r.fill(0, 10)
		r.pass(time.Second)
		r.acts(operate.ActPause, 0)
		r.fill(0, 1000)
		r.pass(time.Minute)
		r.wantLag(s, "paused", 1000)
		r.fill(0, 8)
		r.pass(time.Minute)
		r.wantLag(s, "with 8 more", 1008)
		p.end()

		p, s = r.watch("a", each(record), options{})
		r.pass(time.Minute)
		r.wantLag(s, "restarted", 1008)
		r.acts(operate.ActResume, 0)
		r.pass(time.Minute)
		r.wantLag(s, "resumed", 0)
		p.end()
	})
}

func TestTheLagOfAClaimedPartitionWithNothingToApplyIsKnown(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		p, s := r.watch("a", each(record), options{})
		r.pass(time.Minute)
		r.wantLag(s, "claimed", 0)
		r.pass(time.Hour)
		if asked := seen[consumer.Behind](p); len(asked) != 1 {
			t.Errorf("a partition that is well was asked for %d times, want once", len(asked))
		}
		p.end()
	})
}

// many is a source that is asked for lags.
type many struct {
	consumer.Source
	asked *int
	err   error
}

type manyTenure struct {
	consumer.Tenure
	s many
}

func (s many) Run(ctx context.Context, joined func(error), own func(context.Context, consumer.Tenure)) error {
	return s.Source.Run(ctx, joined, func(ctx context.Context, t consumer.Tenure) { own(ctx, manyTenure{t, s}) })
}

func (t manyTenure) Lag(ctx context.Context, from epoch.Fence) (int64, error) {
	*t.s.asked++ // one at a time
	<-time.After(10 * time.Millisecond)
	if t.s.err != nil {
		return 0, t.s.err
	}
	return t.Tenure.Lag(ctx, from)
}

func TestHaltedPartitionsAreAskedForOneAtATimeAndNotOftenerThanTheyMay(t *testing.T) {
	const partitions = 100
	inBubble(t, partitions, func(r *rig) {
		fails := func(context.Context, tx, consumer.Message, epoch.Epoch) error {
			return consumer.Permanent(errors.New("no"))
		}
		for n := range int32(partitions) {
			r.fill(n, 1)
		}
		p, asked := r.process("a", nil), 0
		p.run(func(ctx context.Context) error {
			return consumer.Run(ctx, many{p.member, &asked, nil}, p.sink, each(fails), p.watched(options{}))
		})
		r.pass(10 * time.Minute)
		p.end()
		if most := partitions * 61; asked > most || asked < most/2 {
			t.Errorf("asked %d times in ten minutes, want %d at most", asked, most)
		}
	})
}

func TestALagThatTheSourceDoesNotTellIsUnknown(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		p, asked := r.process("a", nil), 0
		s, o := statusOf(p, options{})
		r.fill(0, 3)
		p.run(func(ctx context.Context) error {
			return consumer.Run(ctx, many{p.member, &asked, errors.New("the broker is gone")}, p.sink, each(record), o)
		})
		r.pass(time.Second)
		r.wantLag(s, "applied", 0)
		r.acts(operate.ActPause, 0)
		r.pass(time.Minute)
		r.wantLag(s, "paused", -1)
		p.end()
	})
}
