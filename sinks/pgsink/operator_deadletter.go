package pgsink

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/epochfence/epochfence/operate"
)

// This file shows dead letters, and discards or requests them. The consumer that owns the partition
// carries a replay out.

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
	err = o.reading(ctx, o.sql.letters, func(rows pgx.Rows) error {
		var r letterRow
		err := rows.Scan(r.head()...)
		found = append(found, r.letter())
		return err
	}, orNil(q.Group), orNil(q.Topic), q.Number, q.Requested, q.After, int64(operate.Limit(q.Limit)))
	if err != nil {
		return nil, fmt.Errorf("pgsink: list dead letters: %w", err)
	}
	return found, nil
}

// DeadLetter implements [operate.Operator].
func (o *Operator) DeadLetter(ctx context.Context, id int64) (operate.DeadLetter, error) {
	var r letterRow
	there := false
	err := o.reading(ctx, o.sql.letter, func(rows pgx.Rows) error {
		there = true
		return rows.Scan(r.whole()...)
	}, id)
	if err == nil && !there {
		err = operate.ErrNoDeadLetter
	}
	if err != nil {
		return operate.DeadLetter{}, fmt.Errorf("pgsink: read dead letter %d: %w", id, err)
	}
	return r.letter(), nil
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
