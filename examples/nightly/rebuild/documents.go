package rebuild

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"strings"
	"time"
)

// documents is the number of documents of a part.
const documents = 200

// part returns a part of a build: when it was made, and the documents as they were at the tick, one a
// line. So a part that is made twice is not the same, as in life.
func part(job string, tick time.Time, n int) []byte {
	return append([]byte("made at "+time.Now().Format(time.RFC3339Nano)+"\n"), lines(job, tick, n)...)
}

func lines(job string, tick time.Time, n int) []byte {
	var b bytes.Buffer
	for i := range documents {
		head := fmt.Sprintf("%s %s part %d document %d", job, tick.UTC().Format(time.RFC3339), n, i)
		fmt.Fprintf(&b, "%s %x\n", head, sha256.Sum256([]byte(head)))
	}
	return b.Bytes()
}

// tickOf returns the tick of whose build this is part n, with all its documents. ok is false if it is
// none.
func tickOf(content []byte, job string, n int) (tick time.Time, ok bool) {
	_, content, _ = bytes.Cut(content, []byte("\n"))
	fields := strings.Fields(string(content[:min(len(content), 1000)]))
	if len(fields) < 2 {
		return tick, false
	}
	tick, err := time.Parse(time.RFC3339, fields[1])
	return tick, err == nil && bytes.Equal(content, lines(job, tick, n))
}
