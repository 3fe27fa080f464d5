package batches_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

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
			r := newNATSRig(t, url, func(c *jetstream.StreamConfig) {
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
			if got := r.found(); len(got["other"]) > 0 || len(got["a"]) != 2 || len(got["b"]) != 2 {
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
	r := newNATSRig(t, at("admin"))
	r.url = at("app")
	r.add("a", "bad", "b", "bad")
	r.takeOver(&process{})
	r.await("the others", func() bool { return len(r.db.Records()) == 2 })
	r.await("a refusal", func() bool { return len(r.observed(outbox.Refused)) > 0 })
	if got := r.found(); len(got["bad"]) > 0 || len(got["a"]) != 1 || len(got["b"]) != 1 {
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
	r := newNATSRig(t, at("admin"), func(c *jetstream.StreamConfig) {
		c.Name, c.Subjects = "STOCK", []string{"stock.>", "epochfence-positions.STOCK.>"}
	})
	r.url, r.o.Stream, r.o.Positions = at("app"), "STOCK", ""
	r.addTo("stock.a", "a")
	r.takeOver(&process{})
	r.awaitEmpty()
}
