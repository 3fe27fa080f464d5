package natssource

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
)

// This file decides when a consumer that delivers nothing is replaced. open.go creates the next
// one.

const (
	// lookEvery is how often a waiting reader checks whether the stream has grown. All readers of a
	// stream share the leader's answer.
	lookEvery = 2 * time.Second

	// askEvery is the least time between two requests for the first message of a partition.
	askEvery = 5 * time.Second

	// onItsWay is how long a message may be on its way, at first.
	onItsWay = time.Second
)

var (
	errSilent = fmt.Errorf("nothing was heard from the consumer: %w", nats.ErrTimeout)

	errStalled = errors.New("the consumer does not deliver a message that the stream has")

	errForgotten = errors.New("the connection was made again, and the server may have forgotten the request for messages")
)

// owed is what a reader knows about messages that its stream holds and its consumer does not
// deliver. A consumer that went with its server, or was asked over a lost connection, reports no
// error, and a live consumer may fail to deliver.
type owed struct {
	looked  time.Time // last check of the stream's end
	asked   time.Time // last request for the first message of ours
	none    uint64    // the leader had nothing of ours up to here
	first   uint64    // a message that the leader has and that has not come; 0: none
	noticed time.Time
}

func (o owed) due(patience time.Duration) time.Time {
	if o.first > 0 {
		return o.noticed.Add(patience)
	}
	return o.looked.Add(lookEvery)
}

// patience returns how long a message may be on its way. It doubles each time that a new consumer
// did not deliver the message either, because consumers may take long to find it.
func (r *reader) patience() time.Duration { return onItsWay << min(r.stalls, 4) }

// lookForOwed checks, if that is due, whether a message is owed to the request under way.
func (r *reader) lookForOwed(ctx context.Context) error {
	o := &r.owed
	switch {
	case r.pull.forgotten():
		return errForgotten
	case time.Now().Before(o.due(r.patience())):
		return nil
	case o.first > 0:
		return r.suspect(o.first)
	}
	o.looked = time.Now()
	now, err := r.l.seen(ctx, lookEvery/2)
	if err != nil {
		return nil //nolint:nilerr // skip says so, if it continues
	}
	end, from := now.info.State.LastSeq, max(r.at, o.none+1)
	if end < from || time.Since(o.asked) < askEvery {
		return nil
	}
	o.asked = time.Now()
	switch ours, err := r.firstOfOurs(ctx, from); {
	case err != nil:
		return nil //nolint:nilerr // the same
	case ours > 0 && ours <= end:
		return r.suspect(ours)
	}
	o.none = end
	return nil
}

// suspect records that the stream holds a message for us, and returns errStalled if it had time to
// arrive. Asking the leader for a large message may have taken longer than that.
func (r *reader) suspect(ours uint64) error {
	if r.owed.first != ours {
		r.owed.first, r.owed.noticed = ours, time.Now()
	}
	if time.Since(r.owed.noticed) < r.patience() || r.pull.hasMore() {
		return nil
	}
	r.stalls++
	return errStalled
}
