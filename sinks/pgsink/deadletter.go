package pgsink

import (
	"context"
	"fmt"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/sql/pgschema"
	"github.com/epochfence/epochfence/operate"
)

// This file writes dead letters, in the transaction that moves past the message. operable.go
// replays them, and operator_deadletter.go shows and discards them.

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
