package natssource

import (
	"context"
	"errors"
	"time"
)

const (
	// lookEvery is how often a reader that waits for messages sees whether the stream has
	// grown. All readers of a stream share what its leader says.
	lookEvery = 2 * time.Second

	// askEvery is how often, at most, it then asks for the first message of its partition.
	askEvery = 5 * time.Second

	// onItsWay is how long a message that the stream has may take to arrive, at first.
	onItsWay = time.Second
)

var (
	// errSilent: a request should have ended, or brought something.
	errSilent = errors.New("nothing was heard from the consumer")

	// errStalled: the stream holds a message for us that does not come.
	errStalled = errors.New("the consumer does not deliver a message that the stream has")

	// errForgotten: requests are forgotten with the connection that they came by.
	errForgotten = errors.New("the connection was made again, and the server may have forgotten the request for messages")
)

// owed is what is known of messages that a stream holds for its reader and that do not come. A
// consumer that goes with its server, or was asked over a connection that is gone, does not say so, and one
// that is alive may not deliver.
type owed struct {
	looked  time.Time // when the stream was looked at last
	asked   time.Time // when its leader was asked last
	none    uint64    // it had nothing of ours up to there
	first   uint64    // a message that it has and that has not come; 0: there is none
	noticed time.Time // when that was
}

// due is when to look, or to look again for a message that has not come.
func (o owed) due(patience time.Duration) time.Time {
	if o.first > 0 {
		return o.noticed.Add(patience)
	}
	return o.looked.Add(lookEvery)
}

// patience is how long a message may be on its way: longer each time that another consumer did
// not deliver it either, as it may take them long to find it.
func (r *reader) patience() time.Duration { return onItsWay << min(r.stalls, 4) }

// lookForOwed looks, if that is due, whether a message is owed to us while a request is under way.
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

// suspect notes that the stream holds a message for us, and says so if it had the time to
// arrive. To ask may have taken longer than that, if the message is a large one.
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
