package kafkaoutbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/waits"
	"github.com/epochfence/epochfence/outbox"
)

// This file decides when the relay looks for records, when it has a producer, and what follows a
// failure: always a new producer, which reads the position, so that there is one way to recover.

const (
	countLimit = 10_000           // entries
	countRest  = 10 * time.Second // between two counts of a partition, at least

	// askOperatorsEvery is the interval for reading operators' requests to retry, while records are
	// refused.
	askOperatorsEvery = 2 * time.Second

	// maxRefused limits the refused records in memory. At the limit, the relay reads no others.
	maxRefused = 4096
)

// relay produces the records of one partition under one claim.
type relay[TX any] struct {
	*Box[TX]
	claim  consumer.Background[TX]
	p      epoch.Partition
	logger *slog.Logger

	session *session // nil: there is nothing to send, or the last one has failed
	at      outbox.Cursor
	limit   int // of a batch; less than Options.Batch while a refused record is searched
	sent    []outbox.Row
	refused refusals
	askAt   time.Time
	pause   *waits.Backoff

	counted time.Time
	filled  bool // the last backlog that was reported was not empty
}

// Relay produces the records of one partition under one claim, until the claim ends: set
// consumer.Handlers.Background to it.
func (b *Box[TX]) Relay(ctx context.Context, claim consumer.Background[TX]) {
	p := claim.Partition()
	r := &relay[TX]{
		Box: b, claim: claim, p: p, limit: b.o.Batch, pause: waits.New(b.o.RetryMin, b.o.RetryMax),
		logger: b.o.Logger.With("group", p.Group, "topic", p.Topic, "partition", p.Number, "epoch", int64(claim.Epoch())),
	}
	defer b.troubles.Left(p)
	defer func() { r.end() }()
	for ctx.Err() == nil {
		more, err := r.step(ctx)
		switch {
		case err != nil && ctx.Err() != nil:
		case err != nil:
			r.failed(ctx, err)
		case !more:
			r.rest(ctx)
		}
	}
}

// end ends the session, whose transaction Kafka aborts when the next session begins.
func (r *relay[TX]) end() {
	if r.session != nil {
		r.session.close()
		r.session = nil
	}
	r.at, r.sent = outbox.Cursor{}, nil
}

// step settles the last batch, and sends the next. It reports whether there may be more to do.
func (r *relay[TX]) step(ctx context.Context) (more bool, err error) {
	if r.session == nil {
		t := &turn{limit: 1, seen: map[int64]bool{}}
		if err := r.do(ctx, t, nil); err != nil || t.next == nil {
			return false, err
		}
		if err := r.open(ctx, t.next.Name == ""); err != nil {
			return false, err
		}
	}
	now := time.Now()
	t := &turn{at: r.at, limit: r.limit, retry: r.refused.due(now, r.limit), seen: map[int64]bool{}}
	t.asks = len(r.refused.of) > 0 && !now.Before(r.askAt)
	t.count = r.o.ObserveBacklog != nil && now.Sub(r.counted) >= countRest
	if len(r.refused.of) >= maxRefused && len(t.retry) == 0 {
		t.limit = 0
	}
	if err := r.do(ctx, t, &r.session.at); err != nil {
		return false, err
	}
	r.committed(t, now)
	if t.next == nil {
		return len(t.gone)+len(t.asked) > 0, nil
	}
	return true, r.send(ctx, t)
}

func (r *relay[TX]) do(ctx context.Context, t *turn, at *position) error {
	return r.claim.Do(ctx, func(ctx context.Context, tx TX) error { return r.apply(ctx, tx, t, at) })
}

// open begins a session. Only if no batch is assigned, a position that is missing is written: otherwise
// it was lost.
func (r *relay[TX]) open(ctx context.Context, unassigned bool) (err error) {
	ctx, cancel := context.WithTimeout(ctx, r.o.RequestTimeout)
	defer cancel()
	r.session, err = r.o.open(ctx, r.o.name(r.p), unassigned)
	return err
}

// committed follows a transaction of the database.
func (r *relay[TX]) committed(t *turn, now time.Time) {
	if len(t.retry) == 0 {
		r.at = t.at
	}
	if t.delivered != nil {
		r.pause.Reset()
		r.limit = min(2*r.limit, r.o.Batch)
		for _, id := range t.delivered.Entries {
			if _, was := r.refused.of[id]; was {
				t.gone = append(t.gone, id)
			}
		}
		for _, row := range r.sent {
			r.o.Observe(outbox.Event{Kind: outbox.Delivered, Sent: r.about(row)})
		}
	}
	r.sent = nil
	for _, id := range t.gone {
		r.refused.remove(id)
		r.at = outbox.Cursor{} // entries of its Key were passed over
	}
	if t.asks {
		r.askAt = now.Add(askOperatorsEvery)
		for _, id := range t.asked {
			if _, is := r.refused.of[id]; is {
				r.refused.of[id] = now
			}
		}
	}
	if len(r.refused.of) == 0 {
		r.troubles.Well(r.p)
	}
	switch {
	case t.count:
		r.counted, r.filled = now, t.left.Entries > 0
		r.o.ObserveBacklog(t.left)
	case r.filled && t.next == nil && len(r.refused.of) == 0:
		r.filled = false
		r.o.ObserveBacklog(outbox.Backlog{Partition: r.p})
	}
}

func (r *relay[TX]) about(row outbox.Row) outbox.Sent {
	return outbox.Sent{Row: row, Partition: r.p, Epoch: r.claim.Epoch(), Attempt: 1}
}

// send commits a batch in Kafka. If records of it are refused, the batch is withdrawn by the next session.
func (r *relay[TX]) send(ctx context.Context, t *turn) error {
	ctx, cancel := context.WithTimeout(ctx, r.o.RequestTimeout)
	defer cancel()
	errs, err := r.session.send(ctx, t.next, t.batch)
	if err == nil {
		r.sent = t.batch
		return nil
	}
	err = fmt.Errorf("kafkaoutbox: send batch %d of %s, %d records: %w", t.next.Number, r.p, len(t.batch), err)
	refused, narrow := blame(t.batch, errs)
	if len(refused) == 0 && !narrow {
		return err
	}
	r.end()
	if narrow {
		r.limit = max(1, len(t.batch)/2)
	}
	for _, i := range refused {
		row := t.batch[i]
		err := fmt.Errorf("kafkaoutbox: entry %d of %s: topic %s: %w", row.ID, r.p, topicOf(row), errs[i])
		r.refused.add(row, time.Now().Add(r.o.RetryMax))
		r.o.Observe(outbox.Event{Kind: outbox.Refused, Sent: r.about(row), Err: err})
		r.troubles.Add(r.logger, slog.LevelError, r.p, "refused "+topicOf(row),
			"a topic refuses records of the outbox: they stay, later records of their keys wait, and they are sent again; fix the topic, or discard them",
			"target", topicOf(row), "entry", row.ID, "key", row.Key, "err", err)
	}
	return nil
}

// failed ends the session and waits.
func (r *relay[TX]) failed(ctx context.Context, err error) {
	r.end()
	wait := r.pause.Next()
	level, what := slog.LevelWarn, "records of the outbox could not be sent, trying again"
	if errors.Is(err, errDoubt) {
		wait = r.o.RetryMax
		level, what = slog.LevelError, "the outbox does not know whether Kafka has a batch, and sends nothing until an operator decides"
	}
	r.troubles.Add(r.logger, level, r.p, what, what, "err", err, "retry_in", wait)
	waits.Sleep(ctx, wait)
}

// rest waits until there may be records to send. It ends a session that had none for RetryMax, so that idle
// partitions hold no connections.
func (r *relay[TX]) rest(ctx context.Context) {
	now, wake := time.Now(), r.o.RetryMax
	if len(r.refused.of) > 0 {
		wake = min(wake, max(0, r.askAt.Sub(now)))
		for _, until := range r.refused.of {
			wake = min(wake, max(0, until.Sub(now)))
		}
	}
	timer := time.NewTimer(wake)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-r.claim.Applied():
	case <-timer.C:
		if len(r.refused.of) == 0 {
			r.end()
		}
	}
}
