package natssource

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/jsapi"
)

// This file moves the position of a partition that has nothing to deliver, so that retention does
// not pass it.

// skip moves the position over sequences in which the stream holds nothing of the partition, so
// that the stream's beginning does not pass the position of a quiet or slow partition.
//
// skip asks only the stream's leader, because the consumer's server may lag behind. The leader says
// where the stream ends, then which message of ours comes first, then that it still leads the same
// stream, which has lost nothing above the position meanwhile. idle says that a request for
// messages was under way all the time.
func (r *reader) skip(ctx context.Context, idle bool) error {
	r.lastSkip = time.Now()
	before, err := r.lookAgain(ctx)
	if err == nil {
		err = r.fits(ctx, before)
	}
	if err != nil {
		return err
	}
	defer func() { r.scheduleSkip(before.State.FirstSeq, time.Now()) }()
	if r.at > before.State.LastSeq {
		return nil
	}
	ours, err := r.firstOfOurs(ctx, r.at)
	if err != nil {
		return err
	}
	after, err := r.lookAgain(ctx)
	switch {
	case err != nil:
		return err
	case leader(before) != leader(after):
		return nil // next time
	case after.State.FirstSeq > r.at:
		return r.passed(r.at, after.State.FirstSeq)
	}
	if lost, err := r.mayHaveExpired(ctx, after, r.at, r.since); err != nil {
		return err
	} else if lost {
		return r.misfit(consumer.ErrOffsetExpired, r.at, cmp.Or(ours, after.State.LastSeq+1))
	}
	end, last := before.State.LastSeq, fingerprint(before.State.LastTime)
	if ours > 0 && ours <= end {
		if idle {
			if err := r.suspect(ours); err != nil {
				return err
			}
		}
		if end = ours - 1; end < r.at {
			return nil
		}
		if last, err = printOf(ctx, r.stored, end); err != nil {
			return err
		}
	} else {
		r.undelivered.first = 0
		r.l.lags[r.p.Number].Store(0)
	}
	if lost, err := r.l.lost(ctx, after, span{r.at, end}); err != nil {
		return err
	} else if lost {
		return r.misfit(consumer.ErrOffsetExpired, r.at, cmp.Or(ours, end+1))
	}
	r.pass(end, last)
	if end == before.State.LastSeq {
		r.since = before.State.LastTime
	}
	return nil
}

// scheduleSkip records where the stream begins and schedules the next skip: as late as possible,
// and several times before the beginning reaches the position at its current speed. A stream that
// is limited in messages or bytes loses its beginning as fast as it is written to.
func (r *reader) scheduleSkip(begins uint64, now time.Time) {
	r.pause, r.pressed, begins = r.l.skipPause(), false, max(begins, 1)
	if r.looked.IsZero() {
		r.pause = min(r.pause, max(r.pause/10, time.Second)) // to measure the speed
	} else if r.begins < begins {
		each := float64(now.Sub(r.looked)) / float64(begins-r.begins)
		left := each * float64(max(r.at, begins)-begins)
		soon := max(time.Duration(min(left/5, float64(time.Hour))), leastSkipPause)
		r.pause, r.pressed = min(r.pause, soon), soon < r.pause
	}
	r.begins, r.looked = begins, now
}

// nextSkip returns when to skip: later on a slow link, unless the beginning comes near.
func (r *reader) nextSkip() time.Time {
	pause := r.pause
	if !r.pressed {
		pause = max(pause, min(r.l.flight.pace(), r.l.skipPause()))
	}
	return r.lastSkip.Add(pause)
}

func (r *reader) pass(over uint64, last epoch.Mark) {
	r.at, r.print, r.fresh, r.moved = over+1, last, false, time.Now()
	end := epoch.Offset(r.at + uint64(r.l.lag(r.p.Number)))
	r.feed.put(slice{consumer.Batch{Next: epoch.Offset(r.at), Mark: last, End: end}, overhead})
}

// isAtEnd reports whether the stream was seen to end at the position after the reader got there.
// Then there is nothing to skip, and no need to ask the leader.
func (r *reader) isAtEnd(ctx context.Context) bool {
	now, err := r.l.seen(ctx, min(lookEvery/2, r.pause))
	if err != nil || !now.asked.After(r.moved) || r.isOurs(now.info) != nil {
		return false
	}
	s := now.info.State
	if s.LastSeq+1 != r.at || s.FirstSeq > r.at || r.print >= 0 && fingerprint(s.LastTime) != r.print {
		return false
	}
	if stored := upTo(now.info); stored.After(r.since) {
		r.since = stored
	}
	r.lastSkip = time.Now()
	r.scheduleSkip(s.FirstSeq, now.asked)
	return true
}

func (r *reader) lookAgain(ctx context.Context) (*jetstream.StreamInfo, error) {
	info, err := r.l.look(ctx)
	if err == nil {
		err = r.isOurs(info)
	}
	return info, err
}

func (r *reader) isOurs(info *jetstream.StreamInfo) error {
	if err := r.sameIncarnation(info); err != nil {
		return err
	}
	if t := r.l.stream.Transform; t != nil {
		if differs := t.differs(info); differs != nil {
			return differs // messages of one key are in two partitions now, or in none of ours
		}
	}
	return nil
}

// firstOfOurs asks the leader for the first message of ours from a sequence on; 0: none.
func (r *reader) firstOfOurs(ctx context.Context, from uint64) (uint64, error) {
	filter := r.filter
	if filter == "" {
		filter = everything
	}
	m, err := r.stored(ctx, seqRequest{Seq: from, NextFor: filter, NoHeaders: true})
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return 0, nil
	}
	return m.Sequence, err
}

// printOf returns the fingerprint of a message of any partition; -1 if it is gone.
func printOf(ctx context.Context, stored func(context.Context, seqRequest) (jsapi.Message, error), seq uint64) (epoch.Mark, error) {
	if seq == 0 {
		return -1, nil
	}
	m, err := stored(ctx, seqRequest{Seq: seq, NoHeaders: true})
	switch {
	case errors.Is(err, jetstream.ErrMsgNotFound):
		return -1, nil
	case err != nil:
		return -1, err
	}
	return fingerprint(m.Time), nil
}

func leader(info *jetstream.StreamInfo) string {
	if info.Cluster == nil {
		return ""
	}
	return info.Cluster.Leader
}
