package natssource

import (
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/internal/natstest"
)

func TestAMissingBucketIsCreatedAsLeasesNeedIt(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	done := make(chan error)
	for range 5 { // processes that start together
		go func() {
			done <- newBucket(js, "leases", time.Second, slog.New(slog.DiscardHandler)).ensure(inTime(t), 1)
		}()
	}
	for range 5 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	st, err := js.Stream(inTime(t), "KV_leases")
	if err != nil {
		t.Fatal(err)
	}
	c := st.CachedInfo().Config
	if c.Storage != jetstream.FileStorage || c.MaxMsgsPerSubject != 1 || !c.AllowMsgTTL || c.SubjectDeleteMarkerTTL != markerTTL || c.MaxAge != 0 {
		t.Errorf("%+v", c)
	}
}

func TestABucketThatCannotHoldLeasesIsRefusedWithTheRemedy(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	kv := func(change func(*jetstream.KeyValueConfig)) func(t *testing.T, name string) {
		return func(t *testing.T, name string) {
			c := jetstream.KeyValueConfig{Bucket: name, LimitMarkerTTL: time.Minute}
			change(&c)
			if _, err := js.CreateKeyValue(inTime(t), c); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, c := range []struct {
		name   string
		create func(t *testing.T, name string)
		want   string // in the error; empty for none
	}{
		{"good", kv(func(*jetstream.KeyValueConfig) {}), ""},
		{"in-memory", kv(func(c *jetstream.KeyValueConfig) { c.Storage = jetstream.MemoryStorage }), ""},
		{"without-ttl", kv(func(c *jetstream.KeyValueConfig) { c.LimitMarkerTTL = 0 }), "nats stream edit KV_without-ttl --subject-del-markers-ttl=1m"},
		{"with-max-age", kv(func(c *jetstream.KeyValueConfig) { c.TTL = time.Hour }), "nats stream edit KV_with-max-age --max-age=-1"},
		{"history", kv(func(c *jetstream.KeyValueConfig) { c.History = 5 }), "nats stream edit KV_history --max-msgs-per-subject=1"},
		{"short-history", kv(func(c *jetstream.KeyValueConfig) { c.History, c.LimitMarkerTTL = 5, time.Second }), ""},
		{"full", func(t *testing.T, name string) {
			_, err := js.CreateStream(inTime(t), jetstream.StreamConfig{
				Name: "KV_" + name, Subjects: []string{"$KV." + name + ".>"}, MaxMsgsPerSubject: 1, MaxBytes: 1 << 20,
				AllowMsgTTL: true, SubjectDeleteMarkerTTL: time.Minute, AllowRollup: true,
			})
			if err != nil {
				t.Fatal(err)
			}
		}, "nats stream edit KV_full --discard=new"},
		{"no-bucket", func(t *testing.T, name string) {
			if _, err := js.CreateStream(inTime(t), jetstream.StreamConfig{Name: "KV_" + name, Subjects: []string{"x"}}); err != nil {
				t.Fatal(err)
			}
		}, "not a key-value bucket"},
		{"mirror", func(t *testing.T, name string) {
			if _, err := js.CreateKeyValue(inTime(t), jetstream.KeyValueConfig{Bucket: name, Mirror: &jetstream.StreamSource{Name: "good"}}); err != nil {
				t.Fatal(err)
			}
		}, "mirror of"},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.create(t, c.name)
			err := newBucket(js, c.name, 15*time.Second, slog.New(slog.DiscardHandler)).ensure(inTime(t), 1)
			switch {
			case c.want == "" && err != nil:
				t.Error(err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), c.name)):
				t.Errorf("%v; want an error with %q", err, c.want)
			}
		})
	}
}

// The remedies are those that the server takes.
func TestTheRemedyOfABucketWithoutTTLMakesItHoldLeases(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	if _, err := js.CreateKeyValue(inTime(t), jetstream.KeyValueConfig{Bucket: "leases", TTL: time.Hour, History: 5}); err != nil {
		t.Fatal(err)
	}
	st, err := js.Stream(inTime(t), "KV_leases")
	if err != nil {
		t.Fatal(err)
	}
	c := st.CachedInfo().Config
	c.SubjectDeleteMarkerTTL, c.MaxAge, c.MaxMsgsPerSubject = time.Minute, 0, 1
	if _, err := js.UpdateStream(inTime(t), c); err != nil {
		t.Fatal(err)
	}
	b := testBucket(t, js, time.Second)
	acquire(t, b, 0)
	eventually(t, "the lease has run out", func() bool { return look(t, b).expired })
}

// What checkBucket says of a history: the server raises a TTL to that of the
// markers, where it keeps more than one message of a key.
func TestABucketWithAHistoryKeepsAShortLeaseForTheTTLOfItsMarkers(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	if _, err := js.CreateKeyValue(inTime(t), jetstream.KeyValueConfig{Bucket: "leases", History: 2, LimitMarkerTTL: time.Hour}); err != nil {
		t.Fatal(err)
	}
	b := newBucket(js, "leases", time.Second, slog.New(slog.DiscardHandler))
	acquire(t, b, 0)
	m, err := stored(inTime(t), js, b.stream, map[string]string{"last_by_subj": b.stored + testKey})
	if err != nil {
		t.Fatal(err)
	}
	h, err := nats.DecodeHeadersMsg(m.Header)
	if err != nil {
		t.Fatal(err)
	}
	if got := h.Get(jetstream.MsgTTLHeader); got != "3600" {
		t.Errorf("the server stored a TTL of %q; if it leaves that of the lease alone, checkBucket may, too", got)
	}
}

func TestAServerThatIsTooOldIsNamedAsTheReason(t *testing.T) {
	t.Parallel()
	// A server without JetStream, and somebody who answers as an old one does.
	s := natstest.Start(t, func(o *server.Options) { o.JetStream = false })
	old := s.Connect(t)
	answer := func(subject, response string) {
		if _, err := old.Subscribe(subject, func(m *nats.Msg) { _ = m.Respond([]byte(response)) }); err != nil {
			t.Fatal(err)
		}
	}
	answer("$JS.API.STREAM.INFO.>", `{"error":{"code":404,"err_code":10059,"description":"stream not found"}}`)
	answer("$JS.API.INFO", `{"type":"io.nats.jetstream.api.v1.account_info_response","memory":0,"api":{"total":1,"errors":0}}`)
	if err := old.FlushTimeout(patience); err != nil {
		t.Fatal(err)
	}
	err := newBucket(s.JetStream(t), "leases", time.Second, slog.New(slog.DiscardHandler)).ensure(inTime(t), 1)
	if err == nil || !strings.Contains(err.Error(), "older than 2.11") {
		t.Errorf("%v", err)
	}
}

func TestAMissingPermissionIsNamed(t *testing.T) {
	t.Parallel()
	all := []string{"$JS.API.>", "$KV.leases.>"}
	for _, c := range []struct {
		name string
		deny string
		try  func(t *testing.T, b *bucket) error
	}{
		{"look at the bucket", "$JS.API.STREAM.INFO.KV_leases", func(t *testing.T, b *bucket) error { return b.ensure(inASecond(t), 1) }},
		{"write a lease", "$KV.leases.g.lease.>", func(t *testing.T, b *bucket) error {
			_, err := b.swap(inASecond(t), testKey, nil, 0, 0)
			return err
		}},
		{"ask the leader", "$JS.API.STREAM.MSG.GET.KV_leases", func(t *testing.T, b *bucket) error {
			_, err := b.get(inASecond(t), testKey)
			return err
		}},
		{"watch", "$JS.API.CONSUMER.CREATE.>", func(t *testing.T, b *bucket) error {
			v := newView(b, newKeys("g"), b.log, make(chan struct{}, 1))
			w, err := v.read(inTime(t))
			if err == nil {
				w.stop()
			}
			return err
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := natstest.Start(t, func(o *server.Options) {
				o.Users = []*server.User{
					{Username: "admin", Password: "admin"},
					{Username: "user", Password: "user", Permissions: &server.Permissions{
						Publish:   &server.SubjectPermission{Allow: all, Deny: []string{c.deny}},
						Subscribe: &server.SubjectPermission{Allow: []string{"_INBOX.>"}},
					}},
				}
			})
			testBucket(t, s.JetStream(t, nats.UserInfo("admin", "admin")), time.Second)
			b := newBucket(s.JetStream(t, nats.UserInfo("user", "user"), nats.ErrorHandler(nil)), "leases", time.Second, slog.New(slog.DiscardHandler))
			err := c.try(t, b)
			var denied *PermissionError
			if !errors.As(err, &denied) {
				t.Fatalf("%v, want a PermissionError", err)
			}
			if !strings.HasPrefix(denied.Subject, strings.TrimSuffix(c.deny, ">")) || !errors.Is(err, nats.ErrPermissionViolation) {
				t.Errorf("it names %q, want %q: %v", denied.Subject, c.deny, err)
			}
		})
	}
}

func TestTheBucketOfADomainIsAnotherSource(t *testing.T) {
	t.Parallel()
	s := natstest.Start(t, func(o *server.Options) { o.JetStreamDomain = "hub" })
	nc := s.Connect(t)
	plain, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	hub, err := jetstream.NewWithDomain(nc, "hub")
	if err != nil {
		t.Fatal(err)
	}
	prefixed, err := jetstream.NewWithAPIPrefix(nc, "$JS.hub.API")
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	last := revision(0)
	for _, js := range []jetstream.JetStream{plain, hub, prefixed} {
		b := testBucket(t, js, time.Minute)
		l, value := acquire(t, b, last)
		renew(t, l, value)
		if now := look(t, b); now.rev != l.rev || !now.live {
			t.Errorf("%s: the key holds %+v, want it at %d", b.source(), now, l.rev)
		}
		if last, err = l.release(inTime(t)); err != nil {
			t.Error(err)
		}
		names[b.source()] = true
	}
	if !names["nats-kv:leases"] || !names["nats-kv:leases@$JS.hub.API"] || len(names) != 2 {
		t.Errorf("%v", names)
	}
}

func TestRecordsAreWhatTheDocumentationSays(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		v    any
		want string
	}{
		{record{Owner: "host-1", Member: "M", Nonce: "N"}, `{"owner":"host-1","member":"M","nonce":"N"}`},
		{mirror{Next: 42, Epoch: 7, Owner: "host-1/M", Lag: 3}, `{"next":42,"epoch":7,"owner":"host-1/M","lag":3}`},
		{memberRecord{Name: "host-1", Streams: map[string]int32{"orders": 4}, Declined: []string{"orders/2"}, Nonce: "N"}, `{"name":"host-1","streams":{"orders":4},"declined":["orders/2"],"nonce":"N"}`},
	} {
		got, err := json.Marshal(c.v)
		if err != nil || string(got) != c.want {
			t.Errorf("%s, %v; want %s", got, err, c.want)
		}
	}
}
