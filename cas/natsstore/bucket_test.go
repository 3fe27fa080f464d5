package natsstore_test

import (
	"context"
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/natsstore"
	"github.com/epochfence/epochfence/internal/servers/natstest"
)

// patience bounds everything that a test waits for.
const patience = 90 * time.Second

func inTime(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// inASecond is for what will not be answered.
func inASecond(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	t.Cleanup(cancel)
	return ctx
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func eventually(t testing.TB, what string, done func() bool) {
	t.Helper()
	ctx := inTime(t)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// tryOpen is open with the error.
func tryOpen(t testing.TB, js jetstream.JetStream) (*natsstore.Store, error) {
	t.Helper()
	return natsstore.Open(inTime(t), js, natsstore.Options{Bucket: bucket})
}

func mustOpen(t testing.TB, js jetstream.JetStream) *natsstore.Store {
	t.Helper()
	s, err := tryOpen(t, js)
	must(t, err)
	return s
}

func swap(t testing.TB, s cas.Store, seen cas.Item, value string) cas.Item {
	t.Helper()
	item, err := s.Swap(inTime(t), seen, []byte(value), nil)
	must(t, err)
	return item
}

func get(t testing.TB, s cas.Store, key string) cas.Item {
	t.Helper()
	item, err := s.Get(inTime(t), key)
	must(t, err)
	return item
}

func settings(t testing.TB, js jetstream.JetStream) jetstream.StreamConfig {
	t.Helper()
	st, err := js.Stream(inTime(t), "KV_"+bucket)
	must(t, err)
	return st.CachedInfo().Config
}

// edit changes the bucket's settings, as nats stream edit does.
func edit(t testing.TB, js jetstream.JetStream, change func(*jetstream.StreamConfig)) {
	t.Helper()
	c := settings(t, js)
	change(&c)
	_, err := js.UpdateStream(inTime(t), c)
	must(t, err)
}

func TestAMissingBucketIsCreatedByWhoeverIsFirst(t *testing.T) {
	t.Parallel()
	s := natstest.Start(t)
	opened := make(chan error)
	const processes = 5
	for range processes {
		js := s.JetStream(t)
		go func() {
			_, err := tryOpen(t, js)
			opened <- err
		}()
	}
	for range processes {
		if err := <-opened; err != nil {
			t.Error(err)
		}
	}
	c := settings(t, s.JetStream(t))
	if c.Storage != jetstream.FileStorage || c.MaxMsgsPerSubject != 1 || !c.AllowMsgTTL || c.SubjectDeleteMarkerTTL != time.Minute || c.MaxAge != 0 {
		t.Errorf("%+v", c)
	}
}

// kv returns the settings of a bucket, with a change.
func kv(change func(c *jetstream.StreamConfig)) jetstream.StreamConfig {
	c := jetstream.StreamConfig{
		Name: "KV_" + bucket, Subjects: []string{"$KV." + bucket + ".>"}, MaxMsgsPerSubject: 1, AllowMsgTTL: true, SubjectDeleteMarkerTTL: time.Minute,
		AllowRollup: true, AllowDirect: true,
	}
	change(&c)
	return c
}

var unsuitable = []struct {
	name   string
	config jetstream.StreamConfig
	says   string
	remedy func(c *jetstream.StreamConfig) // what the command does; nil if there is none
}{
	{
		"no bucket", kv(func(c *jetstream.StreamConfig) { c.Subjects, c.MaxMsgsPerSubject = []string{"orders"}, -1 }),
		"create it with: nats kv add", nil,
	},
	{
		"a queue", kv(func(c *jetstream.StreamConfig) { c.Retention = jetstream.InterestPolicy }),
		"create it with: nats kv add", nil,
	},
	{
		"a mirror", kv(func(c *jetstream.StreamConfig) {
			c.Subjects, c.Mirror, c.AllowMsgTTL, c.SubjectDeleteMarkerTTL = nil, &jetstream.StreamSource{Name: "KV_good"}, false, 0
		}),
		`a mirror of "KV_good"`, nil,
	},
	{
		"without TTLs", kv(func(c *jetstream.StreamConfig) { c.AllowMsgTTL, c.SubjectDeleteMarkerTTL = false, 0 }),
		"--subject-del-markers-ttl=1m", func(c *jetstream.StreamConfig) { c.SubjectDeleteMarkerTTL = time.Minute },
	},
	{
		"without markers", kv(func(c *jetstream.StreamConfig) { c.SubjectDeleteMarkerTTL = 0 }),
		"--subject-del-markers-ttl=1m", func(c *jetstream.StreamConfig) { c.SubjectDeleteMarkerTTL = time.Minute },
	},
	{
		"with an age", kv(func(c *jetstream.StreamConfig) { c.MaxAge = time.Hour }),
		"--max-age=-1", func(c *jetstream.StreamConfig) { c.MaxAge = 0 },
	},
	{
		"that drops bytes", kv(func(c *jetstream.StreamConfig) { c.MaxBytes = 1 << 20 }),
		"--discard=new", func(c *jetstream.StreamConfig) { c.Discard = jetstream.DiscardNew },
	},
	{
		"that drops keys", kv(func(c *jetstream.StreamConfig) { c.MaxMsgs = 100 }),
		"--discard=new", func(c *jetstream.StreamConfig) { c.Discard = jetstream.DiscardNew },
	},
	{
		"that replaces nothing", kv(func(c *jetstream.StreamConfig) { c.Discard, c.DiscardNewPerSubject = jetstream.DiscardNew, true }),
		"--no-discard-per-subject", func(c *jetstream.StreamConfig) { c.DiscardNewPerSubject = false },
	},
	{
		"that does not listen", kv(func(c *jetstream.StreamConfig) { c.Subjects = []string{"$KV." + bucket + ".orders.>"} }),
		"--subjects '$KV." + bucket + ".>'", func(c *jetstream.StreamConfig) { c.Subjects = []string{"$KV." + bucket + ".>"} },
	},
	{
		"that renames keys", kv(func(c *jetstream.StreamConfig) {
			c.SubjectTransform = &jetstream.SubjectTransformConfig{Source: "$KV." + bucket + ".>", Destination: "$KV.x.>"}
		}),
		"--interactive", func(c *jetstream.StreamConfig) { c.SubjectTransform = nil },
	},
	{
		"without acknowledgements", kv(func(c *jetstream.StreamConfig) { c.NoAck = true }),
		"--ack", func(c *jetstream.StreamConfig) { c.NoAck = false },
	},
	{
		"of small messages", kv(func(c *jetstream.StreamConfig) { c.MaxMsgSize = 1000 }),
		"--max-msg-size=-1", func(c *jetstream.StreamConfig) { c.MaxMsgSize = -1 },
	},
}

func TestABucketThatLosesItemsIsRefusedWithTheRemedyThatTheServerTakes(t *testing.T) {
	t.Parallel()
	for _, u := range unsuitable {
		t.Run(u.name, func(t *testing.T) {
			js := natstest.Start(t).JetStream(t) // a stream may have messages of one of its name that was just deleted
			_, err := js.CreateKeyValue(inTime(t), jetstream.KeyValueConfig{Bucket: "good"})
			must(t, err)
			_, err = js.CreateStream(inTime(t), u.config)
			must(t, err)
			_, err = tryOpen(t, js)
			says := u.says
			if u.remedy != nil {
				says = "nats stream edit KV_" + bucket + " " + u.says
			}
			if !errors.Is(err, cas.ErrUnsuitable) || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), bucket) {
				t.Fatalf("err = %v, want %q that says %q", err, cas.ErrUnsuitable, says)
			}
			if u.remedy == nil {
				return
			}
			edit(t, js, u.remedy)
			s := mustOpen(t, js)
			item, err := s.SwapFor(inTime(t), cas.Item{Key: "a"}, []byte("x"), time.Minute)
			must(t, err)
			swap(t, s, item, "y")
		})
	}
}

func TestABucketInMemoryForgets(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	for storage, forgets := range map[jetstream.StorageType]bool{jetstream.FileStorage: false, jetstream.MemoryStorage: true} {
		_, err := js.CreateKeyValue(inTime(t), jetstream.KeyValueConfig{Bucket: bucket, Storage: storage, LimitMarkerTTL: time.Minute})
		must(t, err)
		s := mustOpen(t, js)
		if f, err := s.Facts(inTime(t)); err != nil || f.Forgets != forgets {
			t.Errorf("%v: %+v, %v", storage, f, err)
		}
		must(t, js.DeleteKeyValue(inTime(t), bucket))
	}
}

func TestABucketWithAHistoryHasTheLastOfEachItem(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	_, err := js.CreateKeyValue(inTime(t), jetstream.KeyValueConfig{Bucket: bucket, History: 5, LimitMarkerTTL: time.Minute})
	must(t, err)
	s := mustOpen(t, js)
	last, gone := cas.Item{Key: "a/1"}, cas.Item{Key: "a/2"}
	for range 3 {
		last, gone = swap(t, s, last, "x"), swap(t, s, gone, "x")
	}
	must(t, s.Delete(inTime(t), gone))
	if now := get(t, s, "a/1"); now.Version != last.Version {
		t.Errorf("the item has version %s, want %s", now.Version, last.Version)
	}
	if now := get(t, s, "a/2"); now.Live {
		t.Errorf("the deleted item is %+v", now)
	}
	var versions []string
	for item, err := range s.List(inTime(t), "a/") {
		must(t, err)
		versions = append(versions, item.Version)
	}
	for item, err := range s.Watch(inTime(t), "a/") {
		must(t, err)
		if item.Key == "" {
			break
		}
		versions = append(versions, item.Version)
	}
	if len(versions) != 2 || versions[0] != last.Version || versions[1] != last.Version {
		t.Errorf("a list and a watch have %q, want %q each", versions, last.Version)
	}
}

func TestAServerThatIsTooOldIsNamed(t *testing.T) {
	t.Parallel()
	// A server without JetStream, and somebody who answers as an old one does.
	s := natstest.Start(t, func(o *server.Options) { o.JetStream = false })
	old := s.Connect(t)
	answer := func(subject, response string) {
		_, err := old.Subscribe(subject, func(m *nats.Msg) { _ = m.Respond([]byte(response)) })
		must(t, err)
	}
	answer("$JS.API.STREAM.INFO.>", `{"error":{"code":404,"err_code":10059,"description":"stream not found"}}`)
	answer("$JS.API.INFO", `{"type":"io.nats.jetstream.api.v1.account_info_response","memory":0,"api":{"total":1,"errors":0}}`)
	must(t, old.FlushTimeout(patience))
	if _, err := tryOpen(t, s.JetStream(t)); err == nil || !strings.Contains(err.Error(), "older than 2.11") {
		t.Errorf("%v", err)
	}
}

// documented returns the subjects of a package's list of permissions.
func documented(t testing.TB) (publish, subscribe []string) {
	t.Helper()
	text, err := os.ReadFile("natsstore.go")
	must(t, err)
	for _, m := range regexp.MustCompile(`(?m)^//\t(publish|subscribe) +(\S+)`).FindAllStringSubmatch(string(text), -1) {
		subject := strings.NewReplacer("KV_B", "KV_"+bucket, "$KV.B.", "$KV."+bucket+".").Replace(m[2])
		if m[1] == "publish" {
			publish = append(publish, subject)
		} else {
			subscribe = append(subscribe, subject)
		}
	}
	return publish, subscribe
}

// withUser lets a user do what the documentation says, except for deny.
func withUser(t testing.TB, deny ...string) natstest.Configure {
	t.Helper()
	publish, subscribe := documented(t)
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

func asUser(t testing.TB, s *natstest.Server, refused func(error)) jetstream.JetStream {
	t.Helper()
	return s.JetStream(t, nats.UserInfo("user", "user"), nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { refused(err) }))
}

func listAll(ctx context.Context, s cas.Store) (n int, err error) {
	for _, err := range s.List(ctx, "") {
		if err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}

// watchUntil watches until an item is as it should be.
func watchUntil(ctx context.Context, s cas.Watcher, is func(cas.Item) bool) error {
	for item, err := range s.Watch(ctx, "") {
		if err != nil {
			return err
		}
		if is(item) {
			return nil
		}
	}
	return errors.New("the watch has ended")
}

func isMarker(item cas.Item) bool { return item.Key == "" }

func TestTheDocumentedPermissionsAreEnough(t *testing.T) {
	t.Parallel()
	refused := make(chan error, 100)
	js := asUser(t, natstest.Start(t, withUser(t)), func(err error) { refused <- err })
	s := mustOpen(t, js)
	item := swap(t, s, swap(t, s, cas.Item{Key: "a"}, "x"), "y")
	_, err := s.SwapFor(inTime(t), cas.Item{Key: "b"}, nil, time.Hour)
	must(t, err)
	must(t, s.Delete(inTime(t), item))
	if n, err := listAll(inTime(t), s); n != 1 || err != nil {
		t.Errorf("a list of %d items, %v", n, err)
	}
	for range 20 { // the server asks for flow control when a watch is behind
		for i := range 50 {
			key := strings.Repeat("k", i+1)
			swap(t, s, get(t, s, key), strings.Repeat("v", 10000))
		}
		must(t, watchUntil(inTime(t), s, isMarker))
	}
	must(t, js.Conn().FlushWithContext(inTime(t)))
	select {
	case err := <-refused:
		t.Errorf("the server has refused: %v", err)
	default:
	}
}

func TestAMissingPermissionIsNamed(t *testing.T) {
	t.Parallel()
	const (
		info   = "$JS.API.STREAM.INFO.KV_items"
		create = "$JS.API.STREAM.CREATE.KV_items"
	)
	facts := func(ctx context.Context, s *natsstore.Store) error { _, err := s.Facts(ctx); return err }
	list := func(ctx context.Context, s *natsstore.Store) error { _, err := listAll(ctx, s); return err }
	for _, c := range []struct {
		name, deny, names string
		deleted           bool                                                // whether the bucket is then deleted
		try               func(ctx context.Context, s *natsstore.Store) error // nil to open the bucket
	}{
		{name: "open", deny: info, names: info},
		{name: "create", deny: create, names: create, deleted: true},
		{name: "create, and ask for the server's version", deny: "$JS.API.INFO", names: "$JS.API.INFO", deleted: true},
		{name: "facts of a bucket that was deleted", deny: create, names: create, deleted: true, try: facts},
		{name: "swap", deny: "$KV.items.>", names: "$KV.items.a", try: func(ctx context.Context, s *natsstore.Store) error {
			_, err := s.Swap(ctx, cas.Item{Key: "a"}, nil, nil)
			return err
		}},
		{name: "swap for a time", deny: "$KV.items.>", names: "$KV.items.a", try: func(ctx context.Context, s *natsstore.Store) error {
			_, err := s.SwapFor(ctx, cas.Item{Key: "a"}, nil, time.Hour)
			return err
		}},
		{name: "delete", deny: "$KV.items.>", names: "$KV.items.a", try: func(ctx context.Context, s *natsstore.Store) error {
			return s.Delete(ctx, cas.Item{Key: "a", Live: true, Version: "1"})
		}},
		{name: "get", deny: "$JS.API.STREAM.MSG.GET.>", names: "$JS.API.STREAM.MSG.GET.KV_items", try: func(ctx context.Context, s *natsstore.Store) error {
			_, err := s.Get(ctx, "a")
			return err
		}},
		{name: "watch", deny: "$JS.API.CONSUMER.CREATE.>", names: "$JS.API.CONSUMER.CREATE.KV_items.", try: func(ctx context.Context, s *natsstore.Store) error {
			return watchUntil(ctx, s, isMarker)
		}},
		{name: "list", deny: "$JS.API.CONSUMER.CREATE.>", names: "$JS.API.CONSUMER.CREATE.KV_items.", try: list},
		{name: "fetch what is listed", deny: "$JS.API.CONSUMER.MSG.NEXT.>", names: "$JS.API.CONSUMER.MSG.NEXT.KV_items.", try: list},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			srv := natstest.Start(t, withUser(t, c.deny))
			admin := srv.JetStream(t, nats.UserInfo("admin", "admin"))
			swap(t, mustOpen(t, admin), cas.Item{Key: "b"}, "x")
			user := asUser(t, srv, func(error) {})
			var s *natsstore.Store
			if c.try != nil {
				s = mustOpen(t, user)
			}
			if c.deleted {
				must(t, admin.DeleteKeyValue(inTime(t), bucket))
			}
			contexts := []func(testing.TB) context.Context{inASecond}
			if c.name == "get" || c.name == "watch" || c.name == "fetch what is listed" {
				contexts = append(contexts, testing.TB.Context) // without a deadline
			}
			for _, context := range contexts {
				var err error
				var denied *natsstore.PermissionError
				for range 5 { // a machine that stalls for a second keeps the server from saying it
					if ctx := context(t); c.try != nil {
						err = c.try(ctx, s)
					} else {
						_, err = natsstore.Open(ctx, user, natsstore.Options{Bucket: bucket})
					}
					if errors.As(err, &denied) {
						break
					}
				}
				if denied == nil {
					t.Fatalf("%v, want a PermissionError", err)
				}
				if !strings.HasPrefix(denied.Subject, c.names) || !errors.Is(err, nats.ErrPermissionViolation) {
					t.Errorf("it names %q, want %q: %v", denied.Subject, c.names, err)
				}
			}
		})
	}
}
