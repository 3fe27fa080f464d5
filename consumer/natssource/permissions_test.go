package natssource

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/internal/servers/natstest"
	"github.com/epochfence/epochfence/lease"
)

// documentedPermissions reads the list in doc.go, for a stream "orders", a
// bucket "leases" and the group "billing".
func documentedPermissions(t *testing.T) (publish, subscribe []string) {
	t.Helper()
	text, err := os.ReadFile("doc.go")
	must(t, err)
	_, section, ok := strings.Cut(string(text), "// # Permissions\n")
	if !ok {
		t.Fatal("doc.go lists no permissions")
	}
	fill := strings.NewReplacer("STREAM_NAME", "orders", "BUCKET", "leases", "GROUP", "billing")
	for _, m := range regexp.MustCompile(`(?m)^//\t(publish|subscribe) +(\S+)`).FindAllStringSubmatch(section, -1) {
		if subject := fill.Replace(m[2]); m[1] == "publish" {
			publish = append(publish, subject)
		} else {
			subscribe = append(subscribe, subject)
		}
	}
	return publish, subscribe
}

func withUser(publish, subscribe, deny []string) natstest.Configure {
	return func(o *server.Options) {
		o.Users = []*server.User{
			{Username: "admin", Password: "admin"},
			{Username: "user", Password: "user", Permissions: &server.Permissions{
				Publish:   &server.SubjectPermission{Allow: publish, Deny: deny},
				Subscribe: &server.SubjectPermission{Allow: subscribe},
			}},
		}
	}
}

// asUser returns a source that may do what its user may, and the test's own
// JetStream.
func asUser(t *testing.T, s *natstest.Server, js jetstream.JetStream) *Source {
	t.Helper()
	if _, err := js.CreateStream(inTime(t), jetstream.StreamConfig{Name: "orders", Subjects: []string{"orders.*"}}); err != nil {
		t.Fatal(err)
	}
	source, err := New(Options{
		Group: "billing", JetStream: s.JetStream(t, nats.UserInfo("user", "user"), nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			t.Logf("the server says: %v", err)
		})),
		Streams: []Stream{{Name: "orders", Filters: []string{"orders.0", "orders.1"}}}, Bucket: "leases", LeaseTTL: 20 * time.Second,
		StartTimeout: patience, Logger: slog.New(slog.DiscardHandler),
	})
	must(t, err)
	return source
}

func TestThePermissionsOfTheDocumentationSuffice(t *testing.T) {
	t.Parallel()
	publish, subscribe := documentedPermissions(t)
	s := natstest.Start(t, withUser(publish, subscribe, nil))
	js := s.JetStream(t, nats.UserInfo("admin", "admin"))
	source := asUser(t, s, js)
	for range 3 {
		must(t, second(js.Publish(inTime(t), "orders.0", []byte("x"))))
	}
	ctx, stop := context.WithCancel(inTime(t))
	read := make(chan int, 2)
	ended := make(chan error)
	go func() {
		ended <- source.Run(ctx, func(error) {}, func(ctx context.Context, tn consumer.Tenure) {
			starts, err := tn.Starts(ctx, consumer.StartCommitted)
			if err != nil || len(starts) != 2 {
				t.Errorf("Starts: %v, %v", starts, err)
				return
			}
			if _, _, err := tn.Committed(ctx); err != nil {
				t.Errorf("Committed: %v", err)
			}
			g := &grant{Tenure: tn}
			n := 0
			for b, err := range tn.Read(ctx, g.fence(starts[0].Earliest.Offset)) {
				if err != nil {
					t.Errorf("Read: %v", err)
				}
				n += len(b.Messages)
				if tn.Origin().Partition.Number == 0 && n < 3 {
					continue
				}
				break
			}
			switch _, err := tn.Confirm(ctx, g.fence(3)); {
			case errors.Is(err, consumer.ErrLost) && ctx.Err() != nil:
				return // the machine has stalled: it is granted again
			case err != nil:
				t.Errorf("Confirm: %v", err)
			}
			if n > 0 {
				read <- n
			}
			select {
			case <-tn.Draining():
			case <-ctx.Done():
			}
		})
	}()
	select {
	case n := <-read:
		if n != 3 {
			t.Errorf("%d messages, want 3", n)
		}
	case <-time.After(patience):
		t.Error("nothing was read")
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if at, ok, err := source.mirrored(inTime(t), lease.Resource{Name: "orders"}); at.Next != 3 || !ok || err != nil {
		t.Errorf("position %+v, %v, %v", at, ok, err)
	}
}

func TestAPermissionThatIsMissingEndsRunAtStartAndIsNamed(t *testing.T) {
	t.Parallel()
	publish, subscribe := documentedPermissions(t)
	for _, c := range []struct {
		name, deny, want string
	}{
		{"the stream", "$JS.API.STREAM.INFO.orders", "$JS.API.STREAM.INFO.orders"},
		{"the bucket", "$JS.API.STREAM.INFO.KV_leases", "$JS.API.STREAM.INFO.KV_leases"},
		{"keys", "$KV.leases.>", "$KV.leases.billing.lease.member."},
		{"a key", "$JS.API.STREAM.MSG.GET.KV_leases", "$JS.API.STREAM.MSG.GET.KV_leases"},
		{"the watcher", "$JS.API.CONSUMER.CREATE.KV_leases.>", "$JS.API.CONSUMER.CREATE.KV_leases."},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := natstest.Start(t, withUser(publish, subscribe, []string{c.deny}))
			source := asUser(t, s, s.JetStream(t, nats.UserInfo("admin", "admin")))
			err := source.Run(inTime(t), func(error) {}, func(context.Context, consumer.Tenure) { t.Error("a partition was granted") })
			var denied *PermissionError
			if !errors.As(err, &denied) || !strings.HasPrefix(denied.Subject, c.want) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Run: %v, want one that names %q", err, c.want)
			}
		})
	}
	t.Run("the inbox", func(t *testing.T) {
		t.Parallel()
		s := natstest.Start(t, withUser(publish, []string{"elsewhere.>"}, nil))
		source := asUser(t, s, s.JetStream(t, nats.UserInfo("admin", "admin")))
		err := source.Run(inTime(t), func(error) {}, func(context.Context, consumer.Tenure) { t.Error("a partition was granted") })
		var denied *PermissionError
		if !errors.As(err, &denied) || !strings.HasPrefix(denied.Subject, "_INBOX.") {
			t.Errorf("Run: %v, want one that names the inbox", err)
		}
	})
}
