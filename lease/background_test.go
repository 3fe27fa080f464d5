package lease

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/epochfence/epochfence/cas/memstore"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/suites/bubble"
	"github.com/epochfence/epochfence/sinks/memsink"
)

const stall = 4 * time.Second

// claims has the lock of a member that may stall for so long.
func claims(t *testing.T, sink *memsink.Sink) *Claimed[*memsink.Tx] {
	t.Helper()
	m := join(t, memstore.New(), func(o *Options) { o.MaxStall = stall })
	h, err := m.Acquire(t.Context(), nightly)
	if err != nil {
		t.Fatal(err)
	}
	c, err := Claim(t.Context(), h, sink)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// transacts is a transaction that takes a while.
func transacts(ctx context.Context, b epoch.Background[*memsink.Tx], takes time.Duration) error {
	return b.Do(ctx, func(context.Context, *memsink.Tx) error {
		passes(takes)
		return nil
	})
}

func TestBackgroundWorkKeepsItsLeaseWhetherItIsBusyOrIdle(t *testing.T) {
	for what, work := range map[string]func(ctx context.Context, b epoch.Background[*memsink.Tx]) error{
		"transactions one after the other": func(ctx context.Context, b epoch.Background[*memsink.Tx]) error {
			for range 100 {
				if err := transacts(ctx, b, stall/10); err != nil {
					return err
				}
			}
			return nil
		},
		"transactions that nearly take MaxStall": func(ctx context.Context, b epoch.Background[*memsink.Tx]) error {
			for range 10 {
				passes(stall / 5)
				if err := transacts(ctx, b, stall*9/10); err != nil {
					return err
				}
			}
			return nil
		},
		"nothing to do": func(context.Context, epoch.Background[*memsink.Tx]) error {
			passes(10 * stall)
			return nil
		},
	} {
		t.Run(what, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				c := claims(t, memsink.New())
				var failed error
				err := c.Background(t.Context(), func(ctx context.Context, b epoch.Background[*memsink.Tx]) { failed = work(ctx, b) })
				if err != nil || failed != nil || c.Err() != nil {
					t.Errorf("Background: %v; its transaction: %v; the lease: %v", err, failed, c.Err())
				}
			})
		})
	}
}

func TestAHolderThatHangsLosesItsLeaseBesideBackgroundWork(t *testing.T) {
	for what, hangs := range map[string]func(c *Claimed[*memsink.Tx], b epoch.Background[*memsink.Tx], thawed chan struct{}){
		"in the work of Do": func(c *Claimed[*memsink.Tx], _ epoch.Background[*memsink.Tx], thawed chan struct{}) {
			_ = c.Do(context.Background(), func(context.Context, *memsink.Tx, epoch.Epoch) error {
				<-thawed
				return nil
			})
		},
		"in a transaction beside it": func(_ *Claimed[*memsink.Tx], b epoch.Background[*memsink.Tx], thawed chan struct{}) {
			_ = b.Do(context.Background(), func(context.Context, *memsink.Tx) error {
				<-thawed
				return nil
			})
		},
	} {
		t.Run(what, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				c, thawed := claims(t, memsink.New()), make(chan struct{})
				err := c.Background(t.Context(), func(ctx context.Context, b epoch.Background[*memsink.Tx]) {
					go hangs(c, b, thawed)
					<-ctx.Done()
				})
				close(thawed)
				if !errors.Is(err, ErrLost) || !errors.Is(err, ErrStalled) {
					t.Errorf("Background: %v", err)
				}
			})
		})
	}
}

func TestBackgroundReturnsARefusalAfterWhichNoClaimMayFollow(t *testing.T) {
	p := epoch.Partition{Group: "billing", Topic: nightly}
	for what, refusal := range map[string]error{
		"the fence is gone":                    &epoch.MissingError{Partition: p},
		"work has ended its transaction":       epoch.ErrTxEndedByHandler,
		"another system has seen an epoch far": &epoch.LowEpochError{Partition: p, Epoch: 1, Seen: epoch.MaxAbove + 1},
	} {
		t.Run(what, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				sink := memsink.New()
				c := claims(t, sink)
				sink.Script(memsink.Hooks{CommitHeld: func(context.Context, epoch.Hold, func() error) error { return refusal }})
				calls := 0
				err := c.Background(t.Context(), func(ctx context.Context, b epoch.Background[*memsink.Tx]) {
					calls++
					_ = transacts(ctx, b, 0)
					<-ctx.Done()
				})
				if !errors.Is(err, refusal) || calls != 1 {
					t.Errorf("%d calls, and %v; want one, and %v", calls, err, refusal)
				}
			})
		})
	}
}

// The answer to the commit was lost, or somebody has claimed since.
func TestBackgroundWorkIsCalledAgainUnderTheNextClaim(t *testing.T) {
	for what, refusal := range map[string]error{"in doubt": epoch.ErrInDoubt, "stale": nil} {
		t.Run(what, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				sink := memsink.New()
				c := claims(t, sink)
				var under []epoch.Epoch
				err := c.Background(t.Context(), func(ctx context.Context, b epoch.Background[*memsink.Tx]) {
					if under = append(under, b.Epoch()); len(under) == 2 {
						return
					}
					sink.Script(memsink.Hooks{CommitHeld: func(_ context.Context, h epoch.Hold, do func() error) error {
						sink.Script(memsink.Hooks{})
						if refusal != nil {
							return refusal
						}
						return &epoch.StaleError{Partition: h.Partition}
					}})
					_ = transacts(ctx, b, 0)
					<-ctx.Done()
					if err := transacts(context.Background(), b, 0); err == nil {
						t.Error("a transaction began after the claim had ended")
					}
				})
				if err != nil || len(under) != 2 || under[1] <= under[0] {
					t.Errorf("it was called under %v, and returned %v", under, err)
				}
			})
		})
	}
}
