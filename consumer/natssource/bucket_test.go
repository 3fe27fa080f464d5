package natssource

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/consumer"
)

// limit changes the limits of the bucket.
func (r *groupRig) limit(change func(*jetstream.StreamConfig)) {
	r.t.Helper()
	st, err := r.js.Stream(inTime(r.t), "KV_leases")
	must(r.t, err)
	c := st.CachedInfo().Config
	change(&c)
	must(r.t, second(r.js.UpdateStream(inTime(r.t), c)))
}

// fill writes keys into the bucket until it takes no more.
func (r *groupRig) fill() {
	r.t.Helper()
	for size := 4000; size >= 1; size /= 2 {
		for i := 0; ; i++ {
			_, err := r.bucket().write(inTime(r.t), fmt.Sprintf("somebody.else.%d.%d", size, i), make([]byte, size))
			if err != nil && strings.Contains(err.Error(), "maximum bytes exceeded") {
				break
			}
			must(r.t, err)
		}
	}
}

func TestAFullBucketOfASingleServerCostsNoLease(t *testing.T) {
	t.Parallel()
	r := newGroupRig(t, 3, 10*time.Second)
	a := r.start("a")
	r.shared([]*testMember{a}, 3)
	r.limit(func(c *jetstream.StreamConfig) { c.MaxBytes = 64 << 10 })
	r.fill()
	grants := r.granted()
	for n := range int32(3) { // positions and epochs grow meanwhile
		g := a.granted(n)
		f := g.fence(9)
		for range 3 {
			f.Epoch = 1 + 1000*f.Epoch
			f.Next *= 1000
			g.confirmFence(t, f)
		}
	}
	r.renewed([]int32{0, 1, 2})
	if now := r.granted(); now != grants || len(a.holding()) != 3 {
		t.Errorf("it holds %d after %d more grants", len(a.holding()), now-grants)
	}
	// Whoever comes now is told.
	s, err := New(r.options())
	must(t, err)
	err = s.Run(inTime(t), func(error) {}, func(context.Context, consumer.Tenure) { t.Error("granted") })
	if err == nil || !strings.Contains(err.Error(), "nats stream edit KV_leases --max-bytes=-1") {
		t.Errorf("Run: %v, want one that says that the bucket is full, and what to do", err)
	}
}

func TestABucketThatTakesNoRenewalIsSaidOnceBeforeLeasesRunOut(t *testing.T) {
	t.Parallel()
	r := newGroupRig(t, 4, 10*time.Second)
	said := make(lines, 1000)
	r.logger = slog.New(slog.NewTextHandler(said, &slog.HandlerOptions{Level: slog.LevelWarn}))
	a := r.start("a")
	r.shared([]*testMember{a}, 4)
	first := a.granted(0)
	r.limit(func(c *jetstream.StreamConfig) { c.MaxMsgSize = 100 })
	for line := ""; !strings.Contains(line, "nats stream edit KV_leases"); { // a slow start is said, too
		select {
		case line = <-said:
		case <-first.ctx.Done():
			t.Fatal("a lease ran out before anything was said")
		case <-time.After(patience):
			t.Fatal("nothing is said")
		}
		if strings.Contains(line, "exceeds maximum") && (!strings.Contains(line, "level=ERROR") || !strings.Contains(line, "KV_leases")) {
			t.Errorf("it does not say which bucket is full: %s", line)
		}
	}
	for _, g := range a.holding() {
		_ = g.lost(t)
	}
	for range len(said) {
		if line := <-said; strings.Contains(line, "exceeds maximum") && !strings.Contains(line, "times=") {
			t.Errorf("said again: %s", line)
		}
	}
	r.limit(func(c *jetstream.StreamConfig) { c.MaxMsgSize = -1 })
	r.shared([]*testMember{a}, 4)
}

func TestABucketThatIsTooSmallInAnyCaseIsRefusedWithTheRemedy(t *testing.T) {
	t.Parallel()
	r := newGroupRig(t, 8, 10*time.Second)
	must(t, second(r.js.CreateKeyValue(inTime(t), jetstream.KeyValueConfig{Bucket: "leases", LimitMarkerTTL: time.Minute})))
	for _, c := range []struct {
		name   string
		change func(*jetstream.StreamConfig)
		want   string
	}{
		{"bytes", func(c *jetstream.StreamConfig) { c.MaxBytes = 4 << 10 }, "nats stream edit KV_leases --max-bytes=-1"},
		{"messages", func(c *jetstream.StreamConfig) { c.MaxMsgs = 16 }, "nats stream edit KV_leases --max-msgs=-1"},
		{"a message", func(c *jetstream.StreamConfig) { c.MaxMsgSize = 200 }, "nats stream edit KV_leases --max-msg-size=-1"},
		{"keys", func(c *jetstream.StreamConfig) { c.DiscardNewPerSubject = true }, "nats stream edit KV_leases --no-discard-per-subject"},
	} {
		r.limit(c.change)
		s, err := New(r.options())
		must(t, err)
		err = s.Run(inTime(t), func(error) {}, func(context.Context, consumer.Tenure) { t.Error("granted") })
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: Run: %v; want an error with %q", c.name, err, c.want)
		}
		r.limit(func(c *jetstream.StreamConfig) {
			c.MaxBytes, c.MaxMsgs, c.MaxMsgSize, c.DiscardNewPerSubject = -1, -1, -1, false
		})
	}
	// What is asked for is enough.
	o := r.options()
	o.Name = "a"
	s, err := New(o)
	must(t, err)
	must(t, s.openNext(inTime(t)))
	need := s.needs()
	r.limit(func(c *jetstream.StreamConfig) {
		c.MaxBytes, c.MaxMsgs, c.MaxMsgSize = int64(need.bytes), int64(need.messages), int32(need.message)
	})
	a := r.start("a")
	r.shared([]*testMember{a}, 8)
	r.renewed([]int32{0, 1, 2, 3, 4, 5, 6, 7})
	r.shared([]*testMember{a}, 8)
}
