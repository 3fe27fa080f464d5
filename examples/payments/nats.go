package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/consumer/natssource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/show"
	"github.com/epochfence/epochfence/ops/statusz"
)

// embeddedServer starts a nats-server in this process, with its streams below dir.
func embeddedServer(dir string) (url string, stop func(), err error) {
	s, err := server.NewServer(&server.Options{
		ServerName: "payments", Host: "127.0.0.1", Port: server.RANDOM_PORT,
		JetStream: true, StoreDir: dir, JetStreamMaxMemory: 64 << 20, JetStreamMaxStore: 4 << 30,
		NoSigs: true, NoLog: true,
	})
	if err != nil {
		return "", nil, fmt.Errorf("start a nats-server: %w", err)
	}
	s.Start()
	if !s.ReadyForConnections(show.Preparing) {
		s.Shutdown()
		return "", nil, fmt.Errorf("the nats-server of this process is not ready after %v", show.Preparing)
	}
	return s.ClientURL(), func() { s.Shutdown(); s.WaitForShutdown() }, nil
}

func connect(urls, name string) (*nats.Conn, error) {
	conn, err := nats.Connect(urls, nats.Name(name), nats.Timeout(show.Reachable),
		nats.MaxReconnects(-1), nats.ReconnectWait(200*time.Millisecond))
	if err != nil {
		return nil, fmt.Errorf("payments: -nats: cannot reach NATS; is it running, and is this its client port? %w", err)
	}
	return conn, nil
}

type broker struct {
	conn     *nats.Conn
	js       jetstream.JetStream
	replicas int
}

func connectBroker(ctx context.Context, urls string, replicas int) (*broker, error) {
	conn, err := connect(urls, "payments")
	if err != nil {
		return nil, err
	}
	js, err := jetstream.New(conn, jetstream.WithPublishAsyncTimeout(ackWait))
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, show.Reachable)
		defer cancel()
		_, err = js.AccountInfo(ctx)
	}
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("-nats: JetStream does not answer; is it on (nats-server -js)? %w", err)
	}
	return &broker{conn: conn, js: js, replicas: replicas}, nil
}

// transform moves the payments of an account into the account's partition.
func transform(stream string, partitions int) natssource.Transform {
	return natssource.Transform{
		Source:      stream + ".*",
		Destination: fmt.Sprintf("%s.{{partition(%d,1)}}.{{wildcard(1)}}", stream, partitions),
	}
}

// partitionOf computes the server's partition(N, …) of an account.
func partitionOf(account string, partitions int) int32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(account))
	return int32(h.Sum32() % uint32(partitions))
}

// patiently retries an idempotent request: a node that is killed never answers the requests it has
// received.
func patiently(ctx context.Context, request func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, show.Preparing)
	defer cancel()
	var last error
	err := backoff.Retry(func() error {
		try, cancel := context.WithTimeout(ctx, ackWait)
		defer cancel()
		last = request(try)
		var refused *jetstream.APIError
		if errors.As(last, &refused) && refused.Code != unavailable && refused.ErrorCode != noPeers {
			return backoff.Permanent(last)
		}
		return last
	}, backoff.WithContext(backoff.NewConstantBackOff(200*time.Millisecond), ctx))
	if err != nil {
		return last
	}
	return nil
}

const (
	unavailable = 503   // the code of an answer that will change once there is a leader,
	noPeers     = 10005 // and the error code of a leader that has not yet heard from all servers
)

func (b *broker) createStream(ctx context.Context, stream string, partitions int) error {
	err := patiently(ctx, func(ctx context.Context) error {
		_, err := b.js.CreateStream(ctx, jetstream.StreamConfig{
			Name: stream, Subjects: []string{stream + ".*"}, Replicas: b.replicas, Storage: jetstream.FileStorage,
		})
		return err
	})
	if err != nil {
		return fmt.Errorf("create stream %s with %d replicas: %w", stream, b.replicas, err)
	}
	return patiently(ctx, func(ctx context.Context) error {
		return natssource.EnsureTransform(ctx, b.js, stream, transform(stream, partitions))
	})
}

func (b *broker) createConsumer(ctx context.Context, stream, name string, ackWait time.Duration) error {
	err := patiently(ctx, func(ctx context.Context) error {
		_, err := b.js.CreateConsumer(ctx, stream, jetstream.ConsumerConfig{
			Durable: name, AckPolicy: jetstream.AckExplicitPolicy, AckWait: ackWait, DeliverPolicy: jetstream.DeliverAllPolicy,
		})
		return err
	})
	if err != nil {
		return fmt.Errorf("create consumer %s of stream %s: %w", name, stream, err)
	}
	return nil
}

// unacked returns the number of undelivered and unacknowledged messages of a consumer.
func (b *broker) unacked(ctx context.Context, stream, name string) (int, error) {
	var c jetstream.Consumer
	err := patiently(ctx, func(ctx context.Context) (err error) {
		c, err = b.js.Consumer(ctx, stream, name)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("consumer %s of stream %s: %w", name, stream, err)
	}
	info := c.CachedInfo()
	return int(info.NumPending) + info.NumAckPending, nil
}

// logs returns JetStream's view of a stream's partitions. To count the remaining messages, it makes
// a consumer at the fence's position and deletes it at once.
func (b *broker) logs(ctx context.Context, stream string, fences []epoch.Fence) (map[epoch.Partition]statusz.Log, error) {
	s, err := b.js.Stream(ctx, stream)
	if err != nil {
		return nil, fmt.Errorf("stream %s: %w", stream, err)
	}
	state := s.CachedInfo().State
	logs := map[epoch.Partition]statusz.Log{}
	for _, f := range fences {
		log := statusz.Log{Begin: epoch.Offset(max(state.FirstSeq, 1)), End: epoch.Offset(state.LastSeq + 1)}
		if f.Next < log.End {
			c, err := s.CreateConsumer(ctx, jetstream.ConsumerConfig{
				FilterSubject: fmt.Sprintf("%s.%d.*", stream, f.Partition.Number),
				DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: uint64(max(f.Next, 1)),
				AckPolicy: jetstream.AckNonePolicy, MemoryStorage: true, Replicas: 1, HeadersOnly: true, InactiveThreshold: ackWait,
			})
			if err != nil {
				return nil, fmt.Errorf("consumer of stream %s: %w", stream, err)
			}
			log.Lag = int64(c.CachedInfo().NumPending)
			_ = s.DeleteConsumer(ctx, c.CachedInfo().Name) // after an error the server deletes it by itself
		}
		logs[f.Partition] = log
	}
	return logs, nil
}

func (b *broker) remove(stream, bucket string) error {
	var errs []error
	for name, remove := range map[string]func(context.Context) error{
		"stream " + stream: func(ctx context.Context) error { return b.js.DeleteStream(ctx, stream) },
		"bucket " + bucket: func(ctx context.Context) error { return b.js.DeleteKeyValue(ctx, bucket) },
	} {
		err := patiently(context.Background(), remove)
		if err != nil && !errors.Is(err, jetstream.ErrBucketNotFound) && !errors.Is(err, jetstream.ErrStreamNotFound) {
			errs = append(errs, fmt.Errorf("delete %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

// send publishes the payments of seed to stream at the pace of pace, by account. It returns their
// places once the stream has acknowledged all.
func (b *broker) send(ctx context.Context, stream string, seed uint64, accounts, partitions, messages int, pace *show.Pace) ([]show.Place, error) {
	sent := make([]show.Place, 0, messages)
	for {
		n, err := pace.Wait(ctx)
		if err != nil {
			return nil, err
		}
		if n == 0 {
			return sent, nil
		}
		for end := len(sent) + n; len(sent) < end; {
			var some []Payment
			for i := len(sent); i < min(end, len(sent)+atOnce); i++ {
				some = append(some, payment(seed, i, accounts))
			}
			offsets, err := b.sendSome(ctx, stream, some)
			if err != nil {
				return nil, fmt.Errorf("send to stream %s: %w", stream, err)
			}
			for i, at := range offsets {
				sent = append(sent, show.Place{Partition: partitionOf(some[i].Account, partitions), Offset: at})
			}
		}
	}
}

func (b *broker) sendSome(ctx context.Context, stream string, some []Payment) ([]int64, error) {
	acks := make([]jetstream.PubAckFuture, len(some))
	for i, p := range some {
		m, err := message(stream, p)
		if err != nil {
			return nil, err
		}
		if acks[i], err = b.js.PublishMsgAsync(m); err != nil {
			return nil, fmt.Errorf("%s: %w", p.name(), err)
		}
	}
	offsets := make([]int64, len(some))
	for i, p := range some {
		var err error
		if offsets[i], err = b.acknowledged(ctx, acks[i]); err != nil {
			return nil, fmt.Errorf("%s: %w", p.name(), err)
		}
	}
	return offsets, nil
}

// message has the payment as its Nats-Msg-Id, so that the stream recognises a repeated message.
func message(stream string, p Payment) (*nats.Msg, error) {
	value, err := json.Marshal(p)
	m := nats.NewMsg(stream + "." + p.Account)
	m.Data = value
	m.Header.Set(jetstream.MsgIDHeader, p.name())
	return m, err
}

const (
	// atOnce limits the messages without an acknowledgement.
	atOnce = 512

	// ackWait is how long a stream may take to acknowledge a message before it is sent again.
	// sending limits all attempts together: while a node is down, the other nodes first elect a
	// leader.
	ackWait = 5 * time.Second
	sending = time.Minute
)

// acknowledged waits for a message's sequence, and sends the message again until it is known.
func (b *broker) acknowledged(ctx context.Context, ack jetstream.PubAckFuture) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, sending)
	defer cancel()
	select {
	case a := <-ack.Ok():
		return int64(a.Sequence), nil
	case <-ack.Err(): //nolint:errcheck // whatever it is, or that none came in time, it is sent again
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
	again := nats.NewMsg(ack.Msg().Subject)
	again.Data = ack.Msg().Data
	again.Header.Set(jetstream.MsgIDHeader, ack.Msg().Header.Get(jetstream.MsgIDHeader))
	for {
		try, cancel := context.WithTimeout(ctx, ackWait)
		a, err := b.js.PublishMsg(try, again)
		cancel()
		if err == nil {
			return int64(a.Sequence), nil
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			return 0, fmt.Errorf("%w; last: %w", context.Cause(ctx), err)
		}
	}
}

func partitionIn(subject string) string {
	parts := strings.Split(subject, ".")
	if len(parts) != 3 {
		return "-1"
	}
	return parts[1]
}
