package httpfence

import (
	"bytes"
	"maps"
	"net/http"
	"net/textproto"
	"slices"
	"strings"
)

// sendable is a header as every version of HTTP sends it. What is wrong in a header
// HTTP/1 fixes or sends, and HTTP/2 leaves out: so it is fixed before it is sent and
// stored. A field whose name cannot be sent goes, and control characters in a value
// become spaces.
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

// token is the name of a header: RFC 9110, section 5.6.2.
func token(s string) bool {
	for i := range len(s) {
		c := s[i]
		if c <= ' ' || c > '~' || strings.IndexByte("\"(),/:;<=>?@[\\]{}", c) >= 0 {
			return false
		}
	}
	return s != ""
}

// oneLine has spaces for the control characters of a value, as net/http has for ends of
// lines where it sends by HTTP/1.
func oneLine(v string) string {
	b := []byte(v)
	for i, c := range b {
		if c < ' ' && c != '\t' || c == 0x7f {
			b[i] = ' '
		}
	}
	return string(b)
}

// writeHeader writes lines "Name: value", each ended by CR LF, of what is sendable.
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
