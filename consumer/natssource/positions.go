package natssource

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"sync"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/internal/tenures"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/form"
	"github.com/epochfence/epochfence/internal/jsapi"
	"github.com/epochfence/epochfence/internal/waits"
	"github.com/epochfence/epochfence/lease"
)

// This file reads and writes positions in the bucket: where a group had got to before its first claim
// (R9), and when our position may replace that one (R8). The sink alone decides where a partition is.

// position is the value of a position's key. Each owner replaces all of it.
type position struct {
	form.Version
	Next  epoch.Offset `json:"next"`
	Print *epoch.Mark  `json:"print,omitempty"` // fingerprint of the message before Next
	Epoch epoch.Epoch  `json:"epoch,omitempty"`
	Owner string       `json:"owner,omitempty"` // the process that wrote the position; other writers leave it out
	Log   string       `json:"log,omitempty"`   // the log of the position; an operator may leave it out
	Lag   int64        `json:"lag,omitempty"`
}

// ours reports whether a process of ours wrote the position.
func (p position) ours() bool { return p.Owner != "" }

// mostPosition is more than any position takes, in bytes.
const mostPosition = 16 << 10

func positionOf(value []byte) (position, error) {
	p := position{Next: -1}
	if len(value) > mostPosition {
		return position{}, fmt.Errorf("it has %d bytes", len(value))
	}
	err := form.Parse(value, &p)
	if err == nil && p.Next < 0 {
		err = errors.New(`it has no "next"`)
	}
	return p, err
}

// positionKey is the key of a position: in the bucket, GROUP.position.STREAM.NUMBER.
func positionKey(group string, p lease.Resource) string {
	return cas.Join(group, "position", p.Name, strconv.Itoa(int(p.Number)))
}

// published is a position's key as this tenure left it. It is guarded by tenure.writing.
type published struct {
	item cas.Item
	lag  int64
}

// write replaces the position, whoever wrote it.
func (t *tenure) write(ctx context.Context, p position) error {
	data, err := json.Marshal(p)
	if err != nil {
		return err
	}
	if t.published.item.Key == "" {
		t.published.item.Key = positionKey(t.s.Group, t.Resource)
	}
	for {
		item, err := t.s.store.Swap(ctx, t.published.item, data, nil)
		if err == nil {
			t.published = published{item, p.Lag}
			return nil
		}
		if !errors.Is(err, cas.ErrConflict) {
			return err
		}
		if t.published.item, err = t.s.store.Get(ctx, t.published.item.Key); err != nil {
			return err
		}
	}
}

func (t *tenure) inTime(ctx context.Context, do func(context.Context)) {
	ctx, cancel := t.UntilLost(ctx)
	defer cancel()
	ctx, stop := context.WithTimeout(ctx, t.s.LeaseTTL/3)
	defer stop()
	do(ctx)
}

const publishAtOnce = 8

// publishPositions writes changed positions every third of LeaseTTL until ctx ends.
func (s *Source) publishPositions(ctx context.Context) {
	for waits.Sleep(ctx, waits.Jitter(s.LeaseTTL/3)) {
		due := make(chan *tenure)
		var writers sync.WaitGroup
		for range publishAtOnce {
			writers.Go(func() {
				for t := range due {
					t.inTime(ctx, t.publish)
				}
			})
		}
		for _, t := range s.running() {
			due <- t
		}
		close(due)
		writers.Wait()
	}
}

// Committed implements [consumer.Tenure]. It returns the position that somebody else wrote into the
// partition's key. If there is none, it returns the position after the ack floor of the durable
// consumer that did this work before.
func (t *tenure) Committed(ctx context.Context) (epoch.Position, bool, error) {
	at, ok, err := t.committed(ctx)
	if over := t.Err(); over != nil {
		err = over
	}
	if err != nil {
		return epoch.Position{}, false, fmt.Errorf("natssource: read the position that group %q has committed in %s: %w", t.s.Group, t.Resource, err)
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
		// A position of ours comes from another sink, or from this sink before it was restored. The
		// effects before that position are not in this sink (R9).
		acked, err := t.log.acked(ctx, t.incarnation, t.Number)
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

type brokenPositionError struct {
	key    string // in the bucket
	bucket string
	err    error
}

func (e *brokenPositionError) Error() string {
	if errors.Is(e.err, form.ErrNewer) {
		return fmt.Sprintf("key %s of bucket %q: %v", e.key, e.bucket, e.err)
	}
	return fmt.Sprintf(`key %s of bucket %q holds no position: put it right (nats kv put %s %s '{"next":1234}'), or begin without one (%s): %v`,
		e.key, e.bucket, e.bucket, e.key, removal(e.bucket, e.key), e.err)
}

func (e *brokenPositionError) Unwrap() []error { return []error{consumer.ErrBlocked, e.err} }

// removal returns the command that removes a key from a bucket.
func removal(bucket, key string) string { return fmt.Sprintf("nats kv del %s %s", bucket, key) }

// mirrored returns the position in the partition's key, if it is of this log.
func (t *tenure) mirrored(ctx context.Context) (position, bool, error) {
	p, ok, err := t.s.mirrored(ctx, t.Resource)
	if p.Log != "" && p.Log != t.Origin().Log {
		return position{}, false, err
	}
	return p, ok, err
}

func (s *Source) mirrored(ctx context.Context, r lease.Resource) (position, bool, error) {
	key := positionKey(s.Group, r)
	item, err := s.store.Get(ctx, key)
	if err != nil || !item.Live {
		return position{}, false, err
	}
	p, err := positionOf(item.Value)
	if err != nil {
		return position{}, false, &brokenPositionError{s.store.KeyInBucket(key), s.Bucket, err}
	}
	return p, true, nil
}

// publish writes the position into its key, for operators, if the position or the lag has changed.
// Nothing is decided by the key, so publish does not retry a failed write.
func (t *tenure) publish(ctx context.Context) {
	// One write at a time: if two writes crossed, the older position could stay for as long as the
	// partition is quiet.
	if t.writing.Acquire(ctx, 1) != nil {
		return
	}
	defer t.writing.Release(1)
	_, due := t.Unpublished()
	at, known := t.Newest()
	lag := t.log.lag(t.Number)
	if !due && (!known || lag == t.published.lag) {
		return
	}
	err := t.learn(ctx, at)
	if err == nil && t.mayPublish(at) {
		err = t.write(ctx, position{Next: at.Next, Print: &at.Mark, Epoch: at.Epoch, Owner: t.Owner(), Log: at.Log, Lag: lag})
		if err == nil {
			t.Published(at.Next)
			return
		}
	}
	if err != nil {
		t.s.log.Debug("position not mirrored", "stream", t.Name, "partition", t.Number, "next", at.Next, "err", err)
	}
}

// learn reads, once, what others had committed for the group when the tenure began. If the key
// holds no valid position, ours replaces it once the partition was claimed, because no claim begins
// there any more.
func (t *tenure) learn(ctx context.Context, at epoch.Fence) error {
	return t.Learn(func() (epoch.Offset, bool, error) {
		m, ok, err := t.mirrored(ctx)
		if broken, ok := errors.AsType[*brokenPositionError](err); ok && at.Epoch > 0 {
			t.s.log.Warn("the key of a position held something else, and is overwritten with ours", "key", broken.key, "next", at.Next, "err", broken.err)
			return 0, false, nil
		}
		if err == nil && ok && m.ours() {
			t.LearnClaim(tenures.Claimed{Epoch: m.Epoch, Next: m.Next})
		}
		return m.Next, ok && !m.ours(), err
	})
}

// mayPublish reports whether our position may replace the one that others have committed (R8).
func (t *tenure) mayPublish(at epoch.Fence) bool {
	if theirs, say := t.ToSay(at); say {
		t.s.log.Warn(tenures.NotHeeded, "stream", t.Name, "partition", t.Number, "committed", theirs, "next", at.Next, "remedy", tenures.Remedy)
	}
	_, stays := t.Theirs(at)
	return !stays
}

// acked returns the position after the ack floor of the durable consumer that did this work before,
// or zero if there is none. It returns an error if Stream.Durable names a consumer that does not
// exist or does not deliver the whole partition.
func (l *streamLog) acked(ctx context.Context, in incarnation, n int32) (epoch.Offset, error) {
	info, err := l.look(ctx)
	if err == nil && incarnationOf(info) != in {
		err = tenures.Lost(errOtherStream)
	}
	if err != nil {
		return 0, err
	}
	name := l.durableName()
	if !consumerName.MatchString(name) {
		return 0, nil
	}
	c, err := l.durable.answer(ctx) // the same for all partitions
	switch {
	case jsapi.HasCode(err, jetstream.JSErrCodeConsumerNotFound) && l.stream.Durable != "":
		return 0, fmt.Errorf("there is no consumer %q, which Stream.Durable names: %w: %w", name, consumer.ErrBlocked, err)
	case jsapi.HasCode(err, jetstream.JSErrCodeConsumerNotFound):
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("the position of consumer %q: %w", name, jsapi.Denied(l.js.Conn(), jsapi.Prefix(l.js)+"CONSUMER.INFO.", err))
	case c.Cluster == nil && info.Cluster != nil && info.Cluster.Name != "",
		c.Cluster != nil && !jsapi.Leads(c.Cluster, cmp.Or(c.Config.Replicas, info.Config.Replicas)):
		return 0, jsapi.ErrNoLeader // a server that has only heard of the consumer may answer, too
	}
	filters := c.Config.Filters
	if c.Config.Filter != "" {
		filters = []string{c.Config.Filter}
	}
	if !covers(filters, l.filters[n]) {
		if l.stream.Durable == "" {
			return 0, nil // it happens to have the group's name
		}
		return 0, fmt.Errorf("consumer %q, which Stream.Durable names, was to deliver %q alone, not all of this partition's %q, so its position says nothing about the rest: "+
			"name a consumer that delivers all of it, or leave Stream.Durable empty and write the position into the partition's key of the bucket: %w", name, filters, cmp.Or(l.filters[n], everything), consumer.ErrBlocked)
	}
	if c.AckFloor.Stream == 0 {
		return 0, nil
	}
	return epoch.Offset(c.AckFloor.Stream + 1), nil
}

// durableInfo is what the server says of a durable consumer.
type durableInfo struct {
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

func (l *streamLog) durableName() string { return cmp.Or(l.stream.Durable, l.group) }

func (l *streamLog) requestDurable(ctx context.Context) (c durableInfo, err error) {
	err = jsapi.Ask(ctx, l.js, "CONSUMER.INFO."+l.stream.Name+"."+l.durableName(), struct{}{}, &c)
	return c, err
}

// covers reports whether a consumer with these filters delivers the whole partition.
func covers(filters []string, partition string) bool {
	return len(filters) == 0 || slices.ContainsFunc(filters, func(f string) bool { return contains(f, cmp.Or(partition, everything)) })
}

var consumerName = regexp.MustCompile(`^[^.*>\s/\\]+$`)
