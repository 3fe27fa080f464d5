package natssource

import (
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
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

// wrong lists the warnings and the errors.
func (s *said) wrong() []string { return append(s.with("level=WARN"), s.with("level=ERROR")...) }

// Eight partitions and a bucket that does not answer for ten leases.
func TestAnOutageIsSaidWhenItBeginsNowAndThenAndWhenItIsOver(t *testing.T) {
	t.Parallel()
	r := newGroupRig(t, 8, time.Second)
	var log said
	r.logger = log.logger()
	a := r.start("a")
	r.shared([]*testMember{a}, 8)
	old := a.holding()
	must(t, r.server.Stop())
	for _, g := range old {
		_ = g.lost(t)
	}
	outage := time.NewTimer(10 * r.ttl)
	defer outage.Stop()
	<-outage.C
	during := log.wrong()
	if len(during) < 1 || len(during) > 4 {
		t.Errorf("%d lines in an outage of %v:\n%s", len(during), 10*r.ttl, strings.Join(during, ""))
	}
	must(t, r.server.Start())
	r.shared([]*testMember{a}, 8)
	if after := log.wrong()[len(during):]; len(after) > 2 {
		t.Errorf("%d more lines when it was over:\n%s", len(after), strings.Join(after, ""))
	}
	eventually(t, "it is said that the outage is over", func() bool { return len(log.with("over: ")) > 0 })
	if over := log.with("over: "); len(over) > 2 {
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
	before := a.source.current()
	must(t, r.js.DeleteKeyValue(inTime(t), "leases"))
	must(t, second(r.js.CreateKeyValue(inTime(t), jetstream.KeyValueConfig{Bucket: "leases", LimitMarkerTTL: time.Minute})))
	eventually(t, "it is registered in the new bucket", func() bool { return a.source.current() != before })
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
	if lines := log.wrong(); len(lines) < 1 || len(lines) > 4 {
		t.Errorf("%d lines:\n%s", len(lines), strings.Join(lines, ""))
	}
}

// One that a stream stands in the place of cannot be mended by the members.
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
	if lines := log.wrong(); len(lines) < 1 || len(lines) > 5 {
		t.Errorf("%d lines in %v:\n%s", len(lines), 5*r.ttl, strings.Join(lines, ""))
	}
}
