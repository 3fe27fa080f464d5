package natssource

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/internal/jsapi"
)

// This file decides whether a new consumer reads the log that the position is about (R10), and when a
// consumer that delivers nothing is replaced. read.go uses a consumer's messages only then.

var errBehind = errors.New("the stream's leader does not have what was read before, and has not heard from the other servers")

// open creates a consumer that delivers from the position on, and then checks that its stream is
// the one that the position is about. The order matters: a consumer that was created before the
// stream was seen to be ours belongs to our stream and is deleted with it. Its name is not used
// again.
func (r *reader) open(ctx context.Context) error {
	ask, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	made := "epochfence-" + rand.Text()
	c, err := r.l.js.CreateConsumer(ask, r.l.stream.Name, jetstream.ConsumerConfig{
		Name:              made,
		Description:       r.p.String(),
		DeliverPolicy:     jetstream.DeliverByStartSequencePolicy,
		OptStartSeq:       r.at,
		AckPolicy:         jetstream.AckNonePolicy,
		FilterSubject:     r.filter,
		InactiveThreshold: r.l.kept(),
		MemoryStorage:     true,
		Replicas:          1,
	})
	if err != nil {
		if ask.Err() != nil {
			go r.l.forget(made, time.Second) // it may have been made: only the answer did not arrive
		}
		return fmt.Errorf("make a consumer: %w", jsapi.Denied(r.l.js.Conn(), jsapi.Prefix(r.l.js)+"CONSUMER.CREATE.", r.l.explainLimit(err)))
	}
	most := c.CachedInfo().Config.MaxRequestBatch // may be the server's limit
	r.delivered, r.backlog, r.largest = 0, int(c.CachedInfo().NumPending), 0
	if r.pull, err = newPull(r.l.js, r.l.stream.Name, made, most); err != nil {
		r.discard()
		return fmt.Errorf("subscribe to what consumer %s delivers: %w", made, err)
	}
	if err := r.check(ctx); err != nil {
		r.discard()
		return err
	}
	now := time.Now()
	r.opened, r.lastSkip, r.undelivered = now, now, undelivered{looked: now}
	if s, err := r.l.seen(ctx, time.Second); err == nil && hasAll(c.CachedInfo(), s.info) {
		r.l.lags[r.p.Number].Store(int64(c.CachedInfo().NumPending))
	}
	return nil
}

func (r *reader) check(ctx context.Context) error {
	info, err := r.lookAgain(ctx)
	if err != nil {
		return err
	}
	if err := r.fits(ctx, info); err != nil {
		return err
	}
	r.looked = time.Time{}
	r.scheduleSkip(info.State.FirstSeq, time.Now())
	return nil
}

// fits verifies that the stream in info holds the position.
func (r *reader) fits(ctx context.Context, info *jetstream.StreamInfo) error {
	if info.State.FirstSeq > r.at {
		if err := r.passed(r.at, info.State.FirstSeq); err != nil {
			return err
		}
	}
	switch {
	case r.at > info.State.LastSeq+1 && !heardFromMost(info.Cluster):
		return errBehind
	case r.at > info.State.LastSeq+1:
		return r.misfit(consumer.ErrTruncated, r.at, info.State.LastSeq+1)
	}
	if now := upTo(info); r.at > info.State.LastSeq && now.After(r.since) {
		r.since = now
	}
	return r.recognise(ctx)
}

// passed handles a stream that begins above a position. That is an error, unless no message was
// applied or put into the feed before: then the partition begins at begin, too.
func (r *reader) passed(at, begin uint64) error {
	if !r.fresh {
		return r.misfit(consumer.ErrOffsetExpired, at, begin)
	}
	r.at, r.print, r.since = max(r.at, begin), -1, time.Time{}
	return nil
}

// recognise compares the last message that was read with the message that has its sequence now. A
// stream that lost its end or was restored from a backup, and has grown since, gives the same
// sequences to other messages.
func (r *reader) recognise(ctx context.Context) error {
	if r.print < 0 || r.at < 2 {
		return nil
	}
	m, err := r.stored(ctx, seqRequest{Seq: r.at - 1, NoHeaders: true})
	switch {
	case errors.Is(err, jetstream.ErrMsgNotFound):
		return nil
	case err != nil:
		return err
	case fingerprint(m.Time) != r.print:
		return r.misfit(consumer.ErrTruncated, r.at, r.at-1)
	}
	if m.Time.After(r.since) {
		r.since = m.Time
	}
	return nil
}

// seqRequest asks for the message at Seq, or for the first one from there on that matches NextFor.
type seqRequest struct {
	Seq       uint64 `json:"seq"`
	NextFor   string `json:"next_by_subj,omitempty"`
	NoHeaders bool   `json:"no_hdr,omitempty"`
}

// stored asks the leader for a message, which is sent whole, so the request takes a permit.
func (l *streamLog) stored(ctx context.Context, request seqRequest) (jsapi.Message, error) {
	need := l.flight.usual()
	if need == 0 {
		need = int(l.js.Conn().MaxPayload())
	}
	t := l.flight.ask(need, need)
	defer l.flight.end(t, false)
	select {
	case <-t.granted:
		return l.storedNow(ctx, request)
	case <-ctx.Done():
		return jsapi.Message{}, ctx.Err()
	}
}

func (l *streamLog) storedNow(ctx context.Context, request seqRequest) (jsapi.Message, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	m, err := jsapi.Stored(ctx, l.js, l.stream.Name, request)
	if err == nil {
		l.flight.brought(len(m.Data) + len(m.Header))
	}
	return m, jsapi.Denied(l.js.Conn(), jsapi.Prefix(l.js)+"STREAM.MSG.GET.", err)
}

// stillLeading is how recently a leader must have heard from most servers to be the only leader.
// Servers wait at least 4 s before they elect another one, and hear from the leader every second.
const stillLeading = 3 * time.Second

// heardFromMost reports whether the leader is in touch with most of the stream's servers.
func heardFromMost(c *jetstream.ClusterInfo) bool {
	if c == nil {
		return true
	}
	heard := 1
	for _, peer := range c.Replicas {
		if !peer.Offline && peer.Active < stillLeading {
			heard++
		}
	}
	return heard > (len(c.Replicas)+1)/2
}

// forget deletes a consumer. If that fails, the server forgets the consumer in time.
func (l *streamLog) forget(consumer string, within time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	_ = l.js.DeleteConsumer(ctx, l.stream.Name, consumer)
}

// discard deletes the consumer.
//
// Requested messages that are on their way arrive before the answer to the deletion, so the permit is
// given back after that answer.
func (r *reader) discard() {
	permit := r.permit
	r.permit = nil
	if r.pull == nil {
		r.l.flight.end(permit, false)
		return
	}
	r.pull.close()
	go func(consumer string) {
		defer r.l.flight.end(permit, false)
		r.l.forget(consumer, time.Second+r.l.flight.delay())
	}(r.pull.consumer)
	r.pull = nil
}

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

// undelivered is what a reader knows about messages that its stream holds and its consumer does not
// deliver. A consumer that went with its server, or was asked over a lost connection, reports no
// error, and a live consumer may fail to deliver.
type undelivered struct {
	looked  time.Time // last check of the stream's end
	asked   time.Time // last request for the first message of ours
	none    uint64    // the leader had nothing of ours up to here
	first   uint64    // a message that the leader has and that has not come; 0: none
	noticed time.Time
}

func (o undelivered) due(patience time.Duration) time.Time {
	if o.first > 0 {
		return o.noticed.Add(patience)
	}
	return o.looked.Add(lookEvery)
}

// patience returns how long a message may be on its way. It doubles each time that a new consumer
// did not deliver the message either, because consumers may take long to find it.
func (r *reader) patience() time.Duration { return onItsWay << min(r.stalls, 4) }

// checkUndelivered checks, if that is due, whether the request under way misses a message.
func (r *reader) checkUndelivered(ctx context.Context) error {
	o := &r.undelivered
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
	if r.undelivered.first != ours {
		r.undelivered.first, r.undelivered.noticed = ours, time.Now()
	}
	if time.Since(r.undelivered.noticed) < r.patience() || r.pull.hasMore() {
		return nil
	}
	r.stalls++
	return errStalled
}
