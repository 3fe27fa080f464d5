package rebuild

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/guard"
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
