package natsoutbox_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/servers/natstest"
	"github.com/epochfence/epochfence/outbox"
	"github.com/epochfence/epochfence/outbox/natsoutbox"
)

// The histories of the relay, also on NATS, are tests of outbox/internal/batches.

type neverCalled struct{ outbox.Store[int] }

func TestAStreamThatCannotWorkIsRefusedAtTheStart(t *testing.T) {
	js := natstest.Start(t).JetStream(t)
	for say, f := range map[string]func(*jetstream.StreamConfig){
		"no AllowAtomicPublish":       func(c *jetstream.StreamConfig) { c.AllowAtomicPublish = false },
		`add "epochfence-positions.S`: func(c *jetstream.StreamConfig) { c.Subjects = []string{"s.>"} },
		"epochfence-positions.S.*.*.*": func(c *jetstream.StreamConfig) {
			c.Subjects = []string{"s.>", "epochfence-positions.S.*.*.*"}
		},
		"NoAck":      func(c *jetstream.StreamConfig) { c.NoAck = true },
		"WorkQueue":  func(c *jetstream.StreamConfig) { c.Retention = jetstream.WorkQueuePolicy },
		"Interest":   func(c *jetstream.StreamConfig) { c.Retention = jetstream.InterestPolicy },
		"MaxAge":     func(c *jetstream.StreamConfig) { c.MaxAge = time.Hour },
		"MaxMsgSize": func(c *jetstream.StreamConfig) { c.MaxMsgSize = 100 },
		"DiscardNewPerSubject": func(c *jetstream.StreamConfig) {
			c.Discard, c.DiscardNewPerSubject, c.MaxMsgsPerSubject = jetstream.DiscardNew, true, 1
		},
		"SubjectTransform": func(c *jetstream.StreamConfig) {
			c.SubjectTransform = &jetstream.SubjectTransformConfig{Source: "s.>", Destination: "t.>"}
		},
		"AllowMsgCounter": func(c *jetstream.StreamConfig) { c.AllowMsgCounter = true },
		"is no position": func(c *jetstream.StreamConfig) {
			c.Subjects = []string{"epochfence-positions.>"}
		},
	} {
		c := jetstream.StreamConfig{Name: "S", Subjects: []string{"s.>", "epochfence-positions.S.>"}, AllowAtomicPublish: true}
		f(&c)
		if _, err := js.CreateOrUpdateStream(t.Context(), c); err != nil {
			t.Fatal(say, err)
		}
		if say == "is no position" {
			if _, err := js.Publish(t.Context(), "epochfence-positions.S.orders", []byte("an order")); err != nil {
				t.Fatal(err)
			}
		}
		_, err := natsoutbox.Open(t.Context(), outbox.Store[int](neverCalled{}), natsoutbox.Options{JetStream: js, Stream: "S"})
		if err == nil || !strings.HasPrefix(err.Error(), "natsoutbox: stream S: ") || !strings.Contains(err.Error(), say) {
			t.Errorf("want an error that says %s: %v", say, err)
		}
		if err := js.DeleteStream(t.Context(), "S"); err != nil {
			t.Fatal(err)
		}
	}
	_, err := natsoutbox.Open(t.Context(), outbox.Store[int](neverCalled{}), natsoutbox.Options{JetStream: js, Stream: "S"})
	if !errors.Is(err, jetstream.ErrStreamNotFound) {
		t.Errorf("without the stream: %v", err)
	}
}

func TestAMessageThatCanNeverBeSentFailsTheHandler(t *testing.T) {
	js := natstest.Start(t).JetStream(t)
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s.>", "epochfence-positions.S.>"}, AllowAtomicPublish: true}); err != nil {
		t.Fatal(err)
	}
	box, err := natsoutbox.Open(t.Context(), outbox.Store[int](neverCalled{}), natsoutbox.Options{JetStream: js, Stream: "S"})
	if err != nil {
		t.Fatal(err)
	}
	for name, m := range map[string]natsoutbox.Message{
		"no subject":              {},
		"a wildcard":              {Subject: "s.*"},
		"an empty token":          {Subject: "s..a"},
		"a space":                 {Subject: "s.a b"},
		"a position":              {Subject: "epochfence-positions.S.billing.orders.3"},
		"a header of the server":  {Subject: "s.a", Header: nats.Header{"nats-Expected-Last-Sequence": {"1"}}},
		"a header without a name": {Subject: "s.a", Header: nats.Header{"": {"1"}}},
		"a line break":            {Subject: "s.a", Header: nats.Header{"A": {"1\r\nNats-Rollup: all"}}},
		"more than the server's":  {Subject: "s.a", Data: make([]byte, 1<<20)},
	} {
		if err := box.Add(t.Context(), 0, epoch.Message{}, m); !errors.Is(err, outbox.ErrEntry) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
