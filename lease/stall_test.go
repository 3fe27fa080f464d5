package lease

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/epochfence/epochfence/cas/memstore"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/suites/bubble"
	"github.com/epochfence/epochfence/internal/waits"
	"github.com/epochfence/epochfence/sinks/memsink"
)

// asDocumented is an option: MaxStall is as in the zero Options, which no other test has.
func asDocumented(o *Options) { o.MaxStall = 0 }

func TestWithZeroOptionsNoHolderKeepsItsLeaseForEver(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := memstore.New()
		m, slow := join(t, s, asDocumented), join(t, s, asDocumented, func(o *Options) { o.TTL = time.Hour })
		for h, want := range map[*Held]time.Duration{m.locks("nightly"): time.Minute, slow.locks("hourly"): 4 * time.Hour} {
			began := time.Now()
			if err := lose(t, h, 5*time.Hour); !errors.Is(err, ErrStalled) {
				t.Errorf("%s was lost because of %v", h, err)
			}
			if took := time.Since(began); took > want+time.Second {
				t.Errorf("%s was lost after %v", h, took)
			}
		}
	})
}

func hangs(ctx context.Context, _ *memsink.Tx, _ epoch.Epoch) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

func TestWorkThatHangsLosesItsLeaseAndTheNextOneWorks(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		store, sink := memstore.New(), memsink.New()
		a, b := join(t, store, asDocumented), join(t, store, asDocumented)
		tries := 0
		began := time.Now()
		err := Do(t.Context(), a.Member, sink, nightly, func(ctx context.Context, tx *memsink.Tx, e epoch.Epoch) error {
			tries++
			if until, bounded := ctx.Deadline(); !bounded || time.Until(until) > 62*time.Second || time.Until(until) < time.Minute {
				t.Errorf("the work has time until %v", until)
			}
			return hangs(ctx, tx, e)
		})
		if !errors.Is(err, ErrLost) || !errors.Is(err, ErrStalled) || tries != 1 {
			t.Errorf("after %d tries: %v", tries, err)
		}
		if took := time.Since(began); took.Round(time.Second) != time.Minute {
			t.Errorf("it took %v", took)
		}
		does(t, b, sink, writes("b"))
		reports(t, sink, "b")
	})
}

// A leader elector renews the lease of a leader whose work hangs.
func TestProgressOfOthersDoesNotKeepWorkThatHangs(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m, sink := join(t, memstore.New(), asDocumented), memsink.New()
		c, err := Claim(t.Context(), m.locks(nightly), sink)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			for waits.Sleep(c.Context(), 10*time.Second) {
				c.Progress()
			}
		}()
		tries := 0
		err = c.Do(t.Context(), func(ctx context.Context, tx *memsink.Tx, e epoch.Epoch) error {
			tries++
			return hangs(ctx, tx, e)
		})
		if !errors.Is(err, ErrStalled) || errors.Is(err, ErrLost) || tries != 1 {
			t.Errorf("after %d tries: %v", tries, err)
		}
		if err := c.Do(t.Context(), writes("next")); err != nil {
			t.Errorf("the next step: %v", err)
		}
		reports(t, sink, "next")
	})
}

func TestTheStepsOfALongJobAreProgress(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m, sink := join(t, memstore.New(), asDocumented), memsink.New()
		c, err := Claim(t.Context(), m.locks(nightly), sink)
		if err != nil {
			t.Fatal(err)
		}
		var want []string
		for range 20 {
			passes(40 * time.Second)
			err := c.Do(t.Context(), func(_ context.Context, tx *memsink.Tx, _ epoch.Epoch) error {
				passes(40 * time.Second)
				tx.Append("report", "step")
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			want = append(want, "step")
		}
		if got := sink.List("report"); !slices.Equal(got, want) {
			t.Errorf("the report is %q", got)
		}
	})
}

// Each try confirms the lease, which is no progress of the holder.
func TestAClaimThatNeverSucceedsIsGivenUp(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m, sink := join(t, memstore.New(), asDocumented), memsink.New()
		locked := scripted(sink, memsink.Hooks{Claim: func(context.Context, epoch.Claim, func() error) error { return epoch.ErrTransient }})
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if _, err := Claim(ctx, m.locks(nightly), locked); !errors.Is(err, ErrStalled) {
			t.Errorf("%v", err)
		}
	})
}
