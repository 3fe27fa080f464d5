package pgsink_test

import (
	"testing"

	"github.com/epochfence/epochfence/internal/pgtest"
	"github.com/epochfence/epochfence/sinks/sinktest"
)

// TestSuiteThroughPgBouncer plays the suite through transaction pooling with
// fewer connections than clients, so that hardly two transactions in a row of a
// client share one.
func TestSuiteThroughPgBouncer(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"exec", "cache_describe", "simple_protocol"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			direct := r.appURL
			b := pgtest.StartBouncer(t, direct)
			t.Run("queries", func(t *testing.T) { sinktest.Run(t, suiteOn(r, b.URL, modes[name])) })
			t.Run("queue", func(t *testing.T) { sinktest.Run(t, queuedSuiteOn(r, b.URL, modes[name])) })
			t.Run("unblocked", func(t *testing.T) { sinktest.RunUnblocked(t, suiteOn(r, b.URL, modes[name])) })
		})
	}
}
