package rebuild

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/guard"
	"github.com/epochfence/epochfence/internal/waits"
)

// pointer is the value of a pointer, as JSON.
type pointer struct {
	Tick  int64    `json:"tick"` // in seconds since 1970
	Parts []object `json:"parts"`
}

// object is a part, as it was committed.
type object struct {
	Name string `json:"name"`
	Sum  string `json:"sum"` // SHA-256, in hexadecimal
}

// reading is an index as a reader has found it.
type reading struct {
	tick  time.Time // of the build that the index says it is
	wrong string    // "" if all parts are of that build
}

// errNotYet is returned where there is no index yet, or it is being written, as it says itself.
var errNotYet = errors.New("there is no complete index to read")

// look reads the index of a job, with all its documents.
type look func(ctx context.Context, job string) (reading, error)

// fencedLook reads what a pointer names.
func fencedLook(objects *s3.Client, pointers cas.Store, parts int) look {
	return func(ctx context.Context, job string) (reading, error) {
		state, err := guard.Read(ctx, pointers, job)
		if err != nil {
			return reading{}, err
		}
		if !state.Exists {
			return reading{}, errNotYet
		}
		var p pointer
		if err := json.Unmarshal(state.Value, &p); err != nil {
			return reading{}, err
		}
		return judge(ctx, objects, job, time.Unix(p.Tick, 0).UTC(), parts, p.Parts)
	}
}

// usualLook reads the parts while the manifest stays as it is.
func usualLook(objects *s3.Client, id string, parts int) look {
	return func(ctx context.Context, job string) (reading, error) {
		said, tag, err := get(ctx, objects, manifestName(id, job))
		if missing := (*types.NoSuchKey)(nil); errors.As(err, &missing) {
			return reading{}, errNotYet
		}
		if err != nil {
			return reading{}, err
		}
		var m manifest
		if err := json.Unmarshal(said, &m); err != nil {
			return reading{}, err
		}
		if !m.Complete {
			return reading{}, errNotYet
		}
		names := make([]object, parts)
		for n := range names {
			names[n].Name = partName(id, job, n)
		}
		r, err := judge(ctx, objects, job, m.Tick, parts, names)
		if err != nil {
			return r, err
		}
		again, tagAgain, err := get(ctx, objects, manifestName(id, job))
		if err == nil && (tag != tagAgain || !bytes.Equal(said, again)) {
			err = errNotYet
		}
		return r, err
	}
}

// judge compares the objects with the build that they are said to be. The baseline's have no sums.
func judge(ctx context.Context, objects *s3.Client, job string, tick time.Time, parts int, named []object) (reading, error) {
	r := reading{tick: tick}
	if len(named) != parts {
		r.wrong = fmt.Sprintf("it has %d parts of %d", len(named), parts)
		return r, nil
	}
	for n, o := range named {
		content, _, err := get(ctx, objects, o.Name)
		if err != nil {
			return r, err
		}
		of, ok := tickOf(content, job, n)
		switch {
		case !ok:
			r.wrong = fmt.Sprintf("part %d is of no build", n)
		case !of.Equal(tick):
			r.wrong = fmt.Sprintf("part %d is of %s", n, of.Format(time.RFC3339))
		case o.Sum != "" && o.Sum != sum(content):
			r.wrong = fmt.Sprintf("part %d is not the one that was committed", n)
		}
		if r.wrong != "" {
			return r, nil
		}
	}
	return r, nil
}

// reader reads the indexes of a column again and again, and counts.
type reader struct {
	look look
	jobs []string
	tell func(line string)

	reads     int
	mixtures  int // reads that found parts of other builds
	backwards int // reads that found an earlier build than the read before
	last      map[string]reading
}

// run reads until ctx ends. It fails if an index cannot be read.
func (r *reader) run(ctx context.Context) error {
	for waits.Sleep(ctx, 50*time.Millisecond) { // so that it does not use up the machine
		if err := r.read(ctx); err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

// read reads each index once.
func (r *reader) read(ctx context.Context) error {
	for _, job := range r.jobs {
		found, err := r.look(ctx, job)
		if errors.Is(err, errNotYet) {
			continue
		}
		if err != nil {
			return fmt.Errorf("read the index of job %s: %w", job, err)
		}
		r.count(job, found)
	}
	return nil
}

func (r *reader) count(job string, found reading) {
	before, known := r.last[job]
	r.last[job] = found
	r.reads++
	backwards := known && found.tick.Before(before.tick)
	if backwards {
		r.backwards++
	}
	if found.wrong != "" {
		r.mixtures++
	}
	switch {
	case known && found.tick.Equal(before.tick) && found.wrong == before.wrong:
	case found.wrong != "":
		r.tell(fmt.Sprintf("a reader finds a mixture: %s says that it is of %s, and %s", job, found.tick.Format(time.RFC3339), found.wrong))
	case backwards:
		r.tell(fmt.Sprintf("a reader finds %s at %s, after %s", job, found.tick.Format(time.RFC3339), before.tick.Format(time.RFC3339)))
	}
}

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
