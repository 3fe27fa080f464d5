package tenures_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/internal/tenures"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/suites/bubble"
)

var errTaken = errors.New("taken away")

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// R7: a process never works on a partition twice at a time.
func TestOwnIsCalledWhenThoseBeforeItHaveReturned(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*tenures.State){
		"revoked": (*tenures.State).Revoke,
		"lost":    func(s *tenures.State) { s.Lose(errTaken) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble.Test(t, func(t *testing.T) {
				first := tenures.NewState(t.Context(), nil)
				release := make(chan struct{})
				go first.Run(func(context.Context) { <-release })
				synctest.Wait()
				end(first)

				second := tenures.NewState(t.Context(), first)
				go second.Run(func(context.Context) { t.Error("own was called for a tenure that ended before its turn") })
				synctest.Wait()
				if isClosed(second.Over()) {
					t.Error("the second tenure did not wait for the first")
				}
				end(second)
				synctest.Wait()
				if !isClosed(second.Over()) {
					t.Error("the second tenure ended and is not over")
				}

				third, called := tenures.NewState(t.Context(), second), false
				go third.Run(func(context.Context) { called = true })
				synctest.Wait()
				if called {
					t.Error("own was called while that of the first tenure ran, as the second was over")
				}
				close(release)
				synctest.Wait()
				if !called || !isClosed(third.Over()) {
					t.Errorf("own was called: %v; over: %v", called, isClosed(third.Over()))
				}
			})
		})
	}
}

func TestATenureIsHeldUntilItIsRevokedOrLost(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		end                 func(*tenures.State)
		held, revoked, lost bool
	}{
		"neither":  {func(*tenures.State) {}, true, false, false},
		"revoked":  {(*tenures.State).Revoke, false, true, false},
		"twice":    {func(s *tenures.State) { s.Revoke(); s.Revoke() }, false, true, false},
		"lost":     {func(s *tenures.State) { s.Lose(errTaken) }, false, false, true},
		"both":     {func(s *tenures.State) { s.Revoke(); s.Lose(errTaken) }, false, true, true},
		"of a Run": {func(s *tenures.State) { s.Run(func(context.Context) {}) }, true, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := tenures.NewState(t.Context(), nil)
			c.end(s)
			if s.Held() != c.held || s.Revoked() != c.revoked || isClosed(s.Draining()) != c.revoked ||
				errors.Is(s.Lost(), errTaken) != c.lost || errors.Is(s.Lost(), consumer.ErrLost) != c.lost || isClosed(s.WhenLost()) != c.lost {
				t.Errorf("held %v, revoked %v, lost %v; want %v, %v, %v", s.Held(), s.Revoked(), s.Lost(), c.held, c.revoked, c.lost)
			}
		})
	}
}

func TestNothingIsConfirmedOnceATenureIsLostOrOver(t *testing.T) {
	t.Parallel()
	s := tenures.NewState(t.Context(), nil)
	if err := s.Err(); err != nil {
		t.Errorf("of one that is held: %v", err)
	}
	s.Run(func(context.Context) {})
	if err := s.Err(); !errors.Is(err, consumer.ErrLost) || !errors.Is(err, tenures.ErrEnded) {
		t.Errorf("of one whose own has returned: %v", err)
	}
	s.Lose(errTaken)
	s.Lose(errors.New("later"))
	if err := s.Err(); !errors.Is(err, consumer.ErrLost) || !errors.Is(err, errTaken) {
		t.Errorf("of one that was lost: %v", err)
	}
}

func TestATenureIsLostWithItsSource(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	s := tenures.NewState(ctx, nil)
	cancel(errTaken)
	if err := s.Lost(); !errors.Is(err, consumer.ErrLost) || !errors.Is(err, errTaken) {
		t.Errorf("Lost() = %v", err)
	}
}

func TestADrainThatTakesTooLongCostsTheTenure(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		takes time.Duration
		lost  bool
	}{"in time": {9 * time.Second, false}, "late": {11 * time.Second, true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble.Test(t, func(t *testing.T) {
				s, said := tenures.NewState(t.Context(), nil), 0
				go s.Run(func(context.Context) { <-s.Draining(); <-time.After(c.takes) })
				synctest.Wait()
				s.RevokeWithin(10*time.Second, func() { said++ })
				<-s.Over()
				<-time.After(time.Minute)
				if got := errors.Is(s.Lost(), consumer.ErrDrainOverrun); got != c.lost || (said == 1) != c.lost {
					t.Errorf("lost: %v, said %d times; want %v", s.Lost(), said, c.lost)
				}
			})
		})
	}
}

func TestAReadEndsWithTheTenureAndWithoutAnError(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(s *tenures.State, cancel func()){
		"revoked":           func(s *tenures.State, _ func()) { s.Revoke() },
		"lost":              func(s *tenures.State, _ func()) { s.Lose(errTaken) },
		"its context ended": func(_ *tenures.State, cancel func()) { cancel() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble.Test(t, func(t *testing.T) {
				s := tenures.NewState(t.Context(), nil)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				read := s.Read(ctx, func(ctx context.Context, yield func(consumer.Batch) bool) error {
					yield(consumer.Batch{Next: 1})
					<-ctx.Done()
					return ctx.Err()
				})
				var got []epoch.Offset
				for b, err := range read {
					if err != nil {
						t.Errorf("it ended with %v", err)
					}
					got = append(got, b.Next)
					end(s, cancel)
				}
				if len(got) != 1 {
					t.Errorf("it yielded up to %v", got)
				}
			})
		})
	}
}

func TestAReadPassesOnWhatWentWrong(t *testing.T) {
	t.Parallel()
	s, failed := tenures.NewState(t.Context(), nil), false
	for _, err := range s.Read(t.Context(), func(context.Context, func(consumer.Batch) bool) error { return errTaken }) {
		failed = errors.Is(err, errTaken)
	}
	if !failed {
		t.Error("the error was swallowed")
	}
}

func TestThereIsOneReadAtATime(t *testing.T) {
	t.Parallel()
	s := tenures.NewState(t.Context(), nil)
	once := func(_ context.Context, yield func(consumer.Batch) bool) error { yield(consumer.Batch{}); return nil }
	for range 2 { // one after the other is fine
		for _, err := range s.Read(t.Context(), once) {
			if err != nil {
				t.Error(err)
			}
			for _, err := range s.Read(t.Context(), once) {
				if err == nil {
					t.Error("a second Read beside the first yields")
				}
			}
		}
	}
}
