package natssource

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/consumer/internal/tenures"
	"github.com/epochfence/epochfence/epoch"
)

// mirror is the value of a position's key.
type mirror struct {
	Next  epoch.Offset `json:"next"`
	Print *epoch.Mark  `json:"print,omitempty"` // of the message before Next; see [fingerprint]
	Epoch epoch.Epoch  `json:"epoch,omitempty"`
	Owner string       `json:"owner,omitempty"` // of the process that wrote it; others leave it out
	Log   string       `json:"log,omitempty"`   // of which it is; one that somebody wrote by hand need not say so
	Lag   int64        `json:"lag,omitempty"`   // messages that were waiting
}

// ours reports whether one of us wrote it.
func (m mirror) ours() bool { return m.Owner != "" }

// Committed implements [consumer.Tenure]: the position's key, or else how far a
// durable consumer has got that did this work before.
func (t *tenure) Committed(ctx context.Context) (epoch.Position, bool, error) {
	at, ok, err := t.committed(ctx)
	if over := t.err(); over != nil {
		err = over
	}
	if err != nil {
		return epoch.Position{}, false, fmt.Errorf("natssource: where group %q has got to in %s: %w", t.s.Group, t.streamPartition, err)
	}
	return at, ok, nil
}

func (t *tenure) committed(ctx context.Context) (epoch.Position, bool, error) {
	m, ok, err := t.mirrored(ctx)
	if err != nil {
		return epoch.Position{}, false, err
	}
	at := epoch.Position{Offset: m.Next, Mark: epoch.NoMark}
	switch {
	case !ok || m.ours():
		// Ours is not from before the fence, but from another sink, or from this
		// one before it was put back: what was applied went with it (R9).
		acked, err := t.log.acked(ctx, t.incarnation, t.number)
		if err != nil || acked == 0 {
			return epoch.Position{}, false, err
		}
		at.Offset = acked
	case m.Print != nil:
		at.Mark = *m.Print
		return at, true, nil
	}
	at.Mark, err = printOf(ctx, t.log.stored, uint64(at.Offset)-1)
	return at, true, err
}

// brokenPositionError: the key of a position holds something else.
type brokenPositionError struct {
	key    string
	bucket *bucket
	err    error
}

func (e *brokenPositionError) Error() string {
	return fmt.Sprintf(`key %s of bucket %q holds no position: put it right (nats kv put %s %s '{"next":1234}'), or begin without one (%s): %v`,
		e.key, e.bucket.name, e.bucket.name, e.key, e.bucket.removal(e.key), e.err)
}

func (e *brokenPositionError) Unwrap() error { return e.err }

// mirrored reads the position's key. One of another log is none.
func (t *tenure) mirrored(ctx context.Context) (mirror, bool, error) {
	m, ok, err := t.s.mirrored(ctx, t.streamPartition)
	if m.Log != "" && m.Log != t.origin.Log {
		return mirror{}, false, err
	}
	return m, ok, err
}

// mirrored reads a position's key.
func (s *Source) mirrored(ctx context.Context, p streamPartition) (mirror, bool, error) {
	e, err := s.bucket.get(ctx, s.keys.position(p))
	if err != nil || !e.live {
		return mirror{}, false, err
	}
	m, err := positionOf(e.value)
	if err != nil {
		return mirror{}, false, &brokenPositionError{s.keys.position(p), s.bucket, err}
	}
	return m, true, nil
}

// publish writes the position where operators look, if it is a new one, or more messages wait behind it. Nothing is
// decided by it, so that a write that fails is made up for by the next.
func (t *tenure) publish(ctx context.Context) {
	// One at a time: of two whose writes and answers cross, the older position would
	// stay for as long as the partition is quiet.
	select {
	case t.writing <- struct{}{}:
		defer func() { <-t.writing }()
	case <-ctx.Done():
		return
	}
	_, due := t.Unpublished()
	at, known := t.Newest()
	lag := t.log.lag(t.number)
	if !due && (!known || lag == t.lag) {
		return
	}
	err := t.learn(ctx, at)
	if err == nil && t.mayPublish(at) {
		err = t.write(ctx, mirror{Next: at.Next, Print: &at.Mark, Epoch: at.Epoch, Owner: t.s.owner(), Log: at.Log, Lag: lag})
		if err == nil {
			t.Published(at.Next)
			t.lag = lag
			return
		}
	}
	if err != nil {
		t.s.log.Debug("position not mirrored", "stream", t.stream, "partition", t.number, "next", at.Next, "err", err)
	}
}

func (t *tenure) write(ctx context.Context, m mirror) error {
	data, err := json.Marshal(m)
	if err == nil {
		_, err = t.s.bucket.write(ctx, t.s.keys.position(t.streamPartition), data)
	}
	return err
}

// learn finds out what others had published for the group when the tenure began,
// if that is not known yet. Where they have left something that is no position, ours takes its
// place once the partition was claimed: then nobody begins there.
func (t *tenure) learn(ctx context.Context, at epoch.Fence) error {
	return t.Learn(func() (epoch.Offset, bool, error) {
		m, ok, err := t.mirrored(ctx)
		var broken *brokenPositionError
		if errors.As(err, &broken) && at.Epoch > 0 {
			t.s.log.Warn("the key of a position held something else, and is overwritten with ours", "key", broken.key, "next", at.Next, "err", broken.err)
			return 0, false, nil
		}
		return m.Next, ok && !m.ours(), err
	})
}

// mayPublish reports whether a position may take the place of what the group
// had published through others (R8).
func (t *tenure) mayPublish(at epoch.Fence) bool {
	if theirs, say := t.ToSay(at); say {
		t.s.log.Warn(tenures.NotHeeded, "stream", t.stream, "partition", t.number, "committed", theirs, "next", at.Next, "remedy", tenures.Remedy)
	}
	_, stays := t.Theirs(at)
	return !stays
}

// acked is how far a durable consumer has got with a partition that did this work
// before; zero if there is none. One that is named in the options, and was not to deliver all
// of the partition, is an error.
func (l *streamLog) acked(ctx context.Context, in incarnation, n int32) (epoch.Offset, error) {
	info, err := l.look(ctx)
	if err == nil && incarnationOf(info) != in {
		err = tenures.Lost(errOtherStream)
	}
	if err != nil {
		return 0, err
	}
	name := cmp.Or(l.stream.Durable, l.group)
	if !consumerName.MatchString(name) {
		return 0, nil
	}
	var c struct {
		AckFloor struct {
			Stream uint64 `json:"stream_seq"`
		} `json:"ack_floor"`
		Config struct {
			Replicas int      `json:"num_replicas"`
			Filter   string   `json:"filter_subject"`
			Filters  []string `json:"filter_subjects"`
		} `json:"config"`
		Cluster *jetstream.ClusterInfo `json:"cluster"`
	}
	err = ask(ctx, l.js, "CONSUMER.INFO."+l.stream.Name+"."+name, struct{}{}, &c)
	switch {
	case hasCode(err, jetstream.JSErrCodeConsumerNotFound) && l.stream.Durable != "":
		return 0, fmt.Errorf("there is no consumer %q, which Stream.Durable names: %w", name, err)
	case hasCode(err, jetstream.JSErrCodeConsumerNotFound):
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("the position of consumer %q: %w", name, denied(l.js.Conn(), apiPrefix(l.js)+"CONSUMER.INFO.", err))
	case c.Cluster == nil && info.Cluster != nil && info.Cluster.Name != "",
		c.Cluster != nil && !leads(c.Cluster, cmp.Or(c.Config.Replicas, info.Config.Replicas)):
		return 0, errNoLeader // a server of a cluster that has only heard of the consumer may answer, too
	}
	filters := c.Config.Filters
	if c.Config.Filter != "" {
		filters = []string{c.Config.Filter}
	}
	if !covers(filters, l.filters[n]) {
		if l.stream.Durable == "" {
			return 0, nil // it happens to have the group's name
		}
		return 0, fmt.Errorf("consumer %q, which Stream.Durable names, was to deliver %q alone, not all of this partition's %q, and so cannot say how far that was done: "+
			"name one that delivers all of it, or none, and put the position into its key by hand", name, filters, cmp.Or(l.filters[n], everything))
	}
	if c.AckFloor.Stream == 0 {
		return 0, nil
	}
	return epoch.Offset(c.AckFloor.Stream + 1), nil
}

// covers reports whether a consumer with such filters delivers everything that
// matches a partition's; an empty filter matches everything.
func covers(filters []string, partition string) bool {
	return len(filters) == 0 || slices.ContainsFunc(filters, func(f string) bool { return contains(f, cmp.Or(partition, everything)) })
}

// consumerName is what a durable consumer can be called.
var consumerName = regexp.MustCompile(`^[^.*>\s/\\]+$`)
