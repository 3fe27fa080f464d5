package stock

import (
	"context"
	"net/url"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/natsstore"
	"github.com/epochfence/epochfence/internal/localnats"
)

// NATS keeps the stock in a key-value bucket.
var NATS = Store{
	Name: "nats", URL: "nats://HOST:PORT/BUCKET",
	Start: func(dir string) (string, func(), error) {
		url, stop, err := localnats.Start(dir)
		return url + "/inventory", stop, err
	},
	Open: func(ctx context.Context, at string) (cas.Store, func(), error) {
		u, err := url.Parse(at)
		if err != nil {
			return nil, nil, err
		}
		bucket := strings.Trim(u.Path, "/")
		u.Path = ""
		nc, err := nats.Connect(u.String())
		if err != nil {
			return nil, nil, err
		}
		js, err := jetstream.New(nc)
		if err == nil {
			var s cas.Store
			if s, err = natsstore.Open(ctx, js, natsstore.Options{Bucket: bucket}); err == nil {
				return s, nc.Close, nil
			}
		}
		nc.Close()
		return nil, nil, err
	},
}
