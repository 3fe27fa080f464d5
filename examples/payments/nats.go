package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/epochfence/epochfence/consumer/natssource"
	"github.com/epochfence/epochfence/internal/show"
)

func connect(urls, name string) (jetstream.JetStream, error) {
	conn, err := nats.Connect(urls, nats.Name(name), nats.Timeout(show.Reachable),
		nats.MaxReconnects(-1), nats.ReconnectWait(200*time.Millisecond))
	if err != nil {
		return nil, fmt.Errorf("payments: -nats: cannot reach NATS; is it running, and is this its client port? %w", err)
	}
	return jetstream.New(conn)
}

// transform moves the payments of an account into the account's partition.
func transform(stream string, partitions int) natssource.Transform {
	return natssource.Transform{
		Source:      stream + ".*",
		Destination: fmt.Sprintf("%s.{{partition(%d,1)}}.{{wildcard(1)}}", stream, partitions),
	}
}

const (
	unavailable = 503   // the code of an answer that will change once there is a leader,
	noPeers     = 10005 // and the error code of a leader that has not yet heard from all servers

	// atOnce limits the messages without an acknowledgement.
	atOnce = 512
	// ackWait is how long JetStream may take to answer before it is asked again.
	ackWait = 5 * time.Second
	// asking limits all attempts together: while a node is down, the other nodes first elect a leader.
	asking = time.Minute
)

// patiently retries an idempotent request: a node that is killed never answers the requests it has
// received.
func patiently(ctx context.Context, request func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, asking)
	defer cancel()
	var last error
	err := backoff.Retry(func() error {
		try, cancel := context.WithTimeout(ctx, ackWait)
		defer cancel()
		last = request(try)
		if refused, ok := errors.AsType[*jetstream.APIError](last); ok && refused.Code != unavailable && refused.ErrorCode != noPeers {
			return backoff.Permanent(last)
		}
		return last
	}, backoff.WithContext(backoff.NewConstantBackOff(200*time.Millisecond), ctx))
	if err != nil {
		return last
	}
	return nil
}

func createStream(ctx context.Context, js jetstream.JetStream, stream string, partitions, replicas int) error {
	err := patiently(ctx, func(ctx context.Context) error {
		_, err := js.CreateStream(ctx, jetstream.StreamConfig{
			Name: stream, Subjects: []string{stream + ".*"}, Replicas: replicas, Storage: jetstream.FileStorage,
		})
		return err
	})
	if err != nil {
		return fmt.Errorf("create stream %s with %d replicas: %w", stream, replicas, err)
	}
	return patiently(ctx, func(ctx context.Context) error {
		return natssource.EnsureTransform(ctx, js, stream, transform(stream, partitions))
	})
}

// removeStream removes the stream, and that of the bucket of the same name.
func removeStream(js jetstream.JetStream, name string) (err error) {
	for _, stream := range []string{name, "KV_" + name} {
		deleting := patiently(context.Background(), func(ctx context.Context) error { return js.DeleteStream(ctx, stream) })
		if !errors.Is(deleting, jetstream.ErrStreamNotFound) {
			err = errors.Join(err, deleting)
		}
	}
	return err
}

// send publishes a payment for each element of sent, by account, and stores its sequence there. It
// has the payment as its Nats-Msg-Id, so that the stream recognises a message that was sent again.
func send(ctx context.Context, js jetstream.JetStream, stream string, sent []int64, payment func(i int) Payment) error {
	publishing, ctx := errgroup.WithContext(ctx)
	publishing.SetLimit(atOnce)
	for i := range sent {
		publishing.Go(func() error {
			p := payment(i)
			value, err := json.Marshal(p)
			if err != nil {
				return err
			}
			err = patiently(ctx, func(ctx context.Context) error {
				ack, err := js.Publish(ctx, stream+"."+p.Account, value, jetstream.WithMsgID(p.name()))
				if err == nil {
					sent[i] = int64(ack.Sequence)
				}
				return err
			})
			if err != nil {
				return fmt.Errorf("send %s to stream %s: %w", p.name(), stream, err)
			}
			return nil
		})
	}
	return publishing.Wait()
}
