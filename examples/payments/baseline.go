package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/internal/show"
)

// baselineAtOnce limits the messages that a worker has in hand.
const baselineAtOnce = 8

type usualCode struct {
	config
	stage  *show.Stage
	client *http.Client
}

// baseline is a careful form of the code that most services run: a durable consumer that all workers
// share, and explicit acks. For each message it charges, writes the payment and acks. It retries
// failures. A message without an ack is delivered again, to any worker. Incidents strike at its cue.
func baseline(ctx context.Context, c config, js jetstream.JetStream, stage *show.Stage) error {
	if stage.DB.Pool == nil {
		stage.DB.SetMaxOpenConns(1) // SQLite has one write lock in any case
	}
	var messages jetstream.Consumer
	err := patiently(ctx, func(ctx context.Context) (err error) {
		messages, err = js.CreateOrUpdateConsumer(ctx, c.Stream, jetstream.ConsumerConfig{
			Durable: c.Group, AckPolicy: jetstream.AckExplicitPolicy, AckWait: c.Lease, DeliverPolicy: jetstream.DeliverAllPolicy,
		})
		return err
	})
	if err != nil {
		return fmt.Errorf("payments: baseline: %w", err)
	}
	u := &usualCode{config: c, stage: stage, client: &http.Client{Transport: transport(), Timeout: c.Timeout}}
	var working sync.WaitGroup
	for range baselineAtOnce {
		working.Go(func() {
			for ctx.Err() == nil {
				m, err := messages.Next(jetstream.FetchMaxWait(time.Second))
				switch {
				case err == nil:
					u.apply(context.WithoutCancel(ctx), m)
				case !errors.Is(err, nats.ErrTimeout):
					slog.Warn("fetch", "err", err)
					time.Sleep(pause)
				}
			}
		})
	}
	working.Wait()
	return nil
}

func (u *usualCode) apply(ctx context.Context, m jetstream.Msg) {
	p, parsing := parse(m.Data())
	at, err := m.Metadata()
	if err := errors.Join(parsing, err); err != nil {
		slog.Error("message", "err", err)
		_ = m.Term()
		return
	}
	cue := u.stage.Cue(p.name(), show.InHand, show.BeforeSend, show.Answered, show.AfterCommit)
	cue.Reach(show.InHand)
	cue.Reach(show.BeforeSend)
	var r Receipt
	err = again(func() (err error) {
		r, err = u.charge(p)
		return err
	})
	if err == nil {
		cue.Reach(show.Answered)
		err = again(func() error {
			_, err := u.stage.DB.ExecContext(ctx, `INSERT INTO payments (payment, account, cents, charge, stream_sequence, worker) VALUES ($1, $2, $3, $4, $5, $6)`,
				p.ID, p.Account, p.Cents, r.Charge, int64(at.Sequence.Stream), u.Worker)
			return err
		})
	}
	if cue.Done(err) != nil {
		slog.Error("payment", "payment", p.ID, "err", err)
		_ = m.Nak()
		return
	}
	// The effects are done. If the process ends here, or the ack is lost, the next worker that gets
	// the message repeats them.
	if err := m.Ack(); err != nil {
		slog.Warn("ack", "payment", p.ID, "err", err)
	}
}

func (u *usualCode) charge(p Payment) (r Receipt, err error) {
	body, err := json.Marshal(p)
	if err != nil {
		return r, err
	}
	answer, err := u.client.Post(u.Gateway+chargesPath, "application/json", bytes.NewReader(body))
	if err != nil {
		return r, err
	}
	defer func() { _ = answer.Body.Close() }()
	body, err = io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusCreated {
		err = fmt.Errorf("gateway: %s: %s", answer.Status, body)
	}
	if err != nil {
		return r, err
	}
	return receipt(body, p.name())
}

const pause = 100 * time.Millisecond

// again calls f up to five times, until it succeeds. Then the message is given back.
func again(f func() error) error {
	return backoff.Retry(f, backoff.WithMaxRetries(backoff.NewConstantBackOff(pause), 4))
}
