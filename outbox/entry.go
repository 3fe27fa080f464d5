package outbox

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"net/textproto"
	"slices"
	"strings"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/httpfence"
)

// Entry is a request to be sent once the transaction has committed that adds
// it.
type Entry struct {
	// Key orders: entries of one partition with the same Key are sent one after
	// the other, in the order in which they were added, each when the one before
	// it is done. An entry without a Key waits for no other. At most 255 bytes of
	// UTF-8.
	Key string

	// Scope is the resource that the request acts on, such as "account/17": the
	// receiver keeps the highest epoch of each. All that is sent for one scope
	// must come from one partition; see the package's documentation. See
	// [httpfence.ScopeHeader] for its form.
	Scope string

	// IdempotencyKey is what the receiver recognises the request by, within its
	// Scope, when it comes again. Empty means a random one, made by Add and
	// stored. See [httpfence.KeyHeader] for its form.
	IdempotencyKey string

	// Method is POST if empty. URL is absolute, http or https, and names a host; what is
	// not ASCII, or a space, is encoded in its query. Errors and logs show its scheme and
	// host only: the rest may be secret.
	Method, URL string

	// Header is sent with the request, beside the ones of [httpfence.Call],
	// which may not be among it.
	Header http.Header

	Body []byte
}

// Row is an entry as a [Store] keeps it.
type Row struct {
	ID int64 // rises in the order in which a partition's entries were added
	Entry
}

// Sent is an entry that was sent and answered.
type Sent struct {
	Row
	Partition epoch.Partition
	Epoch     epoch.Epoch // under which it was sent
	Attempt   int         // under this claim, from 1
}

// Answer is what a receiver answered.
type Answer struct {
	Status    int
	Header    http.Header
	Body      []byte // what fits into Options.MaxAnswer
	Truncated bool   // there was more
}

// Replayed reports whether the receiver had answered the request before, and
// now did so again.
func (a Answer) Replayed() bool { return a.Header.Get(httpfence.ReplayedHeader) == "true" }

// ErrEntry is the error of an entry that can never be sent.
var ErrEntry = errors.New("invalid entry")

const (
	maxKey    = 255
	maxURL    = 8 << 10
	maxHeader = 32 << 10
)

// reserved are the headers that are not an entry's to set.
var reserved = []string{
	httpfence.EpochHeader, httpfence.ScopeHeader, httpfence.KeyHeader, httpfence.ReplayedHeader,
	"Connection", "Content-Length", "Expect", "Host", "Http2-Settings", "Keep-Alive", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade",
}

// complete fills in what is left empty, and refuses what could never be sent.
func (e Entry) complete(maxBody int) (Entry, error) {
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
		return wrong("body of %d bytes; want at most Options.MaxBody, %d", len(e.Body), maxBody)
	}
	if !arrives(e) {
		return wrong("net/http could not send its request to %s, or not receive it as it is", receiverOf(e.URL))
	}
	return e, nil
}

// token is a method or the name of a header: RFC 9110, section 5.6.2.
func token(s string) bool {
	for i := range len(s) {
		c := s[i]
		if c <= ' ' || c > '~' || strings.IndexByte("\"(),/:;<=>?@[\\]{}", c) >= 0 {
			return false
		}
	}
	return s != ""
}

// fieldValue is the value of a header, without what is obsolete.
func fieldValue(s string) bool {
	for i := range len(s) {
		if s[i] != '\t' && (s[i] < ' ' || s[i] > '~') {
			return false
		}
	}
	return true
}
