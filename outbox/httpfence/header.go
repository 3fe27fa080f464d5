package httpfence

import (
	"bytes"
	"maps"
	"net/http"
	"net/textproto"
	"slices"
	"strings"
)

// This file decides which header fields survive storage and every version of HTTP, and has their
// stored form. answer.go decides which fields an answer has.

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
