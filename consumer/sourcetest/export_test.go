package sourcetest

import (
	"strings"
	"testing"
	"time"

	"github.com/epochfence/epochfence/internal/suites/bubble"
)

// Play plays the histories whose claims begin with the prefix on a source that is
// believed to be broken, each in a bubble, and returns what was wrong, by claim.
func Play(t *testing.T, prefix string, create func(t testing.TB) Harness, patience time.Duration) map[string]error {
	found := map[string]error{}
	for _, h := range histories() {
		if !strings.HasPrefix(h.claim, prefix) {
			continue
		}
		bubble.Test(t, func(t *testing.T) {
			harness := create(t)
			if missing := h.missing(harness); missing != "" {
				t.Fatalf("the harness is no %s", missing)
			}
			found[h.claim] = h.play(t, harness, patience)
		})
	}
	return found
}

// Attempts is how often a history is played at most.
const Attempts = attempts

// PlayAgain plays the history whose claim begins with the prefix as Run does, in a
// bubble, and returns what was wrong.
func PlayAgain(t *testing.T, prefix string, create func(t testing.TB) Harness, patience time.Duration) (err error) {
	for _, h := range histories() {
		if strings.HasPrefix(h.claim, prefix) {
			bubble.Test(t, func(t *testing.T) { err = h.playAgain(t, create, patience) })
			return err
		}
	}
	t.Fatalf("there is no history %q", prefix)
	return nil
}
