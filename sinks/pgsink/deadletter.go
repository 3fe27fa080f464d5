package pgsink

import (
	"context"
	"fmt"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/pgschema"
)

// maxErrorText limits the bytes of an error's text in a dead letter.
const maxErrorText = 64 << 10

// DeadLetter stores a message that could not be applied in the table dead_letter, in the
// transaction that moves past it. Use it as consumer.Handlers.OnFailure. tx must come from a [Sink]
// with the same Schema. Keys, values and headers are stored byte for byte. Bytes of the error's
// text that PostgreSQL cannot store are replaced, and a time that it cannot store becomes NULL.
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
	for i, h := range m.Headers {
		keys[i], values[i] = []byte(h.Key), h.Value
	}
	text := "unknown"
	if cause != nil {
		text = printable(cause.Error(), maxErrorText)
	}
	return []any{p.Group, p.Topic, p.Number, int64(m.Offset), int64(e), storable(m.Time),
		m.Key, m.Value, keys, values, text}, nil
}

// storable returns nil for an unknown time, and for one outside the years 1 to 9999.
func storable(t time.Time) *time.Time {
	if t.IsZero() || t.Year() < 1 || t.Year() > 9999 {
		return nil
	}
	return &t
}
