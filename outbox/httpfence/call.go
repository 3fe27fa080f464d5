package httpfence

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/textproto"
	"slices"
	"strconv"
	"strings"

	"github.com/epochfence/epochfence/epoch"
)

// This file has the headers of a fenced request for both sides, decides which are well-formed, and which
// header fields survive storage and every version of HTTP. What the receiver does with them is decided
// in handler.go and in its store.

// The headers of a fenced request and of a replayed answer.
const (
	// EpochHeader contains the fencing token: the epoch under which the sender owns its partition,
	// a decimal number from 1 to 2^63-1.
	EpochHeader = "Epochfence-Epoch"

	// ScopeHeader names the resource whose highest epoch the receiver keeps: 1 to [MaxScope]
	// printable ASCII characters that do not begin or end with a space.
	ScopeHeader = "Epochfence-Scope"

	// KeyHeader contains the idempotency key, as draft-ietf-httpapi-idempotency-key-header-06
	// defines it: one structured string (RFC 9651), in double quotes, of 1 to [MaxKey] printable
	// ASCII characters, with \" and \\ for a quote and a backslash.
	KeyHeader = "Idempotency-Key"

	// VersionHeader is the version of the other headers, and left out for version 1. A receiver answers a
	// higher one with [TypeNewer].
	VersionHeader = "Epochfence-Version"

	// ReplayedHeader is "true" in a stored answer to an earlier request with the same key.
	ReplayedHeader = "Epochfence-Replayed"
)

// MaxScope and MaxKey limit a scope and an idempotency key, in bytes.
const (
	MaxScope = 255
	MaxKey   = 255
)

// Call has the headers of one fenced request.
type Call struct {
	Scope string
	Epoch epoch.Epoch
	Key   string // without the quotes of the header
}

// ErrMalformed is returned for a [Call] that cannot be sent or was not received in full: a header
// is missing, comes twice, or has a wrong format.
var ErrMalformed = errors.New("malformed call")

// ErrNewer is returned for a [Call] of a newer version: what its headers mean is not known. Update the
// receiver.
var ErrNewer = errors.New("call of a newer version")

// SetHeaders writes the call into the headers of a request, for a sender. Its errors match
// [ErrMalformed].
func (c Call) SetHeaders(h http.Header) error {
	if err := CheckScope(c.Scope); err != nil {
		return err
	}
	if err := CheckKey(c.Key); err != nil {
		return err
	}
	if c.Epoch <= 0 {
		return fmt.Errorf("httpfence: %w: epoch %d; want 1 or more", ErrMalformed, c.Epoch)
	}
	h.Set(EpochHeader, strconv.FormatInt(int64(c.Epoch), 10))
	h.Set(ScopeHeader, c.Scope)
	h.Set(KeyHeader, quote(c.Key))
	return nil
}

// ReadCall reads the headers that [Call.SetHeaders] writes. Its errors match [ErrMalformed] and
// name the wrong header, or match [ErrNewer].
func ReadCall(h http.Header) (Call, error) {
	var c Call
	if v := h.Values(VersionHeader); len(v) > 1 || len(v) == 1 && v[0] != "1" {
		return c, fmt.Errorf("httpfence: %w: %s is %q, and this receiver knows 1", ErrNewer, VersionHeader, v)
	}
	number, err := one(h, EpochHeader)
	if err != nil {
		return c, err
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n <= 0 || strconv.FormatInt(n, 10) != number {
		return c, fmt.Errorf("httpfence: %w: %s is %q; want a decimal number from 1 to 9223372036854775807", ErrMalformed, EpochHeader, number)
	}
	c.Epoch = epoch.Epoch(n)
	if c.Scope, err = one(h, ScopeHeader); err != nil {
		return c, err
	}
	if err := CheckScope(c.Scope); err != nil {
		return c, err
	}
	key, err := one(h, KeyHeader)
	if err != nil {
		return c, err
	}
	c.Key, err = unquote(key)
	if err != nil {
		return c, err
	}
	return c, CheckKey(c.Key)
}

func one(h http.Header, name string) (string, error) {
	switch vs := h.Values(name); len(vs) {
	case 0:
		return "", fmt.Errorf("httpfence: %w: %s is missing", ErrMalformed, name)
	case 1:
		return vs[0], nil
	default:
		return "", fmt.Errorf("httpfence: %w: %s comes %d times; want it once", ErrMalformed, name, len(vs))
	}
}

// CheckScope returns an [ErrMalformed] unless s can be a scope.
func CheckScope(s string) error {
	switch {
	case s == "" || len(s) > MaxScope:
		return fmt.Errorf("httpfence: %w: the scope has %d bytes; want 1 to %d", ErrMalformed, len(s), MaxScope)
	case !printable(s):
		return fmt.Errorf("httpfence: %w: the scope %q holds more than printable ASCII", ErrMalformed, s)
	case strings.TrimSpace(s) != s:
		return fmt.Errorf("httpfence: %w: the scope %q begins or ends with a space, which HTTP drops", ErrMalformed, s)
	}
	return nil
}

// CheckKey returns an [ErrMalformed] unless s can be an idempotency key.
func CheckKey(s string) error {
	switch {
	case s == "" || len(s) > MaxKey:
		return fmt.Errorf("httpfence: %w: the idempotency key has %d bytes; want 1 to %d", ErrMalformed, len(s), MaxKey)
	case !printable(s):
		return fmt.Errorf("httpfence: %w: the idempotency key %q holds more than printable ASCII", ErrMalformed, s)
	}
	return nil
}

func printable(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// quote serializes a structured string: RFC 9651, section 4.1.6.
func quote(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"`
}

// unquote parses a structured string: RFC 9651, section 4.2.5. It refuses parameters, because the
// draft defines none.
func unquote(v string) (string, error) {
	wrong := fmt.Errorf(`httpfence: %w: %s is %s; want one string in double quotes, with \" and \\ for a quote and a backslash`, ErrMalformed, KeyHeader, v)
	if len(v) < 2 || v[0] != '"' || v[len(v)-1] != '"' {
		return "", wrong
	}
	var b strings.Builder
	for in := v[1 : len(v)-1]; in != ""; in = in[1:] {
		switch in[0] {
		case '"':
			return "", wrong
		case '\\':
			in = in[1:]
			if in == "" || in[0] != '"' && in[0] != '\\' {
				return "", wrong
			}
		}
		b.WriteByte(in[0])
	}
	return b.String(), nil
}

// sendable returns h in a form that every version of HTTP sends unchanged. Without it, HTTP/1 would
// fix or send wrong fields, and HTTP/2 would leave them out. sendable removes fields with an
// invalid name and replaces control characters in values with spaces.
func sendable(h http.Header) http.Header {
	clean := make(http.Header, len(h))
	for name, values := range h {
		if !token(name) {
			continue
		}
		for _, v := range values {
			clean[name] = append(clean[name], textproto.TrimString(oneLine(v)))
		}
	}
	return clean
}

// token reports whether s is a valid field name: RFC 9110, section 5.6.2.
func token(s string) bool {
	for i := range len(s) {
		c := s[i]
		if c <= ' ' || c > '~' || strings.IndexByte("\"(),/:;<=>?@[\\]{}", c) >= 0 {
			return false
		}
	}
	return s != ""
}

// oneLine replaces control characters with spaces, as net/http does with line ends in HTTP/1.
func oneLine(v string) string {
	b := []byte(v)
	for i, c := range b {
		if c < ' ' && c != '\t' || c == 0x7f {
			b[i] = ' '
		}
	}
	return string(b)
}

// writeHeader writes h, which must be sendable, as lines "Name: value" that end with CR LF.
func writeHeader(h http.Header) []byte {
	var b bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(h)) {
		for _, v := range h[name] {
			b.WriteString(name + ": " + v + "\r\n")
		}
	}
	if b.Len() == 0 {
		return []byte{} // not NULL
	}
	return b.Bytes()
}

func readHeader(text []byte) http.Header {
	h := http.Header{}
	for line := range strings.SplitSeq(string(text), "\r\n") {
		if name, v, ok := strings.Cut(line, ": "); ok {
			h[name] = append(h[name], v)
		}
	}
	return h
}
