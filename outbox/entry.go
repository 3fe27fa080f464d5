package outbox

import (
	"bufio"
	"bytes"
	"cmp"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/textproto"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/text/secret"
	"github.com/epochfence/epochfence/outbox/httpfence"
)

// This file decides which entries can ever be sent, so that every database can store their texts: one that
// cannot fails the handler that adds it, so that no relay meets it later. It has the one form in which
// stores keep headers, and decides which parts of a URL or a header may be seen in logs and errors. relay.go
// decides when an entry is sent.

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

// receiverOf returns what texts may show of a URL.
func receiverOf(text string) string {
	return cmp.Or(secret.Receiver(text), "a URL that cannot be read")
}

// checkURL returns an error if no request can be sent to the URL. Its errors contain no secrets.
func checkURL(text string) error {
	u, err := url.Parse(text)
	if err != nil || len(text) > maxURL || !cleanText(text) {
		return fmt.Errorf("the URL, of %d bytes, cannot be read; want an absolute one, http or https, of at most %d bytes", len(text), maxURL)
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		return errors.New("the URL is not one of a host; want an absolute one, http or https")
	}
	if n, err := strconv.ParseUint(u.Port(), 10, 16); u.Port() != "" && (err != nil || n == 0) {
		return fmt.Errorf("the URL to %s names a port that there is not", receiverOf(text))
	}
	if !visible(u.RequestURI()) {
		return fmt.Errorf("the query of the URL to %s holds a space, or what is not ASCII; encode it with net/url", receiverOf(text))
	}
	return nil
}

func visible(s string) bool {
	return strings.IndexFunc(s, func(c rune) bool { return c <= ' ' || c > '~' }) < 0
}

// arrives reports whether net/http can write e's request, without the body, and reads the same
// request back.
func arrives(e Entry) bool {
	sent, err := http.NewRequest(e.Method, e.URL, nil)
	if err != nil {
		return false
	}
	if e.Header != nil {
		sent.Header = e.Header
	}
	var wire bytes.Buffer
	if err := sent.Write(&wire); err != nil {
		return false
	}
	got, err := http.ReadRequest(bufio.NewReader(&wire))
	return err == nil && got.Method == e.Method && got.Host != "" && got.RequestURI == sent.URL.RequestURI()
}

// withoutSecrets returns err with a text that shows only the scheme and host of the URL. It removes
// each *url.Error, which has the whole URL.
func withoutSecrets(err error, of string) error {
	for whole := (*url.Error)(nil); errors.As(err, &whole); {
		err = whole.Err
	}
	return &quietError{err: err, text: hide(err.Error(), of)}
}

type quietError struct {
	err  error
	text string
}

func (e *quietError) Error() string { return e.text }
func (e *quietError) Unwrap() error { return e.err }

// hide replaces the parts of the URL that may be secret in text.
func hide(text, of string) string {
	u, err := url.Parse(of)
	if err != nil {
		return strings.ReplaceAll(text, of, "…")
	}
	secrets := []string{u.String(), u.Redacted(), u.RequestURI(), u.EscapedPath(), u.Path, u.RawQuery, u.EscapedFragment(), u.User.String()}
	parts := append(strings.FieldsFunc(u.RequestURI(), func(c rune) bool { return strings.ContainsRune("/?&=;", c) }), u.User.Username())
	for _, values := range u.Query() {
		parts = append(parts, values...)
	}
	password, _ := u.User.Password()
	secrets = append(secrets, password)
	for _, part := range parts {
		if plain, err := url.PathUnescape(part); err == nil {
			part = plain // any escapes of it are found
		}
		if len(part) >= 6 { // shorter parts are words, such as v1 or id
			secrets = append(secrets, part)
		}
	}
	secrets = slices.DeleteFunc(secrets, func(s string) bool { return len(s) < 2 }) // "/" is not secret
	return secret.Spellings(append(secrets, of)...).ReplaceAllStringFunc(text, func(found string) string {
		if found == of {
			return receiverOf(of)
		}
		return "…"
	})
}

// hideHeader replaces the values of an entry's header in a receiver's text, and their words: a receiver
// may repeat a token.
func hideHeader(text string, h http.Header) string {
	var secrets []string
	for _, values := range h {
		for _, v := range values {
			for _, s := range append([]string{v}, strings.Fields(v)...) {
				if len(s) >= 6 { // shorter ones are words, such as Basic or gzip
					secrets = append(secrets, s)
				}
			}
		}
	}
	if secrets == nil {
		return text
	}
	return secret.Spellings(secrets...).ReplaceAllString(text, "…")
}
