package main

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/jsapi"
	"github.com/epochfence/epochfence/internal/text/secret"
)

// This file asks JetStream where logs begin and end, through ephemeral consumers that it deletes.

type natsBroker struct {
	conn    *nats.Conn
	js      jetstream.JetStream
	source  string // of leases
	timeout time.Duration
}

func openNATS(f flags) (*natsBroker, error) {
	options := []nats.Option{nats.Name("epochfence"), nats.Timeout(f.timeout)}
	if f.natsCreds != "" {
		options = append(options, nats.UserCredentials(f.natsCreds))
	}
	if err := secret.Check(f.nats); err != nil {
		return nil, usage("--nats: %w", err)
	}
	conn, err := nats.Connect(f.nats, options...)
	if err != nil {
		return nil, fmt.Errorf("connect to NATS at %s: is it running, and is this its client port? %w", secret.Text(f.nats, f.nats), err)
	}
	b := &natsBroker{conn: conn, source: "nats-kv:" + f.bucket, timeout: f.timeout}
	if f.natsDomain == "" {
		b.js, err = jetstream.New(conn)
	} else {
		b.source += "@$JS." + f.natsDomain + ".API"
		b.js, err = jetstream.NewWithDomain(conn, f.natsDomain)
	}
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("NATS: %w", err)
	}
	return b, nil
}

func (b *natsBroker) close() { b.conn.Close() }

// natsLog matches natssource's name of a log: the stream, its creation time, the partition, the
// number of partitions, and the partition's filter.
var natsLog = regexp.MustCompile(`^([^/@]+)@(\d+)(/\d+/\d+/(.*))$`)

func isNATSLog(log string) bool { return natsLog.MatchString(log) }

func natsFilter(log string) string { return natsLog.FindStringSubmatch(log)[4] }

func (b *natsBroker) extents(ctx context.Context, fences []epoch.Fence) []extent {
	ctx, cancel := context.WithTimeout(ctx, b.timeout+time.Duration(len(fences))*time.Second)
	defer cancel()
	all := make([]extent, len(fences))
	for i, f := range fences {
		if all[i], all[i].err = b.extent(ctx, f); all[i].err != nil {
			all[i].err = fmt.Errorf("NATS: stream %q: %w", f.Partition.Topic, all[i].err)
		}
	}
	return all
}

func (b *natsBroker) extent(ctx context.Context, f epoch.Fence) (extent, error) {
	stream, err := b.js.Stream(ctx, f.Partition.Topic)
	if err != nil {
		return extent{}, err
	}
	info := stream.CachedInfo()
	if !jsapi.Leads(info.Cluster, info.Config.Replicas) { // its end may be below the position, as if the stream was truncated
		return extent{}, jsapi.ErrNoLeader
	}
	parts := natsLog.FindStringSubmatch(f.Log)
	e := extent{
		log:    fmt.Sprintf("%s@%d%s", info.Config.Name, info.Created.UnixNano(), parts[3]),
		source: b.source,
		begin:  epoch.Offset(max(info.State.FirstSeq, 1)), end: epoch.Offset(info.State.LastSeq + 1),
	}
	e.written = e.end
	if f.Next >= e.end {
		return e, nil
	}
	c, err := b.peek(ctx, stream, natsFilter(f.Log), jetstream.ConsumerConfig{DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: uint64(max(f.Next, 1))})
	if err != nil {
		return e, err
	}
	e.lag = int64(c.CachedInfo().NumPending)
	_ = stream.DeleteConsumer(ctx, c.CachedInfo().Name) // after an error the server deletes it at InactiveThreshold
	return e, nil
}

// peek makes an ephemeral consumer of a partition, without acknowledgements.
func (b *natsBroker) peek(ctx context.Context, s jetstream.Stream, filter string, c jetstream.ConsumerConfig) (jetstream.Consumer, error) {
	c.FilterSubject, c.AckPolicy, c.InactiveThreshold, c.MemoryStorage, c.Replicas, c.HeadersOnly = filter, jetstream.AckNonePolicy, 5*time.Second, true, 1, true
	return s.CreateConsumer(ctx, c)
}

func (b *natsBroker) at(ctx context.Context, f epoch.Fence, t time.Time) (epoch.Offset, error) {
	ctx, cancel := context.WithTimeout(ctx, b.timeout)
	defer cancel()
	at, err := b.firstAfter(ctx, f, t)
	if err != nil {
		return 0, fmt.Errorf("NATS: the first message of %s after %s: %w", f.Partition, stamp(t), err)
	}
	return at, nil
}

func (b *natsBroker) firstAfter(ctx context.Context, f epoch.Fence, t time.Time) (epoch.Offset, error) {
	stream, err := b.js.Stream(ctx, f.Partition.Topic)
	if err != nil {
		return 0, err
	}
	c, err := b.peek(ctx, stream, natsFilter(f.Log), jetstream.ConsumerConfig{DeliverPolicy: jetstream.DeliverByStartTimePolicy, OptStartTime: &t})
	if err != nil {
		return 0, err
	}
	defer func() { _ = stream.DeleteConsumer(ctx, c.CachedInfo().Name) }()
	if c.CachedInfo().NumPending == 0 {
		return epoch.Offset(stream.CachedInfo().State.LastSeq + 1), nil
	}
	m, err := c.Next(jetstream.FetchMaxWait(b.timeout))
	if err != nil {
		return 0, err
	}
	meta, err := m.Metadata()
	if err != nil {
		return 0, err
	}
	return epoch.Offset(meta.Sequence.Stream), nil
}

// groupOf returns nothing: JetStream does not say who pulls from a durable consumer.
func (b *natsBroker) groupOf(context.Context, string) (membership, error) { return membership{}, nil }

// unfenced compares the fences with the number of partitions in the names of their logs.
func (b *natsBroker) unfenced(_ context.Context, group, topic string, fences []epoch.Fence) ([]epoch.Partition, error) {
	var missing []epoch.Partition
	var most int32
	there := map[int32]bool{}
	for _, f := range fences {
		parts := strings.SplitN(natsLog.FindStringSubmatch(f.Log)[3], "/", 4)
		var n int32
		if _, err := fmt.Sscan(parts[2], &n); err != nil {
			return nil, errors.New("NATS: the name of a log has no number of partitions")
		}
		most, there[f.Partition.Number] = max(most, n), true
	}
	for n := range most {
		if !there[n] {
			missing = append(missing, epoch.Partition{Group: group, Topic: topic, Number: n})
		}
	}
	return missing, nil
}
