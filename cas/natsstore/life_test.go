package natsstore_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime/pprof"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/natsstore"
	"github.com/epochfence/epochfence/internal/servers/natstest"
)

func facts(t testing.TB, s cas.Store) cas.Facts {
	t.Helper()
	f, err := s.Facts(inTime(t))
	must(t, err)
	return f
}

func TestABucketThatWasDeletedIsCreatedAgainAsAnotherSource(t *testing.T) {
	t.Parallel()
	srv := natstest.Start(t)
	js := srv.JetStream(t)
	a, b := mustOpen(t, js), mustOpen(t, srv.JetStream(t))
	item := swap(t, a, cas.Item{Key: "a"}, "x")
	before := facts(t, a)
	if same := facts(t, b); same != before {
		t.Fatalf("two clients have the facts\n%+v\n%+v", before, same)
	}
	must(t, js.DeleteKeyValue(inTime(t), bucket))
	for what, err := range map[string]error{
		"get":   func() error { _, err := a.Get(inTime(t), "a"); return err }(),
		"swap":  func() error { _, err := a.Swap(inTime(t), item, nil, nil); return err }(),
		"list":  func() error { _, err := listAll(inTime(t), a); return err }(),
		"watch": watchUntil(inTime(t), a, isMarker),
	} {
		if err == nil || errors.Is(err, cas.ErrConflict) {
			t.Errorf("%s without a bucket: %v", what, err)
		}
	}
	after := facts(t, a)
	if after.Source == before.Source || facts(t, b) != after {
		t.Errorf("the facts are\n%+v and\n%+v, were\n%+v", after, facts(t, b), before)
	}
	if c := settings(t, js); c.SubjectDeleteMarkerTTL != time.Minute {
		t.Errorf("it was created as %+v", c)
	}
	if _, err := b.Swap(inTime(t), item, nil, nil); !errors.Is(err, cas.ErrConflict) {
		t.Errorf("an item of the deleted bucket is replaced: %v", err)
	}
	swap(t, b, get(t, b, "a"), "y")
}

func TestABucketThatIsGivenOtherSettingsIsUnsuitableUntilTheRemedy(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	s := mustOpen(t, js)
	good := facts(t, s)
	for _, c := range []struct {
		says      string
		spoil, do func(c *jetstream.StreamConfig)
	}{
		{"--max-age=-1", func(c *jetstream.StreamConfig) { c.MaxAge = time.Hour }, func(c *jetstream.StreamConfig) { c.MaxAge = 0 }},
		{"--subject-del-markers-ttl=1m", func(c *jetstream.StreamConfig) { c.SubjectDeleteMarkerTTL = 0 }, func(c *jetstream.StreamConfig) { c.SubjectDeleteMarkerTTL = time.Minute }},
		{"--discard=new", func(c *jetstream.StreamConfig) { c.MaxBytes, c.Discard = 1<<20, jetstream.DiscardOld }, func(c *jetstream.StreamConfig) { c.Discard = jetstream.DiscardNew }},
		{"--subjects '$KV." + bucket + ".>'", func(c *jetstream.StreamConfig) { c.Subjects = []string{"x"} }, func(c *jetstream.StreamConfig) { c.Subjects = []string{"$KV." + bucket + ".>"} }},
		{"--interactive", func(c *jetstream.StreamConfig) {
			c.SubjectTransform = &jetstream.SubjectTransformConfig{Source: ">", Destination: "x.>"}
		}, func(c *jetstream.StreamConfig) { c.SubjectTransform = nil }},
		{"--ack", func(c *jetstream.StreamConfig) { c.NoAck = true }, func(c *jetstream.StreamConfig) { c.NoAck = false }},
		{"--max-msg-size=-1", func(c *jetstream.StreamConfig) { c.MaxMsgSize = 100 }, func(c *jetstream.StreamConfig) { c.MaxMsgSize = -1 }},
	} {
		edit(t, js, c.spoil)
		_, err := s.Facts(inTime(t))
		if !errors.Is(err, cas.ErrUnsuitable) || !strings.Contains(err.Error(), "nats stream edit KV_"+bucket+" "+c.says) {
			t.Errorf("err = %v, want %q that says %q", err, cas.ErrUnsuitable, c.says)
		}
		edit(t, js, c.do)
		if now := facts(t, s); now != good {
			t.Errorf("after %s, the facts are\n%+v, were\n%+v", c.says, now, good)
		}
	}
	edit(t, js, func(c *jetstream.StreamConfig) { c.Sealed = true })
	if _, err := s.Facts(inTime(t)); !errors.Is(err, cas.ErrUnsuitable) || !strings.Contains(err.Error(), "sealed") {
		t.Errorf("a sealed bucket: %v", err)
	}
}

func TestAFullBucketSaysSoWithTheCommandAndTakesReplacements(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	s := mustOpen(t, js)
	item := swap(t, s, cas.Item{Key: "kept"}, "x")
	for _, c := range []struct {
		says        string
		limit, give func(c *jetstream.StreamConfig)
	}{
		{"--max-bytes=-1", func(c *jetstream.StreamConfig) { c.MaxBytes = 16 << 10 }, func(c *jetstream.StreamConfig) { c.MaxBytes = -1 }},
		{"--max-msgs=-1", func(c *jetstream.StreamConfig) { c.MaxMsgs = 40 }, func(c *jetstream.StreamConfig) { c.MaxMsgs = -1 }},
		{"--max-msg-size=-1", func(c *jetstream.StreamConfig) { c.MaxMsgSize = 200 }, func(c *jetstream.StreamConfig) { c.MaxMsgSize = -1 }},
	} {
		edit(t, js, func(c *jetstream.StreamConfig) { c.Discard = jetstream.DiscardNew })
		edit(t, js, c.limit)
		var err error
		for n := 0; err == nil && n < 1000; n++ {
			_, err = s.Swap(inTime(t), cas.Item{Key: fmt.Sprint(c.says, n)}, make([]byte, 1000), nil)
		}
		if !errors.Is(err, cas.ErrFull) || !strings.Contains(err.Error(), "nats stream edit KV_"+bucket) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("err = %v, want %q that says %q", err, cas.ErrFull, c.says)
		}
		item = swap(t, s, item, "y")
		edit(t, js, c.give)
		swap(t, s, cas.Item{Key: "more" + c.says}, strings.Repeat("v", 1000))
	}
}

func TestAFullAccountSaysSo(t *testing.T) {
	t.Parallel()
	s := mustOpen(t, natstest.Start(t, func(o *server.Options) { o.JetStreamMaxStore = 64 << 10 }).JetStream(t))
	var err error
	for n := 0; err == nil && n < 1000; n++ {
		_, err = s.Swap(inTime(t), cas.Item{Key: fmt.Sprint(n)}, make([]byte, 1000), nil)
	}
	if !errors.Is(err, cas.ErrFull) || !strings.Contains(err.Error(), "the account more storage") {
		t.Errorf("err = %v, want %q", err, cas.ErrFull)
	}
}

// Headers are part of a message, and the longest bucket's name is in one of them.
func TestSmallMessagesMakeSmallLimitsThatTheServerTakes(t *testing.T) {
	t.Parallel()
	for _, size := range []int32{2000, 5000, 100_000, 3 << 20} {
		for _, name := range []string{bucket, strings.Repeat("b", 200)} {
			js := natstest.Start(t, func(o *server.Options) { o.MaxPayload = 2 << 20 }).JetStream(t)
			c := kv(func(c *jetstream.StreamConfig) { c.MaxMsgSize = size })
			c.Name, c.Subjects = "KV_"+name, []string{"$KV." + name + ".>"}
			_, err := js.CreateStream(inTime(t), c)
			must(t, err)
			s, err := natsstore.Open(inTime(t), js, natsstore.Options{Bucket: name})
			must(t, err)
			f := facts(t, s)
			if f.MaxValue < 1024 || f.MaxNote < 100 || f.MaxValue > int(size) || f.MaxNote > 48<<10 {
				t.Errorf("messages of %d bytes have the limits %+v", size, f)
			}
			item := cas.Item{Key: strings.Repeat("\xff", f.MaxKey)}
			for range 2 {
				item, err = s.Swap(inTime(t), item, make([]byte, f.MaxValue), make([]byte, f.MaxNote))
				must(t, err)
			}
			item, err = s.SwapFor(inTime(t), item, make([]byte, f.MaxValue), 98*365*24*time.Hour)
			must(t, err)
			for _, over := range [][2]int{{f.MaxValue + 1, 0}, {0, f.MaxNote + 1}} {
				if _, err := s.Swap(inTime(t), item, make([]byte, over[0]), make([]byte, over[1])); !errors.Is(err, cas.ErrTooLarge) {
					t.Errorf("value of %d bytes and note of %d: %v, want %q", over[0], over[1], err, cas.ErrTooLarge)
				}
			}
			for _, prefix := range []string{item.Key, item.Key + item.Key, item.Key[:500] + "/" + item.Key + item.Key} {
				n := 0
				for _, err := range s.List(inTime(t), prefix) {
					must(t, err)
					n++
				}
				if want := map[bool]int{true: 1}[prefix == item.Key]; n != want {
					t.Errorf("%d items begin with a prefix of %d bytes, want %d", n, len(prefix), want)
				}
			}
			if !js.Conn().IsConnected() || js.Conn().Stats().Reconnects > 0 {
				t.Error("the server has ended the connection")
			}
			must(t, s.Delete(inTime(t), item))
		}
	}
}

func TestTheBucketOfADomainHasTheSameItemsHoweverItIsReached(t *testing.T) {
	t.Parallel()
	nc := natstest.Start(t, func(o *server.Options) { o.JetStreamDomain = "hub" }).Connect(t)
	plain, err := jetstream.New(nc)
	must(t, err)
	domain, err := jetstream.NewWithDomain(nc, "hub")
	must(t, err)
	prefixed, err := jetstream.NewWithAPIPrefix(nc, "$JS.hub.API")
	must(t, err)
	stores := []*natsstore.Store{mustOpen(t, plain), mustOpen(t, domain), mustOpen(t, prefixed)}
	item := cas.Item{Key: "orders/4711"}
	for n, writer := range stores {
		item = swap(t, writer, item, fmt.Sprint(n))
		item, err = writer.SwapFor(inTime(t), item, []byte(fmt.Sprint("for a time ", n)), time.Hour)
		must(t, err)
		for i, reader := range stores {
			if got := get(t, reader, item.Key); got.Version != item.Version || string(got.Value) != string(item.Value) {
				t.Errorf("%d reads %+v, which %d has written as %+v", i, got, n, item)
			}
			if got, err := listAll(inTime(t), reader); got != 1 || err != nil {
				t.Errorf("%d lists %d items, %v", i, got, err)
			}
			must(t, watchUntil(inTime(t), reader, func(got cas.Item) bool { return got.Version == item.Version }))
			if a, b := facts(t, reader), facts(t, writer); a != b {
				t.Errorf("two clients have the facts\n%+v\n%+v", a, b)
			}
		}
		must(t, writer.Delete(inTime(t), item))
		item = get(t, writer, item.Key)
	}
}

// A cluster refuses a write while another one of the key is being applied, and for a moment after
// everybody can read that one: err_code 10164, which has written nothing and decides nothing. A
// server in front of the real one says so here.
func TestARefusalWhileAnotherWriteIsInProcessIsNoConflict(t *testing.T) {
	t.Parallel()
	srv := natstest.Start(t)
	var refused atomic.Int32
	var refuses atomic.Int32
	s := mustOpen(t, inFrontOf(t, srv, func(m *nats.Msg) bool {
		if !strings.HasPrefix(m.Subject, "$KV.") || refuses.Add(-1) < 0 {
			return false
		}
		refused.Add(1)
		_ = m.Respond([]byte(`{"error":{"code":400,"err_code":10164,"description":"wrong last sequence"},"stream":"KV_` + bucket + `"}`))
		return true
	}))
	refuses.Store(3)
	item := swap(t, s, cas.Item{Key: "a"}, "x")
	refuses.Store(3)
	must(t, s.Delete(inTime(t), item))
	if refused.Load() != 6 {
		t.Fatalf("%d writes were refused, want 6", refused.Load())
	}
	refuses.Store(3)
	if _, err := s.Swap(inTime(t), item, []byte("y"), nil); !errors.Is(err, cas.ErrConflict) {
		t.Errorf("an item that was deleted meanwhile is written: %v", err)
	}
	refuses.Store(math.MaxInt32)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := s.Swap(ctx, get(t, s, "a"), []byte("y"), nil); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, cas.ErrConflict) {
		t.Errorf("a write that is refused until its context ends: %v", err)
	}
}

// inFrontOf returns a JetStream whose requests are the server's, except those that answered answers.
func inFrontOf(t *testing.T, srv *natstest.Server, answered func(*nats.Msg) bool) jetstream.JetStream {
	t.Helper()
	const prefix = "front.API."
	nc := srv.Connect(t)
	_, err := nc.Subscribe(prefix+">", func(m *nats.Msg) {
		if m.Subject = strings.TrimPrefix(m.Subject, prefix); !strings.HasPrefix(m.Subject, "$KV.") {
			m.Subject = jetstream.DefaultAPIPrefix + m.Subject
		}
		if !answered(m) {
			_ = nc.PublishMsg(&nats.Msg{Subject: m.Subject, Reply: m.Reply, Header: m.Header, Data: m.Data})
		}
	})
	must(t, err)
	must(t, nc.FlushTimeout(10*time.Second))
	js, err := jetstream.NewWithAPIPrefix(srv.Connect(t), strings.TrimSuffix(prefix, "."))
	must(t, err)
	return js
}

// nats.go would keep what is written without a connection, and send it when it is connected again.
func TestNothingIsWrittenLaterThanItWasAskedFor(t *testing.T) {
	t.Parallel()
	srv := natstest.Start(t)
	js := srv.JetStream(t)
	s := mustOpen(t, js)
	item := swap(t, s, cas.Item{Key: "a"}, "x")
	must(t, srv.Stop())
	eventually(t, "the connection is lost", func() bool { return !js.Conn().IsConnected() })
	_, swapped := s.Swap(inASecond(t), item, []byte("late"), nil)
	_, swappedForATime := s.SwapFor(inASecond(t), item, []byte("late"), time.Hour)
	_, created := s.Swap(inASecond(t), cas.Item{Key: "b"}, []byte("late"), nil)
	for what, err := range map[string]error{"swap": swapped, "swap for a time": swappedForATime, "create": created, "delete": s.Delete(inASecond(t), item)} {
		if !errors.Is(err, nats.ErrDisconnected) {
			t.Errorf("%s without a connection: %v", what, err)
		}
	}
	must(t, srv.Start())
	eventually(t, "the connection is back", js.Conn().IsConnected)
	must(t, js.Conn().FlushWithContext(inTime(t)))
	eventually(t, "the bucket is back", func() bool { _, err := s.Get(inASecond(t), "a"); return err == nil })
	if now := get(t, s, "a"); now.Version != item.Version {
		t.Errorf("the item is %+v, was %+v when the connection was lost", now, item)
	}
	if now := get(t, s, "b"); now.Live {
		t.Errorf("an item was created: %+v", now)
	}
	js.Conn().Close()
	if _, err := s.Swap(inTime(t), item, nil, nil); !errors.Is(err, nats.ErrConnectionClosed) {
		t.Errorf("a write by a connection that was closed: %v", err)
	}
}

// The consumer of a watch is in the server's memory, and nats.go makes another one once it misses the
// heartbeats of the first.
func TestAWatchGoesOnAfterTheServerWasRestarted(t *testing.T) {
	t.Parallel()
	srv := natstest.Start(t)
	s, other := mustOpen(t, srv.JetStream(t)), mustOpen(t, srv.JetStream(t))
	kept, replaced := swap(t, other, cas.Item{Key: "a"}, "x"), swap(t, other, cas.Item{Key: "b"}, "x")
	deleted := swap(t, other, cas.Item{Key: "c"}, "x")
	began := false
	seen := map[string]cas.Item{}
	must(t, watchUntil(inTime(t), s, func(item cas.Item) bool {
		if seen[item.Key] = item; item.Key == "" {
			began = true
			must(t, srv.Stop())
			must(t, srv.Start())
			eventually(t, "the bucket is back", func() bool { _, err := other.Get(inASecond(t), "a"); return err == nil })
			replaced = swap(t, other, replaced, "y")
			must(t, other.Delete(inTime(t), deleted))
		}
		return began && seen["b"].Version == replaced.Version && !seen["c"].Live
	}))
	if seen["a"].Version != kept.Version {
		t.Errorf("the item that nobody has changed is %+v", seen["a"])
	}
}

// The server places a watcher on any replica, also one that is still catching up.
func TestAWatchBeginsAgainWhereItsReplicaLags(t *testing.T) {
	t.Parallel()
	srv := natstest.Start(t)
	other := mustOpen(t, srv.JetStream(t))
	item := swap(t, other, cas.Item{Key: "a"}, "x")
	gone := swap(t, other, cas.Item{Key: "b"}, "x")
	var watches atomic.Int32
	js := inFrontOf(t, srv, func(m *nats.Msg) bool {
		if strings.HasPrefix(m.Subject, jetstream.DefaultAPIPrefix+"CONSUMER.CREATE.") {
			if watches.Add(1) == 2 {
				must(t, other.Delete(inTime(t), gone))
			}
		}
		if !strings.HasPrefix(m.Subject, jetstream.DefaultAPIPrefix+"STREAM.MSG.GET.") || watches.Load() > 1 {
			return false
		}
		must(t, m.Respond([]byte(`{"message":{"subject":"$KV.items.other","seq":1000}}`)))
		return true
	})
	seen := map[string]cas.Item{}
	must(t, watchUntil(inTime(t), mustOpen(t, js), func(item cas.Item) bool {
		seen[item.Key] = item
		return item.Key == ""
	}))
	if watches.Load() != 2 || seen["a"].Version != item.Version || seen["b"].Live {
		t.Errorf("after %d watches, seen: %+v", watches.Load(), seen)
	}
}

func TestAWatchEndsWithTheConnection(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	err := watchUntil(inTime(t), mustOpen(t, js), func(item cas.Item) bool {
		if item.Key == "" {
			js.Conn().Close()
		}
		return false
	})
	if err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a watch whose connection was closed: %v", err)
	}
}

// Not parallel: other tests watch as well.
func TestAWatchThatHasEndedLeavesNothingBehind(t *testing.T) {
	srv := natstest.Start(t)
	js := srv.JetStream(t)
	s, other := mustOpen(t, js), mustOpen(t, srv.JetStream(t))
	item := swap(t, other, cas.Item{Key: "a"}, "x")
	for i := range 600 { // more than nats.go has room for
		swap(t, other, cas.Item{Key: fmt.Sprint(i)}, "x")
	}
	for n := range 30 {
		ctx, cancel := context.WithTimeout(inTime(t), time.Duration(n)*time.Millisecond)
		if n%3 == 0 {
			ctx = inTime(t)
		}
		_ = watchUntil(ctx, s, func(got cas.Item) bool {
			if n%2 == 0 && got.Key == "" {
				item = swap(t, other, item, fmt.Sprint(n))
			}
			return n%3 == 0 && (n%2 == 0 && got.Version == item.Version || n%2 == 1)
		})
		cancel()
	}
	eventually(t, "the goroutines have ended", func() bool {
		var all strings.Builder
		must(t, pprof.Lookup("goroutine").WriteTo(&all, 1))
		return !strings.Contains(all.String(), "natsstore.drain") && !strings.Contains(all.String(), "natsstore.(*Store)") && !strings.Contains(all.String(), "jetstream.(*kvs)")
	})
	st, err := js.Stream(inTime(t), "KV_"+bucket)
	must(t, err)
	eventually(t, "the consumers are deleted", func() bool {
		n := 0
		for range st.ListConsumers(inTime(t)).Info() {
			n++
		}
		return n == 0
	})
}
