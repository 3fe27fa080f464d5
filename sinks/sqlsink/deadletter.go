package sqlsink

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/epochfence/epochfence/epoch"
)

// DeadLetter puts m aside in the table dead_letters, in the transaction tx, with
// its group and everything needed to send it again: it is a function for
// OnFailure of consumer.Options.
func (s *Sink) DeadLetter(ctx context.Context, tx *Tx, m epoch.Message, e epoch.Epoch, cause error) error {
	p, err := tx.partitionOf(m)
	if err != nil {
		return err
	}
	type header struct {
		Key   string `json:"key"`
		Value []byte `json:"value"`
	}
	headers := make([]header, 0, len(m.Headers))
	for _, h := range m.Headers {
		headers = append(headers, header(h))
	}
	text, err := json.Marshal(headers)
	if err != nil {
		return fmt.Errorf("sqlsink: dead letter %s at offset %d: %w", p, m.Offset, err)
	}
	var written any // no time is NULL
	if !m.Time.IsZero() {
		written = m.Time.UTC().Format(time.RFC3339Nano)
	}
	_, err = tx.ExecContext(ctx, s.q.deadLetter,
		p.Group, p.Topic, p.Number, int64(m.Offset), int64(e),
		m.Key, m.Value, string(text), written, m.LeaderEpoch, fmt.Sprint(cause))
	if err != nil {
		return fmt.Errorf("sqlsink: dead letter %s at offset %d: %w", p, m.Offset, err)
	}
	return nil
}

// partitionOf finds the partition of m, and so its group, among those of the
// transaction.
func (tx *Tx) partitionOf(m epoch.Message) (epoch.Partition, error) {
	for _, a := range tx.as {
		if a.Topic == m.Topic && a.Number == m.Partition {
			return a.Partition, nil
		}
	}
	return epoch.Partition{}, fmt.Errorf("sqlsink: dead letter %s/%d: not a partition of this transaction", m.Topic, m.Partition)
}
