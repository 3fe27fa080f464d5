package pgsink

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/epochfence/epochfence/internal/suites/bubble"
)

// When a group spreads, a process makes hundreds of claims at once, and some are refused because another process
// was faster. If that cost the others their common transaction, each would take one of its own.
func TestOneCallThatIsRefusedDoesNotCostTheOthersTheirCommonTransaction(t *testing.T) {
	for name, c := range map[string]struct {
		refused         []int
		together, alone int
	}{
		"none": {nil, 1, 0},
		"one":  {[]int{77}, 9, 32},
		"two":  {[]int{3, 500}, 17, 64},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				const calls = 512
				refused := errors.New("refused")
				var together, alone atomic.Int32
				co := coalescer[int, int]{alone: fewAlone, many: func(_ context.Context, qs []int) ([]int, error) {
					together.Add(1)
					if slices.ContainsFunc(qs, func(q int) bool { return slices.Contains(c.refused, q) }) {
						return nil, errEach
					}
					return qs, nil
				}}
				for q := range calls {
					go func() {
						a, err := co.do(t.Context(), q, func() (int, error) {
							alone.Add(1)
							if slices.Contains(c.refused, q) {
								return 0, refused
							}
							return q, nil
						})
						if want := slices.Contains(c.refused, q); errors.Is(err, refused) != want || err == nil && a != q {
							t.Errorf("%d: %d, %v", q, a, err)
						}
					}()
				}
				synctest.Wait()
				co.makeAll()
				synctest.Wait()
				if got := int(together.Load()); got > c.together {
					t.Errorf("%d common transactions, want %d at most", got, c.together)
				}
				if got := int(alone.Load()); got > c.alone {
					t.Errorf("%d of their own, want %d at most", got, c.alone)
				}
			})
		})
	}
}
