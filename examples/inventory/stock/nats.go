package stock

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/natsstore"
)

// NATS keeps the stock in a key-value bucket.
var NATS = Store{
	Name: "nats", URL: "nats://HOST:PORT/BUCKET",
	Start: func(dir string) (string, func(), error) {
		s, err := server.NewServer(&server.Options{
			Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: dir, NoSigs: true, NoLog: true,
		})
		if err != nil {
			return "", nil, err
		}
		s.Start()
		if !s.ReadyForConnections(10 * time.Second) {
			s.Shutdown()
			return "", nil, errors.New("it was not ready within 10 seconds")
		}
		return s.ClientURL() + "/inventory", func() { s.Shutdown(); s.WaitForShutdown() }, nil
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
