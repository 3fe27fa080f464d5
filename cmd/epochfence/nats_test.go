package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/natssource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/jsapi"
	"github.com/epochfence/epochfence/internal/servers/natstest"
)

// A replica that is catching up answers with the end that it has, below the position of a fence.
func TestAServerThatDoesNotLeadSaysNothingOfALog(t *testing.T) {
	server := natstest.Start(t)
	js := server.JetStream(t)
	_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "orders", Subjects: []string{"orders"}})
	must(t, err)
	nc := server.Connect(t)
	_, err = nc.Subscribe("front.API.STREAM.INFO.orders", func(m *nats.Msg) {
		a, err := nc.Request("$JS.API.STREAM.INFO.orders", m.Data, 5*time.Second)
		answer := map[string]any{}
		if err == nil {
			err = json.Unmarshal(a.Data, &answer)
		}
		answer["cluster"] = map[string]any{"leader": "b", "replicas": []any{map[string]any{"name": "b"}}}
		if text, _ := json.Marshal(answer); err == nil {
			_ = m.Respond(text)
		}
	})
	must(t, err)
	must(t, nc.FlushTimeout(5*time.Second))
	front, err := jetstream.NewWithAPIPrefix(server.Connect(t), "front.API")
	must(t, err)
	f := epoch.Fence{Origin: epoch.Origin{Partition: epoch.Partition{Group: "billing", Topic: "orders"}, Log: "orders@1/0/1/orders"}, Next: 100}
	for api, want := range map[jetstream.JetStream]error{js: nil, front: jsapi.ErrNoLeader} {
		b := &natsBroker{js: api, timeout: 5 * time.Second}
		if e := b.extents(t.Context(), []epoch.Fence{f})[0]; !errors.Is(e.err, want) {
			t.Errorf("%v, want %v: %+v", e.err, want, e)
		}
	}
}

// A group at work on a stream of two partitions: lag counts a partition's own messages, positions
// are found by time, and a stream that was created again is accepted.
func TestNATS(t *testing.T) {
	everywhere(t, func(t *testing.T, open func(broken) *place) {
		server := natstest.Start(t)
		js := server.JetStream(t)
		config := jetstream.StreamConfig{Name: "orders", Subjects: []string{"orders.*"}}
		_, err := js.CreateStream(t.Context(), config)
		must(t, err)
		p := open(none)
		l := &live{cli: &cli{t, p.variables("EPOCHFENCE_NATS", server.URL())}, place: p}
		publish := func(subject string, n int) {
			for range n {
				_, err := js.Publish(t.Context(), subject, []byte("order"))
				must(t, err)
			}
		}
		work := func() (stop func()) {
			source, err := natssource.New(natssource.Options{Group: "billing", JetStream: js, LeaseTTL: 2 * time.Second,
				Streams: []natssource.Stream{{Name: "orders", Filters: []string{"orders.even", "orders.odd"}}}})
			must(t, err)
			ctx, cancel := context.WithCancel(context.Background())
			ended := make(chan error, 1)
			go func() { ended <- p.consume(ctx, source, consumer.Options{MaxBatch: 4}) }()
			return func() {
				cancel()
				if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
					t.Errorf("the consumer ended with %v", err)
				}
			}
		}
		applied := func(of int32) (n int) {
			for _, e := range l.applied() {
				if e.number == of {
					n++
				}
			}
			return n
		}

		publish("orders.even", 30)
		stop := work()
		publish("orders.odd", 10)
		l.awaits("all is applied", func() bool { return applied(0) == 30 && applied(1) == 10 })
		between := time.Now()
		publish("orders.odd", 5)
		l.awaits("the rest is applied", func() bool { return applied(1) == 15 })

		l.executes("rewind", "orders/1", "--to", "@"+between.UTC().Format(time.RFC3339Nano))
		l.awaits("what came after that time is applied again", func() bool { return applied(1) == 20 })
		l.executes("rewind", "orders/0", "--to", "start")
		l.awaits("all of the other partition is applied again", func() bool { return applied(0) == 60 })
		stop()

		publish("orders.even", 3)
		publish("orders.odd", 4)
		var described struct {
			Partitions []struct {
				Lag *int64
				End *int64 `json:"log_end"`
			}
		}
		l.reads(&described, "describe")
		if lag := fmt.Sprint(*described.Partitions[0].Lag, *described.Partitions[1].Lag, *described.Partitions[0].End); lag != "3 4 53" {
			t.Errorf("lag and end: %s", lag)
		}
		l.executes("rewind", "orders/1", "--to", "end")
		if a := l.does(exitTrouble, "check", "--max-lag", "2"); !strings.Contains(a.out, "lag of billing/orders/0") || strings.Contains(a.out, "lag of billing/orders/1") {
			t.Errorf("check says\n%s", a.out)
		}
		if a := l.does(exitTrouble, "doctor", "--nats-bucket", "other"); !strings.Contains(a.out, "name the group's bucket with --nats-bucket") {
			t.Errorf("with another bucket, doctor says\n%s", a.out)
		}
		if a := l.does(0, "describe", "--nats-bucket", "other"); !strings.Contains(a.out, "leased from nats-kv:epochfence, and here leases come from nats-kv:other") || strings.Contains(a.out, "is of log") {
			t.Errorf("with another bucket, describe says\n%s", a.out)
		}
		consumers, err := js.Stream(t.Context(), "orders")
		must(t, err)
		for left := range consumers.ConsumerNames(t.Context()).Name() {
			c, err := consumers.Consumer(t.Context(), left)
			must(t, err)
			if c.CachedInfo().Config.HeadersOnly {
				t.Errorf("the consumer %s is left", left)
			}
		}

		// The stream is another one.
		must(t, js.DeleteStream(t.Context(), "orders"))
		_, err = js.CreateStream(t.Context(), config)
		must(t, err)
		publish("orders.even", 2)
		stop = work()
		defer stop()
		l.awaits("both have halted", func() bool { return strings.Count(l.run("list").out, "halted") == 2 })
		if a := l.does(exitTrouble, "doctor"); !strings.Contains(a.out, "epochfence rebase billing/orders/0") {
			t.Errorf("doctor says\n%s", a.out)
		}
		l.does(exitError, "rewind", "orders/0", "--to", "start")
		l.executes("rebase", "--group", "billing", "--to", "start")
		l.awaits("the new one is applied", func() bool { return applied(0) == 62 })
	})
}
