// Package stores opens the stores of items that flags of the shows name. Package show does not import it, so that
// a show without such a flag has no clients of them.
package stores

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/natsstore"
	"github.com/epochfence/epochfence/internal/servers/localnats"
	"github.com/epochfence/epochfence/internal/show"
)

// Kind is a kind of store of items that a flag can name by a URL.
type Kind struct {
	Schemes []string // of its URLs
	URL     string   // an example
	// Open connects to the server at a URL. If it fails, it leaves nothing open.
	Open func(ctx context.Context, url string) (s cas.Store, closer func(), err error)
}

// Kinds are the kinds of stores that a show knows.
type Kinds []Kind

// String lists what a flag may be.
func (ss Kinds) String() string {
	all := []string{"nats (a server in this process)"}
	for _, s := range ss {
		all = append(all, s.URL)
	}
	return strings.Join(all, ", ")
}

// Check reports whether a flag that [Kinds.Reach] takes is of a known store.
func (ss Kinds) Check(flag, at string) error {
	if at == "nats" {
		return nil
	}
	if _, err := ss.find(at); err != nil {
		return fmt.Errorf("-%s: %w", flag, err)
	}
	return nil
}

func (ss Kinds) find(url string) (Kind, error) {
	scheme, _, _ := strings.Cut(url, "://")
	for _, s := range ss {
		if slices.Contains(s.Schemes, scheme) {
			return s, nil
		}
	}
	return Kind{}, fmt.Errorf("want one of %v", ss)
}

// Open opens the store at a URL, and sees that its server answers.
func (ss Kinds) Open(ctx context.Context, url string) (cas.Store, func(), error) {
	kind, err := ss.find(url)
	if err != nil {
		return nil, nil, err
	}
	s, closer, err := kind.Open(ctx, url)
	if err != nil {
		return nil, nil, err
	}
	_, err = s.Facts(ctx) // asks the server
	return Opened(s, err, closer)
}

// Reach opens the store at a URL until the end of the show. In place of a URL, "nats" starts a server in this
// process, with its data in dir and a bucket.
func (ss Kinds) Reach(ctx context.Context, at, dir, bucket string, atEnd func(func())) (url string, s cas.Store, err error) {
	if url = at; at == "nats" {
		server, stop, err := localnats.Start(dir)
		if err != nil {
			return "", nil, err
		}
		atEnd(stop)
		url = server + "/" + bucket
	}
	ctx, cancel := context.WithTimeout(ctx, show.Reachable)
	defer cancel()
	s, closer, err := ss.Open(ctx, url)
	if err == nil {
		atEnd(closer)
	}
	return url, s, err
}

// Opened returns a store, or closes its client if it could not be opened.
func Opened(s cas.Store, err error, closer func()) (cas.Store, func(), error) {
	if err != nil {
		closer()
		return nil, nil, err
	}
	return s, closer, nil
}

// NATS is a key-value bucket.
var NATS = Kind{[]string{"nats"}, "nats://HOST:PORT/BUCKET", func(ctx context.Context, at string) (cas.Store, func(), error) {
	u, err := url.Parse(at)
	if err != nil {
		return nil, nil, err
	}
	bucket := strings.Trim(u.Path, "/")
	if bucket == "" {
		return nil, nil, errors.New("name the bucket, as in nats://HOST:PORT/BUCKET")
	}
	u.Path = ""
	nc, err := nats.Connect(u.String(), nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond))
	if err != nil {
		return nil, nil, err
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return Opened(nil, err, nc.Close)
	}
	s, err := natsstore.Open(ctx, js, natsstore.Options{Bucket: bucket})
	return Opened(s, err, nc.Close)
}}

// Remove removes what workers have left in a store that others use, too.
func Remove(ctx context.Context, s cas.Store, prefix string) error {
	for item, err := range s.List(ctx, prefix) {
		if err == nil {
			err = s.Delete(ctx, item)
		}
		if err != nil {
			return fmt.Errorf("remove the items below %s: %w", prefix, err)
		}
	}
	return nil
}
