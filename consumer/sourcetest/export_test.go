package sourcetest

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// Play plays the histories whose claims begin with the prefix on a source that is
// believed to be broken, each in a bubble, and returns what was wrong, by claim.
func Play(t *testing.T, prefix string, create func(t testing.TB) Harness, patience time.Duration) map[string]error {
	found := map[string]error{}
	for _, h := range histories() {
		if !strings.HasPrefix(h.claim, prefix) {
			continue
		}
		synctest.Test(t, func(t *testing.T) {
			harness := create(t)
			if missing := h.missing(harness); missing != "" {
				t.Fatalf("the harness is no %s", missing)
			}
			found[h.claim] = h.play(t, harness, patience)
		})
	}
	return found
}
