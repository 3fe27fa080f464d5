package batches

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/waits"
	"github.com/epochfence/epochfence/outbox"
)

// This file decides when the relay looks for records, when it has a session, and what follows a
// failure: always a new session, which reads the position, so that there is one way to recover.

const (
	countLimit = 10_000           // entries
	countRest  = 10 * time.Second // between two counts of a partition, at least

	// askOperatorsEvery is the interval for reading operators' requests to retry, while records are
	// refused.
	askOperatorsEvery = 2 * time.Second

	// maxRefused limits the refused records in memory. At the limit, the relay sends no others, except those
	// that a refused one waits for.
	maxRefused = 4096

	// keepEvery is the age of the position in the server at which it is written again while all batches
	// fail: Kafka forgets it after offsets.retention.minutes, and a stream in NATS after its MaxAge.
	keepEvery = time.Hour
)

// relay sends the records of one partition under one claim.
type relay[TX any] struct {
	*Relay[TX]
	claim  consumer.Background[TX]
	p      epoch.Partition
	logger *slog.Logger

	session Session // nil: there is nothing to send, or the last one has failed
	used    time.Time
	at      outbox.Cursor
	limit   int // of a batch; less than Options.Batch after a failure
	trying  []outbox.Row
	sent    []outbox.Row // the server has them, and the database does not know it yet
	written time.Time    // when the position was last committed in the server under this claim, if it was
	failing bool         // no batch was since then
	refused refusals
	retried bool // by the last turn
	askAt   time.Time
	pause   *waits.Backoff

	counted time.Time
	filled  bool // the last backlog that was reported was not empty
}

// Run sends the records of one partition under one claim, until the claim ends.
func (b *Relay[TX]) Run(ctx context.Context, claim consumer.Background[TX]) {
	p := claim.Partition()
	r := &relay[TX]{
		Relay: b, claim: claim, p: p, limit: b.o.Batch, pause: waits.New(b.o.RetryMin, b.o.RetryMax),
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

// end ends the session, whose transaction the server aborts when the next session begins.
func (r *relay[TX]) end() {
	r.close()
	r.at = outbox.Cursor{}
}

// close ends a session of which all is settled.
func (r *relay[TX]) close() {
	if r.session != nil {
		r.session.Close()
	}
	r.session = nil
}

// step settles the last batch, and sends the next. It reports whether there may be more to do.
func (r *relay[TX]) step(ctx context.Context) (more bool, err error) {
	now := time.Now()
	r.trying = nil
	if r.session == nil {
		t := &turn{probe: true, at: r.at, limit: 1, count: r.mayCount(now), seen: map[int64]bool{}}
		if err := r.do(ctx, t, nil); err != nil {
			return false, err
		}
		r.trying = t.batch
		r.counts(t, now)
		if t.next == nil && len(r.refused.of) == 0 {
			r.at = t.at
			if !t.more {
				r.troubles.Well(r.p)
			}
			return t.more, nil
		}
		if err := r.open(ctx, t.next == nil || t.next.row == 0); err != nil {
			return false, err
		}
		r.used = now
	}
	t := &turn{at: r.at, limit: r.limit, count: r.mayCount(now), seen: map[int64]bool{}}
	if !r.retried { // other records have their turn, too
		t.retry = r.refused.due(now, r.limit)
	}
	r.retried = len(t.retry) > 0
	if !now.Before(r.askAt) {
		t.asks = slices.Collect(maps.Keys(r.refused.of))
	}
	t.idle = len(r.refused.of) == 0 && now.Sub(r.used) >= r.o.RetryMax
	if t.keep = r.failing && len(t.retry) == 0 && now.Sub(r.written) >= keepEvery; t.keep {
		t.limit = 0
	}
	at := r.session.At()
	if err := r.do(ctx, t, &at); err != nil {
		if t.unknown {
			if failed := r.remember(ctx, at); failed != nil {
				err = fmt.Errorf("%w; this is not recorded yet: %w", err, failed)
			}
		}
		return false, err
	}
	r.committed(t, now)
	switch {
	case len(t.batch) > 0:
		return true, r.deliver(ctx, t)
	case t.next != nil:
		return t.more || t.keep, r.finish(ctx, t.next.position())
	case t.idle && !t.more:
		r.close()
	}
	return t.more || len(t.retry)+len(t.asked) > 0, nil
}

// finish commits an empty batch and ends the session, so that an idle partition holds no connections.
func (r *relay[TX]) finish(ctx context.Context, at Position) error {
	timed, cancel := context.WithTimeout(ctx, r.o.RequestTimeout)
	defer cancel()
	if err := r.session.Write(timed, at); err != nil {
		return err
	}
	r.written, r.failing = time.Now(), false
	if err := r.do(ctx, &turn{at: r.at, seen: map[int64]bool{}}, &at); err != nil {
		return err
	}
	r.close()
	return nil
}

func (r *relay[TX]) do(ctx context.Context, t *turn, at *Position) error {
	return r.claim.Do(ctx, func(ctx context.Context, tx TX) error { return r.apply(ctx, tx, t, at) })
}

// open begins a session. Only if no batch is assigned, a position that is missing is written: otherwise
// it was lost.
func (r *relay[TX]) open(ctx context.Context, unassigned bool) error {
	for tries := 1; ; tries++ {
		if err := r.begin(ctx, unassigned); err != nil {
			return err
		}
		c, ok := r.session.(Completer)
		switch {
		case !ok || !c.Incomplete():
			return nil
		case tries > 2:
			return fmt.Errorf("%s: %s: the last transaction has ended in a part of its %ss, and stays so", r.o.Package, r.p, r.o.Destination)
		}
		if err := r.complete(ctx, c); err != nil {
			return err
		}
		r.close()
	}
}

func (r *relay[TX]) begin(ctx context.Context, unassigned bool) (err error) {
	ctx, cancel := context.WithTimeout(ctx, r.o.RequestTimeout)
	defer cancel()
	r.session, err = r.o.Open(ctx, r.p, unassigned)
	return err
}

// complete completes the last transaction before the session. That is an assigned batch or the one before.
func (r *relay[TX]) complete(ctx context.Context, c Completer) error {
	a, err := r.note(ctx, c.Completion) // only the owner, after its session has fenced all before it
	if err != nil {
		return err
	}
	all := slices.Concat(a.Before, a.Topics)
	if a.Ahead != nil {
		all = append(all, a.Ahead.Topics...)
	}
	timed, cancel := context.WithTimeout(ctx, r.o.RequestTimeout)
	defer cancel()
	if err := c.Complete(timed, all); err != nil {
		return fmt.Errorf("%s: %s: complete the last transaction: %w", r.o.Package, r.p, err)
	}
	if _, err := r.note(ctx, func(string) (string, error) { return "", nil }); err != nil {
		return err
	}
	r.logger.WarnContext(ctx, r.o.Server+" had ended a transaction of the outbox in a part of its "+r.o.Destination+"s, as after the crash of all their brokers: it is complete now",
		r.o.Destination+"s", all)
	return nil
}

// note replaces what the assignment has of a completion, in a transaction of its own, and returns the assignment.
func (r *relay[TX]) note(ctx context.Context, completion func(before string) (string, error)) (a *assignment, err error) {
	err = r.claim.Do(ctx, func(ctx context.Context, tx TX) error {
		_, to, err := r.store.Scan(ctx, tx, r.p, r.at, 1)
		if err != nil {
			return err
		}
		if a, err = r.assigned(ctx, tx, to); err != nil {
			return err
		}
		if a == nil {
			a = &assignment{}
		}
		if a.Completion, err = completion(a.Completion); err != nil {
			return fmt.Errorf("%s: %s: %w", r.o.Package, r.p, err)
		}
		if a.settled() || a.Previous == inDoubt { // the batch is not sent again in any case
			return nil
		}
		if _, err := r.store.Delete(ctx, tx, r.p, []int64{a.row}); err != nil {
			return err
		}
		return r.put(ctx, tx, a, strings.TrimPrefix(a.Name, emptyStart))
	})
	return a, err
}

// committed follows a transaction of the database.
func (r *relay[TX]) committed(t *turn, now time.Time) {
	if len(t.retry) == 0 {
		r.at = t.at
	}
	if len(t.delivered) > 0 {
		r.pause.Reset()
		r.limit = min(2*r.limit, r.o.Batch)
		for _, id := range t.delivered {
			if of, was := r.refused.of[id]; was {
				r.refused.width[of.destination] = min(2*r.refused.width[of.destination], r.o.Batch)
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
	for _, id := range t.behind {
		of := r.refused.of[id]
		of.until = now.Add(r.o.RetryMax)
		if len(t.batch) == 0 { // otherwise thousands would be loaded, one in each transaction
			r.refused.postpone(of.destination, now, of.until)
		}
	}
	if len(t.asks) > 0 {
		r.askAt = now.Add(askOperatorsEvery)
		for _, id := range t.asked {
			if of, is := r.refused.of[id]; is {
				of.until, of.tries = now, -1
			}
		}
	}
	if len(r.refused.of) == 0 && (len(t.delivered) > 0 || t.next == nil && t.sending == nil) {
		r.troubles.Well(r.p)
	}
	r.counts(t, now)
}

func (r *relay[TX]) mayCount(now time.Time) bool {
	return r.o.ObserveBacklog != nil && now.Sub(r.counted) >= countRest
}

// counts reports the backlog if t has counted it.
func (r *relay[TX]) counts(t *turn, now time.Time) {
	if t.count {
		r.counted, r.filled = now, t.left.Entries > 0
		r.o.ObserveBacklog(t.left)
	}
}

func (r *relay[TX]) about(row outbox.Row) outbox.Sent {
	return outbox.Sent{Row: row, Partition: r.p, Epoch: r.claim.Epoch(), Attempt: 1}
}

// deliver sends a batch. If more entries wait than it has, a transaction of the database assigns the next batch
// meanwhile, and deliver sends that, too. While records are refused, batches come one after the other.
func (r *relay[TX]) deliver(ctx context.Context, t *turn) error {
	for len(t.batch) > 0 {
		r.used, r.trying = time.Now(), t.batch
		next := &turn{at: r.at, limit: r.limit, count: r.mayCount(r.used), seen: map[int64]bool{}, sending: t.next}
		at, ahead := r.session.At(), make(chan error, 1) // at is the one before this batch
		if t.full && len(r.refused.of) == 0 {
			go func() { ahead <- r.do(ctx, next, &at) }()
		} else {
			close(ahead)
		}
		errs, err := r.send(ctx, t) // on this goroutine: a partitioner of the user that panics is reported
		failed, some := <-ahead
		if some && failed == nil {
			r.committed(next, r.used)
		}
		if end := r.sentOrNot(t, errs, err); err != nil {
			return end // nil if records are refused, and the others can be sent
		}
		if failed != nil {
			return failed
		}
		t = next
	}
	return nil
}

func (r *relay[TX]) send(ctx context.Context, t *turn) ([]error, error) {
	ctx, cancel := context.WithTimeout(ctx, r.o.RequestTimeout)
	defer cancel()
	return r.session.Send(ctx, t.next.position(), t.batch)
}

// sentOrNot follows a batch, whose Send has returned errs and err. If records of it are refused, the next session
// withdraws the batch and the one ahead, and sentOrNot returns nil.
func (r *relay[TX]) sentOrNot(t *turn, errs []error, err error) error {
	if r.failing = err != nil; err == nil {
		r.sent, r.trying, r.written = append(r.sent, t.batch...), nil, time.Now()
		return nil
	}
	err = fmt.Errorf("%s: send batch %d of %s, %d %ss: %w", r.o.Package, t.next.Number, r.p, len(t.batch), r.o.Record, err)
	refused, narrow := blame(t.batch, errs, r.o.Refusal)
	switch {
	case len(refused) > 0:
	case len(t.retry) > 0: // as if they were refused, so that others are sent
		for _, row := range t.batch {
			r.refused.add(row, time.Now(), r.o.RetryMax)
		}
	default: // one of many is refused, or they take too long together
		r.limit = max(1, len(t.batch)/2)
	}
	if len(refused) == 0 && !narrow {
		return err
	}
	r.end()
	for _, i := range refused {
		row := t.batch[i]
		err := fmt.Errorf("%s: entry %d of %s: %s %s: %w", r.o.Package, row.ID, r.p, r.o.Destination, destinationOf(row), errs[i])
		r.refused.add(row, time.Now(), r.o.RetryMax)
		r.o.Observe(outbox.Event{Kind: outbox.Refused, Sent: r.about(row), Err: err})
		r.troubles.Add(r.logger, slog.LevelError, r.p, "refused "+destinationOf(row),
			fmt.Sprintf("a %[1]s refuses %[2]ss of the outbox: they stay, later %[2]ss of their keys wait, and they are sent again; fix the %[1]s, or discard them", r.o.Destination, r.o.Record),
			"target", destinationOf(row), "entry", row.ID, "key", row.Key, "err", err)
	}
	return nil
}

// failed ends the session and waits.
func (r *relay[TX]) failed(ctx context.Context, err error) {
	r.end()
	wait := r.pause.Next()
	level, what := slog.LevelWarn, r.o.Record+"s of the outbox could not be sent, trying again"
	key := what
	if errors.Is(err, ErrDoubt) {
		wait = r.o.RetryMax
		level, what = slog.LevelError, "the outbox does not know whether "+r.o.Server+" has a batch, and sends nothing until an operator decides"
		key = what + r.p.String() // each has its own remedy
	}
	r.troubles.Add(r.logger, level, r.p, key, what, "err", err, "retry_in", wait)
	for _, row := range r.trying {
		r.o.Observe(outbox.Event{Kind: outbox.Retrying, Sent: r.about(row), Err: err})
	}
	waits.Sleep(ctx, wait)
}

// rest waits until there may be records to send.
func (r *relay[TX]) rest(ctx context.Context) {
	now, wake := time.Now(), r.o.RetryMax
	if len(r.refused.of) > 0 {
		wake = min(wake, max(0, r.askAt.Sub(now)))
	}
	for _, id := range r.refused.waiting() {
		wake = min(wake, max(0, r.refused.of[id].until.Sub(now)))
	}
	timer := time.NewTimer(wake)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-r.claim.Applied():
	case <-timer.C:
	}
}
