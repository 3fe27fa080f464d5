package httpfence

import (
	"encoding/json"
	"mime"
	"net/http"

	"github.com/epochfence/epochfence/epoch"
)

// This file has the refusals as they travel, for both sides. handler.go decides which refusal a
// request gets, and the sender what it means: outbox/send.go.

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
