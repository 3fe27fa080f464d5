package pgsink

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/sql/pgschema"
	"github.com/epochfence/epochfence/operate"
)

// This file writes dead letters, in the transaction that moves past the message, and shows them to
// operators, who discard them or request a replay. operable.go replays them.

// DeadLetter stores a message that could not be applied in the table dead_letter, in the
// transaction that moves past it. Use it as consumer.Handlers.OnFailure. tx must come from a [Sink]
// with the same Schema. Keys, values, headers and times are stored as they are. Bytes of the error's
// text that PostgreSQL cannot store are replaced.
func (s *Sink) DeadLetter(ctx context.Context, tx Tx, m epoch.Message, e epoch.Epoch, cause error) error {
	t, ok := tx.(*handlerTx)
	if !ok {
		return fmt.Errorf("pgsink: dead letter: a %T is not the transaction that the sink gave", tx)
	}
	args, err := deadLetter(t.as, m, e, cause)
	if err != nil {
		return err
	}
	if _, err := t.Exec(pgschema.Own(ctx), s.sql.deadLetter, args...); err != nil {
		return fmt.Errorf("pgsink: dead letter %s at offset %d: %w", m.Partition, m.Offset, explain(err))
	}
	return nil
}

// DeadLetter is [Sink.DeadLetter] for a queue.
func (s Queued) DeadLetter(ctx context.Context, q *Queue, m epoch.Message, e epoch.Epoch, cause error) error {
	args, err := deadLetter(q.as, m, e, cause)
	if err != nil {
		return err
	}
	_, err = q.Exec(pgschema.Own(ctx), s.sql.deadLetter, args...)
	return err
}

func deadLetter(as *advances, m epoch.Message, e epoch.Epoch, cause error) ([]any, error) {
	p := m.Partition
	if _, ok := as.of(p); !ok {
		return nil, fmt.Errorf("pgsink: dead letter %s at offset %d: this transaction applies no messages of that partition", p, m.Offset)
	}
	keys, values := make([][]byte, len(m.Headers)), make([][]byte, len(m.Headers))
	without := []int64{} // a null in an array is a text if array_nulls is off
	for i, h := range m.Headers {
		keys[i], values[i] = []byte(h.Key), h.Value
		if h.Value == nil {
			values[i], without = []byte{}, append(without, int64(i)+1)
		}
	}
	var seconds *int64
	var nanos *int32
	if !m.Time.IsZero() {
		s, n := m.Time.Unix(), int32(m.Time.Nanosecond())
		seconds, nanos = &s, &n
	}
	return []any{p.Group, p.Topic, p.Number, int64(m.Offset), int64(e), seconds, nanos,
		m.Key, m.Value, keys, values, without, operate.ErrorText(cause)}, nil
}

type letterRow struct {
	operate.DeadLetter
	requestedAt, failedAt *time.Time
	messageRow
}

func (r *letterRow) head() []any {
	p := &r.Message.Partition
	return []any{&r.ID, &p.Group, &p.Topic, &p.Number, &r.Message.Offset, &r.Epoch, &r.seconds, &r.nanos, &r.Error, &r.At,
		&r.Request, &r.Requested, &r.RequestedBy, &r.requestedAt, &r.ReplayError, &r.failedAt}
}

func (r *letterRow) whole() []any {
	return append(r.head(), &r.key, &r.value, &r.headerKeys, &r.headerValues)
}

func (r *letterRow) letter() operate.DeadLetter {
	r.Message = r.message(r.Message.Partition, r.Message.Offset)
	r.At, r.RequestedAt, r.ReplayFailedAt = inUTC(&r.At), inUTC(r.requestedAt), inUTC(r.failedAt)
	return r.DeadLetter
}

// DeadLetters implements [operate.Operator].
func (o *Operator) DeadLetters(ctx context.Context, q operate.DeadLetterQuery) (found []operate.DeadLetter, err error) {
	found, err = operated(ctx, o, func(row pgx.CollectableRow) (operate.DeadLetter, error) {
		var r letterRow
		err := row.Scan(r.head()...)
		return r.letter(), err
	}, o.sql.letters, orNil(q.Group), orNil(q.Topic), q.Number, q.Requested, q.After, int64(operate.Limit(q.Limit)))
	if err != nil {
		return nil, fmt.Errorf("pgsink: list dead letters: %w", err)
	}
	return found, nil
}

// DeadLetter implements [operate.Operator].
func (o *Operator) DeadLetter(ctx context.Context, id int64) (operate.DeadLetter, error) {
	found, err := operated(ctx, o, func(row pgx.CollectableRow) (operate.DeadLetter, error) {
		var r letterRow
		err := row.Scan(r.whole()...)
		return r.letter(), err
	}, o.sql.letter, id)
	if err == nil && len(found) == 0 {
		err = operate.ErrNoDeadLetter
	}
	if err != nil {
		return operate.DeadLetter{}, fmt.Errorf("pgsink: read dead letter %d: %w", id, err)
	}
	return found[0], nil
}

// DoDeadLetter implements [operate.Operator].
func (o *Operator) DoDeadLetter(ctx context.Context, a operate.DeadLetterAct) (operate.DeadLetter, error) {
	fail := func(err error) (operate.DeadLetter, error) {
		return operate.DeadLetter{}, fmt.Errorf("pgsink: %s dead letter %d of %s: %w", a.Kind, a.Seen.ID, a.Seen.Message.Partition, err)
	}
	if err := a.Check(); err != nil {
		return fail(err)
	}
	ctx, cancel := o.sink.bounded(ctx)
	defer cancel()
	var r letterRow
	err := o.sink.transact(ctx, harmful, func(b *pgx.Batch) {
		b.Queue(o.sql.letterAct, string(a.Kind), a.Seen.ID, a.Seen.Request, a.Seen.Requested, a.By, a.Reason, a.TraceID)
	}, func(rs pgx.BatchResults) error { return rs.QueryRow().Scan(r.whole()...) })
	var pg *pgconn.PgError
	switch {
	case err == nil:
		return r.letter(), nil
	case errors.As(err, &pg) && !fatal(err):
		return fail(ours(explain(refusedLetterAct(pg))))
	default:
		return fail(inDoubt(ended(ctx, err)))
	}
}

func refusedLetterAct(pg *pgconn.PgError) error {
	switch pg.Code {
	case codeGone:
		return operate.ErrNoDeadLetter
	case codeChanged:
		return operate.ErrDeadLetterChanged
	case codeNothing:
		return operate.ErrNothingToDo
	default:
		return pg
	}
}
