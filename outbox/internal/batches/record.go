package batches

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"unicode/utf8"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/outbox"
)

// This file has how a record is an entry of an outbox, so that the stores and the operators' list need to
// know nothing of servers.

// MethodBatch is the Method of an entry that has a batch or a position.
const MethodBatch = "BATCH"

const maxKey = 255

// Record is a record for a topic, or a message for a subject.
type Record struct {
	Destination string
	Key, Value  []byte // nil and empty differ
	Headers     []epoch.Header
}

// Size returns the bytes of the record, with the lengths of its headers.
func (r Record) Size() int {
	size := len(r.Key) + len(r.Value)
	for _, field := range r.Headers {
		size += len(field.Key) + len(field.Value) + 10
	}
	return size
}

// Entry returns r as an entry that order orders, which may be nil.
func (o *Target) Entry(r Record, order []byte) outbox.Entry {
	h := http.Header{}
	if r.Key != nil {
		h["Key"] = []string{url.QueryEscape(string(r.Key))}
	}
	if r.Value == nil {
		h["Value"] = []string{"null"}
	}
	for _, field := range r.Headers {
		text := url.QueryEscape(field.Key)
		if field.Value != nil {
			text += "=" + url.QueryEscape(string(field.Value))
		}
		h["Header"] = append(h["Header"], text)
	}
	return outbox.Entry{
		Key: o.orderKey(order), IdempotencyKey: rand.Text(), Method: o.Method, URL: o.Prefix + "//" + r.Destination, Header: h, Body: r.Value,
	}
}

// orderKey returns the Key of an entry: the record's key if every database can store it as text,
// otherwise its hash.
func (o *Target) orderKey(key []byte) string {
	readable, hashed := o.Prefix+"=", o.Prefix+"#"
	switch {
	case key == nil:
		return ""
	case len(readable)+len(key) <= maxKey && utf8.Valid(key) && !strings.Contains(string(key), "\x00"):
		return readable + string(key)
	}
	sum := sha256.Sum256(key)
	return hashed + hex.EncodeToString(sum[:])
}

// Parse returns the record of an entry.
func Parse(row outbox.Row) (Record, error) {
	r := Record{Destination: destinationOf(row), Value: row.Body}
	if r.Value == nil {
		r.Value = []byte{}
	}
	if len(row.Header["Value"]) > 0 {
		r.Value = nil
	}
	if key := row.Header["Key"]; len(key) > 0 {
		plain, err := url.QueryUnescape(key[0])
		if err != nil {
			return r, fmt.Errorf("entry %d: its key: %w", row.ID, err)
		}
		r.Key = []byte(plain)
	}
	for _, text := range row.Header["Header"] {
		name, value, some := strings.Cut(text, "=")
		name, err := url.QueryUnescape(name)
		if err != nil {
			return r, fmt.Errorf("entry %d: a header: %w", row.ID, err)
		}
		field := epoch.Header{Key: name}
		if some {
			plain, err := url.QueryUnescape(value)
			if err != nil {
				return r, fmt.Errorf("entry %d: header %s: %w", row.ID, name, err)
			}
			field.Value = []byte(plain)
		}
		r.Headers = append(r.Headers, field)
	}
	return r, nil
}
