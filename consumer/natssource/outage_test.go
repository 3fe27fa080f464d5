package natssource

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/memsink"
)

// said keeps the lines that members log.
type said struct {
	mu    sync.Mutex
	lines []string
}

func (s *said) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lines = append(s.lines, string(p))
	return len(p), nil
}

func (s *said) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(s, &slog.HandlerOptions{Level: slog.LevelInfo}))
}

// with lists the lines that hold all words.
func (s *said) with(words ...string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []string
	for _, line := range s.lines {
		all := true
		for _, w := range words {
			all = all && strings.Contains(line, w)
		}
		if all {
			found = append(found, line)
		}
	}
	return found
}

// wrong lists the warnings and the errors, without those of a slow start.
func (s *said) wrong() []string {
	return slices.DeleteFunc(append(s.with("level=WARN"), s.with("level=ERROR")...), func(line string) bool {
		return strings.Contains(line, "waiting for the server")
	})
}

// Eight partitions and a bucket that does not answer for five leases.
func TestAnOutageIsSaidWhenItBeginsNowAndThenAndWhenItIsOver(t *testing.T) {
	t.Parallel()
	r := newGroupRig(t, 8, 2*time.Second)
	var log said
	r.logger = log.logger()
	a := r.start("a")
	r.shared([]*testMember{a}, 8)
	old := a.holding()
	must(t, r.server.Stop())
	for _, g := range old {
		_ = g.lost(t)
	}
	outage := time.NewTimer(5 * r.ttl)
	defer outage.Stop()
	<-outage.C
	during := log.wrong()
	if len(during) < 1 || len(during) > 8 { // four, on a machine that does not stall
		t.Errorf("%d lines in an outage of %v:\n%s", len(during), 5*r.ttl, strings.Join(during, ""))
	}
	must(t, r.server.Start())
	r.shared([]*testMember{a}, 8)
	if after := log.wrong(); len(after) > len(during)+4 {
		t.Errorf("%d more lines when it was over:\n%s", len(after)-len(during), strings.Join(after, ""))
	}
	eventually(t, "it is said that the outage is over", func() bool { return len(log.with("over: ")) > 0 })
	if over := log.with("over: "); len(over) > 4 {
		t.Errorf("that it is over is said %d times:\n%s", len(over), strings.Join(over, ""))
	}
}

func TestABucketThatIsMadeAnewIsSaidOnce(t *testing.T) {
	t.Parallel()
	r := newGroupRig(t, 8, 2*time.Second)
	var log said
	r.logger = log.logger()
	a := r.start("a")
	r.shared([]*testMember{a}, 8)
	old := a.holding()
	must(t, r.js.DeleteKeyValue(inTime(t), "leases"))
	must(t, second(r.js.CreateKeyValue(inTime(t), jetstream.KeyValueConfig{Bucket: "leases", LimitMarkerTTL: time.Minute})))
	for _, g := range old {
		_ = g.lost(t)
	}
	for n := range int32(8) {
		eventually(t, "it is leased in the new bucket", func() bool {
			for _, g := range a.holding() {
				if g.Origin().Partition.Number == n {
					_, err := g.Confirm(inASecond(t), g.fence(1))
					return err == nil
				}
			}
			return false
		})
	}
	if lines := log.wrong(); len(lines) < 1 || len(lines) > 8 {
		t.Errorf("%d lines:\n%s", len(lines), strings.Join(lines, ""))
	}
}

// One that a stream stands in the place of cannot be fixed by the members.
func TestABucketThatHoldsNoLeasesAnyMoreIsSaidNowAndThen(t *testing.T) {
	t.Parallel()
	r := newGroupRig(t, 8, 2*time.Second)
	var log said
	r.logger = log.logger()
	a := r.start("a")
	r.shared([]*testMember{a}, 8)
	must(t, r.js.DeleteKeyValue(inTime(t), "leases"))
	must(t, second(r.js.CreateStream(inTime(t), jetstream.StreamConfig{Name: "KV_leases", Subjects: []string{"$KV.leases.>"}})))
	stands := time.NewTimer(5 * r.ttl)
	defer stands.Stop()
	<-stands.C
	if lines := log.wrong(); len(lines) < 1 || len(lines) > 12 {
		t.Errorf("%d lines in %v:\n%s", len(lines), 5*r.ttl, strings.Join(lines, ""))
	}
}

// What the source and consumer.Run say together, of eight partitions that they consume.
func TestAMemberThatConsumesSaysLittleOfAnOutage(t *testing.T) {
	t.Parallel()
	r := newGroupRig(t, 8, 2*time.Second)
	var log said
	o := r.options()
	o.Logger = log.logger()
	source, err := New(o)
	must(t, err)
	var mu sync.Mutex
	held := map[epoch.Partition]bool{}
	holds := func(n int) func() bool {
		return func() bool { mu.Lock(); defer mu.Unlock(); return len(held) == n }
	}
	observe := func(e consumer.Event) {
		mu.Lock()
		defer mu.Unlock()
		switch e := e.(type) {
		case consumer.Claimed:
			held[e.Fence.Partition] = true
		case consumer.Lost:
			delete(held, e.Partition)
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	handle := func(context.Context, *memsink.Tx, []consumer.Message, epoch.Epoch) error { return nil }
	go func() {
		ended <- consumer.Run(ctx, source, memsink.New(), consumer.Batches(handle), consumer.Options{Logger: log.logger(), Observe: observe})
	}()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	eventually(t, "all are claimed", holds(8))
	must(t, r.server.Stop())
	eventually(t, "all are lost", holds(0))
	outage := time.NewTimer(5 * r.ttl)
	defer outage.Stop()
	<-outage.C
	must(t, r.server.Start())
	eventually(t, "all are claimed again", holds(8))
	lines := slices.DeleteFunc(log.with(), func(line string) bool { // what becomes of each partition
		return strings.Contains(line, "msg=lost") || strings.Contains(line, "msg=claimed")
	})
	if len(lines) > 12 {
		t.Errorf("%d lines:\n%s", len(lines), strings.Join(lines, ""))
	}
	if lines := log.with("key="); len(lines) > 0 {
		t.Errorf("what could not be renewed in an outage is taken for a stranger's:\n%s", strings.Join(lines, ""))
	}
}
