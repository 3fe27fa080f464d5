package httpfence

import (
	"bytes"
	"encoding/json"
	"fmt"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/epochfence/epochfence/epoch"
)

// This file decides which answers of a handler can be stored and sent again: size, headers and
// trailers. It also has the refusals as they travel, for both sides. Whether an answer is stored, and
// which refusal a request gets, is decided in handler.go; what a refusal means, in outbox/send.go.

type recorder struct {
	header http.Header // the handler's
	sent   http.Header // copy of header when the status was written
	status int
	body   bytes.Buffer
	limit  int64
	wrong  error // why the answer cannot be stored
}

func newRecorder(limit int64) *recorder { return &recorder{header: http.Header{}, limit: limit} }

func (w *recorder) Header() http.Header { return w.header }

func (w *recorder) WriteHeader(status int) {
	switch {
	case status < 100 || status > 999:
		panic(fmt.Sprintf("httpfence: invalid WriteHeader code %d", status)) // as net/http does
	case w.status != 0 || status < 200 && status != http.StatusSwitchingProtocols:
		return
	case status == http.StatusSwitchingProtocols:
		w.wrong = fmt.Errorf("status %d: a fenced answer switches no protocol", status)
	}
	w.status = status
	w.sent = w.header.Clone()
}

func (w *recorder) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	if !bodyAllowed(w.status) {
		return 0, http.ErrBodyNotAllowed
	}
	if int64(w.body.Len())+int64(len(p)) > w.limit {
		w.wrong = fmt.Errorf("the body has more than the %d bytes of Options.MaxAnswer", w.limit)
	}
	if w.wrong != nil {
		return 0, fmt.Errorf("httpfence: write the answer: %w", w.wrong)
	}
	return w.body.Write(p)
}

func (w *recorder) answer() (Answer, error) {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	if w.wrong != nil {
		return Answer{}, w.wrong
	}
	a := Answer{Status: w.status, Header: w.sent, Body: w.body.Bytes()}
	// A trailer is announced in the header Trailer, or has http.TrailerPrefix.
	for _, list := range a.Header["Trailer"] {
		for name := range strings.SplitSeq(list, ",") {
			name = http.CanonicalHeaderKey(strings.TrimSpace(name))
			a.trail(name, w.header[name])
		}
	}
	for name, values := range w.header {
		if bare, ok := strings.CutPrefix(name, http.TrailerPrefix); ok {
			a.trail(http.CanonicalHeaderKey(bare), values)
			delete(a.Header, name)
		}
	}
	for _, name := range hopByHop {
		delete(a.Header, name)
	}
	for name := range a.Trailer {
		delete(a.Header, name)
	}
	a.Header = sendable(a.Header)
	if a.Trailer != nil {
		a.Trailer = sendable(a.Trailer)
	}
	if n := size(a.Header) + size(a.Trailer); n > maxHeader {
		return Answer{}, fmt.Errorf("headers of %d bytes; want at most %d", n, maxHeader)
	}
	return a, nil
}

const maxHeader = 64 << 10 // bytes

func size(h http.Header) (n int) {
	for name, values := range h {
		for _, v := range values {
			n += len(name) + len(v)
		}
	}
	return n
}

// hopByHop are the headers that belong to one connection or that net/http writes itself.
var hopByHop = []string{"Connection", "Content-Length", "Date", "Keep-Alive", "Trailer", "Transfer-Encoding", "Upgrade"}

func (a *Answer) trail(name string, values []string) {
	if len(values) == 0 || slices.Contains(hopByHop, name) {
		return
	}
	if a.Trailer == nil {
		a.Trailer = http.Header{}
	}
	a.Trailer[name] = slices.Clone(values)
}

func (r Reply) write(w http.ResponseWriter, method string) {
	h := w.Header()
	for name, values := range r.Header {
		h[name] = slices.Clone(values)
	}
	if r.Replayed {
		h.Set(ReplayedHeader, "true")
	} else {
		h.Del(ReplayedHeader) // the handler must not set it
	}
	switch {
	case len(r.Trailer) > 0:
		for name := range r.Trailer {
			h.Add("Trailer", name)
		}
	case bodyAllowed(r.Status) && method != http.MethodHead:
		h.Set("Content-Length", strconv.Itoa(len(r.Body)))
	}
	w.WriteHeader(r.Status)
	if bodyAllowed(r.Status) {
		_, _ = w.Write(r.Body) // if the client is gone, it tries again later
	}
	for name, values := range r.Trailer {
		h[name] = slices.Clone(values)
	}
}

func bodyAllowed(status int) bool {
	return status != http.StatusNoContent && status != http.StatusNotModified
}

func (p Problem) answer() Answer {
	body, _ := json.Marshal(p) // strings and numbers
	return Answer{Status: p.Status, Header: http.Header{"Content-Type": {problemMediaType}}, Body: append(body, '\n')}
}

// The values of [Problem].Type that a [Handler] answers with. They are URLs of this page.
const (
	// TypeStale comes with 412 Precondition Failed: the scope has seen a higher epoch. Either the
	// sender is no longer the owner and must not try again, or its database has lost claims that
	// the scope has seen. In the second case it may claim above Highest.
	TypeStale = problems + "TypeStale"

	// TypeKeyReused comes with 422 Unprocessable Content: the idempotency key
	// was used for another request of this scope.
	TypeKeyReused = problems + "TypeKeyReused"

	// TypeMalformed comes with 400 Bad Request: a header is missing or wrong.
	TypeMalformed = problems + "TypeMalformed"

	// TypeNewer comes with 501 Not Implemented: the request is of a newer version, and had no effect. The
	// sender tries again until the receiver is updated.
	TypeNewer = problems + "TypeNewer"

	// TypeIncomplete comes with 408 Request Timeout: the body did not arrive in full, and the
	// request had no effect.
	TypeIncomplete = problems + "TypeIncomplete"

	// TypeTooLarge comes with 413 Content Too Large.
	TypeTooLarge = problems + "TypeTooLarge"

	// TypeBusy comes with 503 Service Unavailable and Retry-After: the request
	// did not get its turn in time, and had no effect.
	TypeBusy = problems + "TypeBusy"

	// TypeFailed comes with 500 Internal Server Error: the store failed, or the handler's answer
	// cannot be stored. Whether the request had an effect is not known. Try again with the same key.
	TypeFailed = problems + "TypeFailed"

	problems = "https://pkg.go.dev/github.com/epochfence/epochfence/outbox/httpfence#"

	problemMediaType = "application/problem+json"
)

// Problem is the body of a refusal, in the format of RFC 9457.
type Problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail,omitempty"`

	// For TypeStale: the scope and epoch of the request, and the highest epoch that the scope has
	// seen.
	Scope   string      `json:"scope,omitempty"`
	Epoch   epoch.Epoch `json:"epoch,omitempty"`
	Highest epoch.Epoch `json:"highest,omitempty"`
}

// ReadProblem returns the [Problem] in an answer. It recognises it by the media type.
func ReadProblem(h http.Header, body []byte) (Problem, bool) {
	var p Problem
	if media, _, err := mime.ParseMediaType(h.Get("Content-Type")); err != nil || media != problemMediaType {
		return p, false
	}
	return p, json.Unmarshal(body, &p) == nil
}

func (p Problem) write(w http.ResponseWriter) {
	body, _ := json.Marshal(p) // strings and numbers
	h := w.Header()
	h.Set("Content-Type", problemMediaType)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	if p.Status == http.StatusServiceUnavailable {
		h.Set("Retry-After", "1")
	}
	w.WriteHeader(p.Status)
	_, _ = w.Write(append(body, '\n'))
}

// Retryable reports whether an answer with this status asks for another try: 408, 425, 429 and
// every 5xx. A [Handler] does not store such an answer, and undoes its effect if the store can. A
// sender tries again with the same key.
func Retryable(status int) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return true
	}
	return status >= 500
}
