package e2e_test

import (
	"flag"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// What a group costs its servers by its size, for docs/performance.md: each test counts, prints
// what it has counted, and fails if that is more than the page says. `make long WHAT=scale` runs them with
// many partitions.

var (
	scalePartitions = flag.Int("scale.partitions", 48, "partitions of the group in the tests of what a large one costs; make long WHAT=scale has 10,000")
	scaleMembers    = flag.Int("scale.members", 4, "its members; make long WHAT=scale has more")
	scaleTerm       = flag.Duration("scale.term", 600*time.Millisecond, "term of the leases in TestScalePostgres; make long WHAT=scale has 6 s, where a real one has 40")
	scaleTTL        = flag.Duration("scale.ttl", 8*time.Second, "natssource.Options.LeaseTTL in TestScaleNATS; make long WHAT=scale has 15 s, the default")
	scaleNATS       = flag.Int("scale.nats", 48, "partitions of the group on NATS, where each has a consumer; make long WHAT=scale has 500")
)

// tally counts things by name. It is safe for concurrent use.
type tally struct {
	mu     sync.Mutex
	counts map[string]int
}

func (c *tally) add(what string, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.counts == nil {
		c.counts = map[string]int{}
	}
	c.counts[what] += n
}

// take returns the counts so far, and begins anew.
func (c *tally) take() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	counts := c.counts
	c.counts = nil
	return counts
}

// expectation is what docs/performance.md says about one count.
type expectation struct {
	what  string
	most  float64 // as the formula says
	exact string  // the formula
}

// holds prints counts, as how many there were in a second, beside what was expected of
// them, and fails the test where there were more: by a tenth, and by one in the time, as
// timers have jitter and begin anywhere. Zero for the time counts the whole, not each second.
func holds(t *testing.T, title string, counts map[string]int, took time.Duration, want ...expectation) {
	t.Helper()
	seconds, slack := took.Seconds(), 1/max(took.Seconds(), 1)
	if took == 0 {
		seconds, slack = 1, 1
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", title)
	rest := map[string]int{}
	for what, n := range counts {
		rest[what] = n
	}
	for _, w := range want {
		got := float64(rest[w.what]) / seconds
		delete(rest, w.what)
		fmt.Fprintf(&b, "  %-34s %12.2f   expected %12.2f   %s\n", w.what, got, w.most, w.exact)
		if got > w.most*1.1+slack {
			t.Errorf("%s: %s: %.2f, and docs/performance.md says %.2f (%s): see what has changed, and correct the page", title, w.what, got, w.most, w.exact)
		}
	}
	var others []string
	for what := range rest {
		others = append(others, what)
	}
	slices.Sort(others)
	for _, what := range others {
		fmt.Fprintf(&b, "  %-34s %12.2f\n", what, float64(rest[what])/seconds)
	}
	t.Log(b.String())
}
