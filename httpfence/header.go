package httpfence

import (
	"bytes"
	"maps"
	"net/http"
	"slices"
	"strings"
)

var oneLine = strings.NewReplacer("\r", " ", "\n", " ") // as net/http does when it sends

// writeHeader writes lines "Name: value", each ended by CR LF.
func writeHeader(h http.Header) []byte {
	var b bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(h)) {
		for _, v := range h[name] {
			b.WriteString(oneLine.Replace(name) + ": " + oneLine.Replace(v) + "\r\n")
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
