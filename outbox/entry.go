package outbox

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/textproto"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/outbox/httpfence"
)

// This file decides which entries can ever be sent, so that every database can store their texts: one that
// cannot fails the handler that adds it, so that no relay meets it later. It has the one form in which
// stores keep headers. url.go checks the URL. relay.go decides when an entry is sent.

// Entry is a request that is sent after the transaction that adds it has committed.
type Entry struct {
	// Key orders entries. Entries of one partition with the same Key are sent one after the other,
	// in the order in which they were added, each when the entry before it is done. An entry
	// without a Key waits for no other entry. At most 255 bytes of UTF-8.
	Key string

	// Scope names the resource that the request acts on, such as "account/17". The receiver stores
	// the highest epoch of each scope. All requests of one scope must come from one partition of one
	// group: let what decides the message's partition decide the scope, too. For its format see
	// [httpfence.ScopeHeader].
	Scope string

	// IdempotencyKey identifies the request within its Scope when it is repeated. Defaults to a
	// random key that is stored with the entry. For its format see [httpfence.KeyHeader].
	IdempotencyKey string

	// Method defaults to POST. URL is an absolute http or https URL of at most 8 KiB. Spaces and
	// non-ASCII characters in its query must be encoded. Errors and logs show only its scheme and
	// host.
	Method, URL string

	// Header is sent with the request, and has at most 32 KiB. Values are ASCII. It must not have
	// the headers of [httpfence.Call] or of the connection, such as Host.
	Header http.Header

	Body []byte // at most 256 KiB
}

// Row is an entry in a [Store].
type Row struct {
	ID     int64        // rises in the order in which a partition's entries were added
	Offset epoch.Offset // of the message that added it; -1: the version of epochfence that added it did not store it
	Entry
}

// Size returns about the bytes that the entry has in memory.
func (r Row) Size() int {
	n := len(r.Body) + 512 // of all other fields
	for _, values := range r.Header {
		for _, v := range values {
			n += len(v)
		}
	}
	return n
}

// Sent is an entry that was sent.
type Sent struct {
	Row
	Partition epoch.Partition
	Epoch     epoch.Epoch // under which it was sent
	Attempt   int         // under this claim, from 1
}

// Message returns a message that stands for the entry, with its ID as Replay, and the offset of the
// message that added it. Pass it to [Box.Add],
// and to Update of package cassink, which changes items once for each entry.
func (s Sent) Message() epoch.Message {
	return epoch.Message{Partition: s.Partition, Offset: s.Offset, Mark: epoch.NoMark, Replay: s.ID}
}

// Answer is the answer of a receiver.
type Answer struct {
	Status    int
	Header    http.Header
	Body      []byte // at most Options.MaxAnswer
	Truncated bool   // the body was longer
}

// Replayed reports whether the receiver had stored the answer for an earlier attempt.
func (a Answer) Replayed() bool { return a.Header.Get(httpfence.ReplayedHeader) == "true" }

// ErrEntry is returned for an entry that can never be sent.
var ErrEntry = errors.New("invalid entry")

// Kafka and NATS begin the URLs and the Keys of entries that packages kafkaoutbox and natsoutbox add to
// the same store. A Box neither adds nor sends such entries.
const (
	Kafka = "kafka:"
	NATS  = "nats:"
)

const (
	maxKey    = 255
	maxURL    = 8 << 10
	maxHeader = 32 << 10
	maxBody   = 256 << 10
)

// reserved are the headers that an entry must not set.
var reserved = []string{
	httpfence.EpochHeader, httpfence.ScopeHeader, httpfence.KeyHeader, httpfence.VersionHeader, httpfence.ReplayedHeader,
	"Connection", "Content-Length", "Expect", "Host", "Http2-Settings", "Keep-Alive", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade",
}

// complete sets the defaults, and returns an error if the entry could never be sent.
func (e Entry) complete() (Entry, error) {
	if e.Method == "" {
		e.Method = http.MethodPost
	}
	if e.IdempotencyKey == "" {
		e.IdempotencyKey = rand.Text()
	}
	wrong := func(format string, args ...any) (Entry, error) {
		return e, fmt.Errorf("outbox: %w: "+format, append([]any{ErrEntry}, args...)...)
	}
	if err := httpfence.CheckScope(e.Scope); err != nil {
		return wrong("%w", err)
	}
	if err := httpfence.CheckKey(e.IdempotencyKey); err != nil {
		return wrong("%w", err)
	}
	if len(e.Key) > maxKey || !cleanText(e.Key) {
		return wrong("Key %q; want at most %d bytes of UTF-8, without NUL", e.Key, maxKey)
	}
	if strings.HasPrefix(e.Key, Kafka) || strings.HasPrefix(e.Key, NATS) {
		return wrong("Key %q; %q and %q begin the Keys of records for Kafka and of messages for NATS", e.Key, Kafka, NATS)
	}
	if !token(e.Method) || e.Method == http.MethodConnect {
		return wrong("Method %q", e.Method)
	}
	if err := checkURL(e.URL); err != nil {
		return wrong("%w", err)
	}
	size := 0
	for name, values := range e.Header {
		if !token(name) {
			return wrong("header name %q", name)
		}
		if slices.Contains(reserved, textproto.CanonicalMIMEHeaderKey(name)) {
			return wrong("header %s is not an entry's to set", name)
		}
		for _, v := range values {
			if !fieldValue(v) {
				return wrong("header %s has a value that holds what no header may, or more than ASCII", name) // it may be secret
			}
			size += len(name) + len(v) + len(": \r\n")
		}
	}
	if size > maxHeader {
		return wrong("headers of %d bytes; want at most %d", size, maxHeader)
	}
	if len(e.Body) > maxBody {
		return wrong("body of %d bytes; want at most %d", len(e.Body), maxBody)
	}
	if !arrives(e) {
		return wrong("net/http could not send its request to %s, or not receive it as it is", receiverOf(e.URL))
	}
	return e, nil
}

// token reports whether s is a valid method or field name: RFC 9110, section 5.6.2.
func token(s string) bool {
	for i := range len(s) {
		c := s[i]
		if c <= ' ' || c > '~' || strings.IndexByte("\"(),/:;<=>?@[\\]{}", c) >= 0 {
			return false
		}
	}
	return s != ""
}

// fieldValue reports whether s is a valid field value, without the obsolete forms.
func fieldValue(s string) bool {
	for i := range len(s) {
		if s[i] != '\t' && (s[i] < ' ' || s[i] > '~') {
			return false
		}
	}
	return true
}

// MarshalHeader returns an entry's header as a [Store] keeps it: a JSON object of lists.
func MarshalHeader(h http.Header) (string, error) {
	if h == nil {
		h = http.Header{}
	}
	text, err := json.Marshal(h)
	if err != nil {
		return "", fmt.Errorf("outbox: write a header: %w", err)
	}
	return string(text), nil
}

// UnmarshalHeader parses the text that [MarshalHeader] returns.
func UnmarshalHeader(text string) (http.Header, error) {
	var h http.Header
	if err := json.Unmarshal([]byte(text), &h); err != nil {
		return nil, fmt.Errorf("outbox: read a header: %w", err)
	}
	return h, nil
}

// cleanText reports whether every database accepts s as text.
func cleanText(s string) bool { return utf8.ValidString(s) && !strings.Contains(s, "\x00") }
