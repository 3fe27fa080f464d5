package natsoutbox_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/servers/natstest"
	"github.com/epochfence/epochfence/outbox"
	"github.com/epochfence/epochfence/outbox/natsoutbox"
)

// What the stream refuses holds up its Key alone, until the stream is as it should be or an operator discards it.

func TestARefusedMessageHoldsUpItsKeyAlone(t *testing.T) {
	url := natstest.Start(t).URL()
	for name, poison := range map[string]struct {
		with func(*jetstream.StreamConfig)
		m    func(stream string) natsoutbox.Message
		mend func(*jetstream.StreamConfig)
	}{
		"a subject that the stream no longer has": {
			m:    func(string) natsoutbox.Message { return natsoutbox.Message{Subject: "gone.k", Data: []byte("0")} },
			mend: func(c *jetstream.StreamConfig) { c.Subjects = append(c.Subjects, "gone.k") },
		},
		"a message that is too large": {
			with: func(c *jetstream.StreamConfig) { c.MaxMsgSize = 1500 },
			m: func(stream string) natsoutbox.Message {
				return natsoutbox.Message{Subject: stream + ".k", Data: []byte("0" + strings.Repeat(" ", 1500))}
			},
			mend: func(c *jetstream.StreamConfig) { c.MaxMsgSize = -1 },
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, url, func(c *jetstream.StreamConfig) {
				if poison.with != nil {
					poison.with(c)
				}
			})
			r.o.RetryMax = 200 * time.Millisecond
			var log lines
			r.o.Logger = log.logger()
			r.add("a", "b")
			m := poison.m(r.o.Stream)
			m.Key, m.Header = "k", nats.Header{"Key": {"k"}}
			bad := r.put(m)
			r.addTo(r.o.Stream+".other", "k") // of the same Key, on another subject
			r.add("a", "b")
			r.takeOver(&process{})
			r.await("a refusal", func() bool { return slices.Contains(r.observed(outbox.Refused), bad) })
			r.await("all others to be sent", func() bool { return len(r.db.Records()) == 2 })
			if got := r.read(); len(got["other"]) > 0 || len(got["a"]) != 2 || len(got["b"]) != 2 {
				t.Errorf("a reader has %v; want two of a, two of b, and none of the Key that waits", got)
			}
			if text := log.String(); !strings.Contains(text, "a subject refuses messages of the outbox") {
				t.Errorf("the log does not say so: %s", text)
			}
			s, err := r.js.Stream(t.Context(), r.o.Stream)
			if err != nil {
				t.Fatal(err)
			}
			c := s.CachedInfo().Config
			poison.mend(&c)
			if _, err := r.js.UpdateStream(t.Context(), c); err != nil {
				t.Fatal(err)
			}
			r.awaitSent()
			if got := r.observed(outbox.Delivered); slices.Index(got, bad) > slices.Index(got, bad+1) {
				t.Errorf("delivered in the order %v: %d waits for %d", got, bad+1, bad)
			}
		})
	}
}

func TestASubjectThatTheUserMayNotPublishToHoldsUpItsKeyAlone(t *testing.T) {
	allowed := &server.SubjectPermission{Allow: []string{">"}, Deny: []string{"*.bad"}}
	s := natstest.Start(t, func(o *server.Options) {
		o.Users = []*server.User{
			{Username: "admin", Password: "p"},
			{Username: "app", Password: "p", Permissions: &server.Permissions{Publish: allowed}},
		}
	})
	at := func(user string) string { return strings.Replace(s.URL(), "//", "//"+user+":p@", 1) }
	r := newRig(t, at("admin"))
	r.url = at("app")
	r.add("a", "bad", "b", "bad")
	r.takeOver(&process{})
	r.await("the others", func() bool { return len(r.db.Records()) == 2 })
	r.await("a refusal", func() bool { return len(r.observed(outbox.Refused)) > 0 })
	if got := r.read(); len(got["bad"]) > 0 || len(got["a"]) != 1 || len(got["b"]) != 1 {
		t.Errorf("a reader has %v", got)
	}
}

// The permissions in docs/effects-outside.md are enough.
func TestThePermissionsOfTheGuideAreEnough(t *testing.T) {
	s := natstest.Start(t, func(o *server.Options) {
		o.Users = []*server.User{
			{Username: "admin", Password: "p"},
			{Username: "app", Password: "p", Permissions: &server.Permissions{
				Publish: &server.SubjectPermission{Allow: []string{
					"$JS.API.STREAM.INFO.STOCK", "$JS.API.STREAM.MSG.GET.STOCK", "stock.>", "epochfence-positions.STOCK.>",
				}},
				Subscribe: &server.SubjectPermission{Allow: []string{"_INBOX.>"}},
			}},
		}
	})
	at := func(user string) string { return strings.Replace(s.URL(), "//", "//"+user+":p@", 1) }
	r := newRig(t, at("admin"), func(c *jetstream.StreamConfig) {
		c.Name, c.Subjects = "STOCK", []string{"stock.>", "epochfence-positions.STOCK.>"}
	})
	r.url, r.o.Stream, r.o.Positions = at("app"), "STOCK", ""
	r.addTo("stock.a", "a")
	r.takeOver(&process{})
	r.awaitEmpty()
}

func TestAStreamThatCannotWorkIsRefusedAtTheStart(t *testing.T) {
	js := natstest.Start(t).JetStream(t)
	for say, f := range map[string]func(*jetstream.StreamConfig){
		"no AllowAtomicPublish":       func(c *jetstream.StreamConfig) { c.AllowAtomicPublish = false },
		`add "epochfence-positions.S`: func(c *jetstream.StreamConfig) { c.Subjects = []string{"s.>"} },
		"NoAck":                       func(c *jetstream.StreamConfig) { c.NoAck = true },
		"WorkQueue":                   func(c *jetstream.StreamConfig) { c.Retention = jetstream.WorkQueuePolicy },
		"Interest":                    func(c *jetstream.StreamConfig) { c.Retention = jetstream.InterestPolicy },
		"MaxAge":                      func(c *jetstream.StreamConfig) { c.MaxAge = time.Hour },
		"MaxMsgSize":                  func(c *jetstream.StreamConfig) { c.MaxMsgSize = 100 },
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
		_, err := natsoutbox.Open(t.Context(), table{}, natsoutbox.Options{JetStream: js, Stream: "S"})
		if err == nil || !strings.HasPrefix(err.Error(), "natsoutbox: stream S: ") || !strings.Contains(err.Error(), say) {
			t.Errorf("want an error that says %s: %v", say, err)
		}
		if err := js.DeleteStream(t.Context(), "S"); err != nil {
			t.Fatal(err)
		}
	}
	_, err := natsoutbox.Open(t.Context(), table{}, natsoutbox.Options{JetStream: js, Stream: "S"})
	if !errors.Is(err, jetstream.ErrStreamNotFound) {
		t.Errorf("without the stream: %v", err)
	}
}

func TestAMessageThatCanNeverBeSentFailsTheHandler(t *testing.T) {
	js := natstest.Start(t).JetStream(t)
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s.>", "epochfence-positions.S.>"}, AllowAtomicPublish: true}); err != nil {
		t.Fatal(err)
	}
	box, err := natsoutbox.Open(t.Context(), table{}, natsoutbox.Options{JetStream: js, Stream: "S"})
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
		if err := box.Add(t.Context(), nil, epoch.Message{}, m); !errors.Is(err, outbox.ErrEntry) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
