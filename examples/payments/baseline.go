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

	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/internal/show"
)

const (
	// baselineBatch limits the messages of a fetch, and baselineAtOnce the number of concurrent
	// fetches.
	baselineBatch  = 64
	baselineAtOnce = 8

	// usualAttempts limits the attempts at a payment before its message is given back.
	usualAttempts = 5
)

type recordFunc func(ctx context.Context, p Payment, charge int64, partition string, sequence uint64) error

// consumeAsUsual is a careful form of the code that most services run: a durable consumer that all
// workers share, and explicit acks. For each message it charges, writes the payment and acks. It
// retries failures. A message without an ack is delivered again, to any worker. Incidents strike at
// its cue.
func consumeAsUsual(ctx context.Context, c config, js jetstream.JetStream, stage *show.Stage, record recordFunc) error {
	messages, err := js.Consumer(ctx, c.Stream, c.Group)
	if err != nil {
		return fmt.Errorf("payments: baseline: %w", err)
	}
	stage.Holds(int32(c.Number), 0) // any worker gets any message, so that each has a part of the stream
	u := &usualCode{config: c, stage: stage, record: record, client: &http.Client{Transport: transport(), Timeout: c.Timeout}}
	for ctx.Err() == nil {
		batch, err := messages.Fetch(baselineBatch, jetstream.FetchMaxWait(time.Second))
		if err != nil {
			slog.Warn("fetch", "err", err)
			wait(ctx)
			continue
		}
		var working sync.WaitGroup
		for range baselineAtOnce {
			working.Go(func() {
				for m := range batch.Messages() {
					u.apply(context.WithoutCancel(ctx), m)
				}
			})
		}
		working.Wait()
		if err := batch.Error(); err != nil && !errors.Is(err, jetstream.ErrNoMessages) {
			slog.Warn("fetch", "err", err)
			wait(ctx)
		}
	}
	return nil
}

type usualCode struct {
	config
	stage  *show.Stage
	record recordFunc
	client *http.Client
}

func (u *usualCode) apply(ctx context.Context, m jetstream.Msg) {
	p, err := parse(m.Data())
	if err != nil {
		slog.Error("message", "err", err)
		_ = m.Term()
		return
	}
	at, err := m.Metadata()
	if err != nil {
		slog.Error("message", "err", err)
		return
	}
	cue := u.stage.Cue(nil, show.Unlocked, show.BeforeSend, show.Answered, show.AfterCommit).About(p.name())
	cue.Reach(show.Unlocked)
	cue.Reach(show.BeforeSend)
	r, err := again(ctx, func() (Receipt, error) { return u.charge(ctx, p) })
	if err == nil {
		cue.Reach(show.Answered)
		_, err = again(ctx, func() (struct{}, error) {
			return struct{}{}, u.stage.Writing(func() error {
				return u.record(ctx, p, r.Charge, partitionIn(m.Subject()), at.Sequence.Stream)
			})
		})
	}
	cue.Done(1, err)
	if err != nil {
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

func (u *usualCode) charge(ctx context.Context, p Payment) (Receipt, error) {
	body, err := json.Marshal(p)
	if err != nil {
		return Receipt{}, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, u.Gateway+chargesPath, bytes.NewReader(body))
	if err != nil {
		return Receipt{}, err
	}
	r.Header.Set("Content-Type", "application/json")
	answer, err := u.client.Do(r)
	if err != nil {
		return Receipt{}, err
	}
	defer func() { _ = answer.Body.Close() }()
	body, err = io.ReadAll(io.LimitReader(answer.Body, 1<<16))
	if err != nil {
		return Receipt{}, err
	}
	if answer.StatusCode != http.StatusCreated {
		return Receipt{}, fmt.Errorf("gateway: %s: %s", answer.Status, body)
	}
	return receipt(body, p.name())
}

func again[T any](ctx context.Context, f func() (T, error)) (T, error) {
	for attempt := 1; ; attempt++ {
		v, err := f()
		if err == nil || attempt == usualAttempts || ctx.Err() != nil {
			return v, err
		}
		slog.Warn("try again", "attempt", attempt, "err", err)
		wait(ctx)
	}
}

func wait(ctx context.Context) {
	select {
	case <-time.After(100 * time.Millisecond):
	case <-ctx.Done():
	}
}

func baselineSQLite(ctx context.Context, c config, js jetstream.JetStream, stage *show.Stage) error {
	db, err := show.OpenSQLite(c.Database)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	db.SetMaxOpenConns(1) // SQLite has one write lock in any case
	return consumeAsUsual(ctx, c, js, stage, func(ctx context.Context, p Payment, charge int64, partition string, sequence uint64) error {
		_, err := db.ExecContext(ctx,
			`INSERT INTO payments (payment, account, cents, charge, stream_partition, stream_sequence, epoch, worker) VALUES (?, ?, ?, ?, ?, ?, 0, ?)`,
			p.ID, p.Account, p.Cents, charge, partition, int64(sequence), c.Worker)
		return err
	})
}

func baselinePostgres(ctx context.Context, c config, js jetstream.JetStream, stage *show.Stage) error {
	pool, err := show.OpenPostgres(ctx, c.Database, c.Schema)
	if err != nil {
		return err
	}
	defer pool.Close()
	return consumeAsUsual(ctx, c, js, stage, func(ctx context.Context, p Payment, charge int64, partition string, sequence uint64) error {
		_, err := pool.Exec(ctx, `
			INSERT INTO payments (payment, account, cents, charge, stream_partition, stream_sequence, epoch, worker)
			VALUES ($1, $2, $3, $4, $5::text::integer, $6, 0, $7)`,
			p.ID, p.Account, p.Cents, charge, partition, int64(sequence), c.Worker)
		return err
	})
}
