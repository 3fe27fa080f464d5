package sqlsink

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/text/instant"
	"github.com/epochfence/epochfence/operate"
)

// This file writes dead letters, in the transaction that moves past the message. operable.go
// replays them, and operator.go shows and discards them.

// DeadLetter stores m in the table TablePrefix + "dead_letter", in the transaction tx, with its
// group and everything needed to send it again. Use it as OnFailure of consumer.Handlers.
func (s *Sink) DeadLetter(ctx context.Context, tx *Tx, m epoch.Message, e epoch.Epoch, cause error) error {
	p := m.Partition
	if !slices.ContainsFunc(tx.as, func(a epoch.Advance) bool { return a.Partition == p }) {
		return fmt.Errorf("sqlsink: dead letter %s at offset %d: this transaction applies no messages of that partition", p, m.Offset)
	}
	text, err := headersText(m.Headers)
	if err != nil {
		return fmt.Errorf("sqlsink: dead letter %s at offset %d: %w", p, m.Offset, err)
	}
	var written any // no time is NULL
	if !m.Time.IsZero() {
		written = instant.Format(m.Time)
	}
	_, err = tx.ExecContext(ctx, s.q.deadLetter,
		p.Group, p.Topic, p.Number, int64(m.Offset), int64(e),
		m.Key, m.Value, string(text), written, operate.ErrorText(cause))
	if err != nil {
		return fmt.Errorf("sqlsink: dead letter %s at offset %d: %w", p, m.Offset, err)
	}
	return nil
}

type header struct {
	Key      *string `json:"key,omitempty"`
	KeyBytes []byte  `json:"key_bytes,omitempty"`
	Value    []byte  `json:"value"`
}

// headersText returns a JSON array with an object for each header: its key, and its value in
// base64. If a key is not UTF-8, which JSON cannot hold, key_bytes has it in base64.
func headersText(hs []epoch.Header) ([]byte, error) {
	headers := make([]header, 0, len(hs))
	for _, h := range hs {
		if utf8.ValidString(h.Key) {
			headers = append(headers, header{Key: &h.Key, Value: h.Value})
		} else {
			headers = append(headers, header{KeyBytes: []byte(h.Key), Value: h.Value})
		}
	}
	return json.Marshal(headers)
}

func headersOf(text string) ([]epoch.Header, error) {
	var headers []header
	if err := json.Unmarshal([]byte(text), &headers); err != nil {
		return nil, fmt.Errorf("the headers of a dead letter: %w", err)
	}
	var hs []epoch.Header
	for _, h := range headers {
		key := string(h.KeyBytes)
		if h.Key != nil {
			key = *h.Key
		}
		hs = append(hs, epoch.Header{Key: key, Value: h.Value})
	}
	return hs, nil
}
