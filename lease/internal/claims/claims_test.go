package claims

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/epochfence/epochfence/cas/memstore"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/suites/bubble"
	"github.com/epochfence/epochfence/lease"
	"github.com/epochfence/epochfence/sinks/memsink"
)

func member(t *testing.T, s *memstore.Store) *lease.Member {
	t.Helper()
	m, err := lease.Open(t.Context(), s, lease.Options{Group: "billing"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return m
}

func acquired(t *testing.T, m *lease.Member) *Lease {
	t.Helper()
	h, err := m.Acquire(t.Context(), "nightly")
	if err != nil {
		t.Fatal(err)
	}
	return New(h)
}

func TestALeaseIsClaimedOnceInEachSink(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		l := acquired(t, member(t, memstore.New()))
		claims := map[*memsink.Sink]int{}
		first, second := memsink.New(), memsink.New()
		for _, sink := range []*memsink.Sink{first, second} {
			sink.Script(memsink.Hooks{Claim: func(_ context.Context, _ epoch.Claim, do func() error) error {
				claims[sink]++
				return do()
			}})
			for _, line := range []string{"a", "b", "c"} {
				if err := Do(t.Context(), l, sink, writes(line)); err != nil {
					t.Fatal(err)
				}
			}
			if got := sink.List("report"); claims[sink] != 1 || !slices.Equal(got, []string{"a", "b", "c"}) {
				t.Errorf("%d claims, and the report is %q", claims[sink], got)
			}
		}
	})
}

func writes(line string) lease.Work[*memsink.Tx] {
	return func(_ context.Context, tx *memsink.Tx, _ epoch.Epoch) error {
		tx.Append("report", line)
		return nil
	}
}

func TestAClaimThatHasFailedIsMadeAgain(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		l, sink := acquired(t, member(t, memstore.New())), memsink.New()
		sink.Script(memsink.Hooks{Claim: func(context.Context, epoch.Claim, func() error) error { return epoch.ErrUnhealthy }})
		if err := Do(t.Context(), l, sink, writes("a")); !errors.Is(err, epoch.ErrUnhealthy) {
			t.Errorf("%v", err)
		}
		sink.Script(memsink.Hooks{})
		if err := Do(t.Context(), l, sink, writes("b")); err != nil {
			t.Error(err)
		}
		if got := sink.List("report"); !slices.Equal(got, []string{"b"}) {
			t.Errorf("the report is %q", got)
		}
	})
}

// The first call claims, and the database does not answer.
func TestAWaitForAClaimEndsWithItsContext(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		l, sink := acquired(t, member(t, memstore.New())), memsink.New()
		answers := make(chan struct{})
		sink.Script(memsink.Hooks{Claim: func(_ context.Context, _ epoch.Claim, do func() error) error {
			<-answers
			return do()
		}})
		done := make(chan error, 1)
		go func() { done <- Do(t.Context(), l, sink, writes("a")) }()
		<-time.After(time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := Do(ctx, l, sink, writes("b")); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the second call: %v", err)
		}
		close(answers)
		if err := <-done; err != nil {
			t.Error(err)
		}
		if got := sink.List("report"); !slices.Equal(got, []string{"a"}) {
			t.Errorf("the report is %q", got)
		}
	})
}

func TestALeaseIsKeptUntilItsTimeHasPassed(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := memstore.New()
		a, b := member(t, s), member(t, s)
		before := time.Now()
		acquired(t, a).ReleaseAfter(3 * time.Second)
		acquired(t, b).ReleaseAfter(time.Hour)
		if took := time.Since(before); took < 3*time.Second || took > 4*time.Second {
			t.Errorf("released after %s", took)
		}
		b.Close() // else the bubble would wait for an hour
		if took := time.Since(before); took > time.Minute {
			t.Errorf("closed after %s", took)
		}
	})
}
