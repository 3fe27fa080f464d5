package kafkaoutbox

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/outbox"
)

// This file has how a record is an entry of an outbox, so that the stores and the operators' list need to
// know nothing of Kafka. It decides which records can ever be sent.

// Record is a record to produce.
type Record struct {
	Topic string

	// Key decides the partition, as in any Kafka producer, and orders records: those of one
	// partition of the consumer with the same Key are produced in the order in which they were added,
	// in all topics. A nil Key orders nothing.
	Key []byte

	Value   []byte // nil is a tombstone
	Headers []epoch.Header
}

const (
	// maxRecord limits the bytes of a record. With its frame, a record of this size fits into franz-go's
	// default batch of 1,000,012 bytes, and into the default max.message.bytes of a topic.
	maxRecord = 999_000

	methodRecord = "PRODUCE"
	methodBatch  = "BATCH"

	keyBatch = outbox.Kafka + "batch" // the Key of the entry that has the assigned batch
	maxKey   = 255
	urlStart = outbox.Kafka + "//"
)

var validTopic = regexp.MustCompile(`^[a-zA-Z0-9._-]{1,249}$`)

func checkTopic(topic string) error {
	if !validTopic.MatchString(topic) || topic == "." || topic == ".." {
		return fmt.Errorf("topic %q; want 1 to 249 of the characters a-z, A-Z, 0-9, '.', '_' and '-'", topic)
	}
	return nil
}

// entry returns r as an entry, or an error that matches [outbox.ErrEntry].
func (r Record) entry() (outbox.Entry, error) {
	if err := checkTopic(r.Topic); err != nil {
		return outbox.Entry{}, fmt.Errorf("kafkaoutbox: %w: %w", outbox.ErrEntry, err)
	}
	size := len(r.Key) + len(r.Value)
	h := http.Header{}
	if r.Key != nil {
		h["Key"] = []string{url.QueryEscape(string(r.Key))}
	}
	if r.Value == nil {
		h["Value"] = []string{"null"}
	}
	for _, field := range r.Headers {
		size += len(field.Key) + len(field.Value) + 10 // and their lengths
		text := url.QueryEscape(field.Key)
		if field.Value != nil {
			text += "=" + url.QueryEscape(string(field.Value))
		}
		h["Header"] = append(h["Header"], text)
	}
	if size > maxRecord {
		return outbox.Entry{}, fmt.Errorf("kafkaoutbox: %w: a record of %d bytes for topic %s; want at most %d", outbox.ErrEntry, size, r.Topic, maxRecord)
	}
	return outbox.Entry{
		Key: orderKey(r.Key), IdempotencyKey: rand.Text(), Method: methodRecord, URL: urlStart + r.Topic, Header: h, Body: r.Value,
	}, nil
}

// orderKey returns the Key of an entry: the record's key if every database can store it as text,
// otherwise its hash.
func orderKey(key []byte) string {
	const readable, hashed = outbox.Kafka + "=", outbox.Kafka + "#"
	switch {
	case key == nil:
		return ""
	case len(readable)+len(key) <= maxKey && utf8.Valid(key) && !strings.Contains(string(key), "\x00"):
		return readable + string(key)
	}
	sum := sha256.Sum256(key)
	return hashed + hex.EncodeToString(sum[:])
}

// isRecord reports whether a row of an outbox is a record. The others are requests over HTTP, and the
// assigned batch.
func isRecord(row outbox.Row) bool {
	return row.Method == methodRecord && strings.HasPrefix(row.URL, urlStart)
}

func topicOf(row outbox.Row) string { return strings.TrimPrefix(row.URL, urlStart) }

// record returns the record of an entry.
func record(row outbox.Row) (*kgo.Record, error) {
	r := &kgo.Record{Topic: topicOf(row), Value: row.Body}
	if r.Value == nil {
		r.Value = []byte{}
	}
	if len(row.Header["Value"]) > 0 {
		r.Value = nil
	}
	if key := row.Header["Key"]; len(key) > 0 {
		plain, err := url.QueryUnescape(key[0])
		if err != nil {
			return nil, fmt.Errorf("entry %d: its key: %w", row.ID, err)
		}
		r.Key = []byte(plain)
	}
	for _, text := range row.Header["Header"] {
		name, value, some := strings.Cut(text, "=")
		name, err := url.QueryUnescape(name)
		if err != nil {
			return nil, fmt.Errorf("entry %d: a header: %w", row.ID, err)
		}
		field := kgo.RecordHeader{Key: name}
		if some {
			plain, err := url.QueryUnescape(value)
			if err != nil {
				return nil, fmt.Errorf("entry %d: header %s: %w", row.ID, name, err)
			}
			field.Value = []byte(plain)
		}
		r.Headers = append(r.Headers, field)
	}
	return r, nil
}
