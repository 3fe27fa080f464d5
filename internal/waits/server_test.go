package waits

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/epochfence/epochfence/internal/suites/bubble"
)

var (
	errDown  = errors.New("connection refused")
	errWrong = errors.New("wrong password")
	errOdd   = errors.New("the connection is closed at the first word")
)

// waiting is a server that is waited for, and what was logged.
func waiting() (Server, *bytes.Buffer) {
	var said bytes.Buffer
	return Server{
		Name: "the server at a:1", Timeout: 30 * time.Second, Log: slog.New(slog.NewTextHandler(&said, nil)),
		Patience: func(err error) time.Duration {
			switch {
			case errors.Is(err, errWrong):
				return 0
			case errors.Is(err, errOdd):
				return 3 * time.Second
			}
			return time.Hour
		},
	}, &said
}

func TestAServerThatComesUpIsWaitedForAndSoItIsSaid(t *testing.T) {
	t.Parallel()
	bubble.Test(t, func(t *testing.T) {
		s, said := waiting()
		began := time.Now()
		tried, err := s.Wait(t.Context(), func(context.Context) error {
			if time.Since(began) < 25*time.Second {
				return errDown
			}
			return nil
		})
		if err != nil || tried < 25*time.Second || tried > 28*time.Second {
			t.Errorf("%v after %v", err, tried)
		}
		if got := said.String(); strings.Count(got, "\n") != 3 || strings.Count(got, "a:1") != 3 || strings.Count(got, errDown.Error()) != 3 {
			t.Errorf("want it said after 1, 11 and 21 s, with the error:\n%s", got)
		}
	})
}

func TestAServerThatStaysAwayIsGivenUpWithTheLastError(t *testing.T) {
	t.Parallel()
	bubble.Test(t, func(t *testing.T) {
		s, _ := waiting()
		tried, err := s.Wait(t.Context(), func(ctx context.Context) error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return errDown
		})
		if !errors.Is(err, errDown) || tried != 30*time.Second {
			t.Errorf("%v after %v", err, tried)
		}
	})
}

func TestATryThatGetsNoAnswerIsSaidAndEndsInTime(t *testing.T) {
	t.Parallel()
	bubble.Test(t, func(t *testing.T) {
		s, said := waiting()
		tried, err := s.Wait(t.Context(), func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
		if !errors.Is(err, context.DeadlineExceeded) || tried != 30*time.Second || !strings.Contains(said.String(), "for=1s") {
			t.Errorf("%v after %v:\n%s", err, tried, said)
		}
	})
}

func TestWhatOnlyAPersonCanMendEndsTheWaitAtOnce(t *testing.T) {
	t.Parallel()
	bubble.Test(t, func(t *testing.T) {
		s, said := waiting()
		tried, err := s.Wait(t.Context(), func(context.Context) error { return errWrong })
		if !errors.Is(err, errWrong) || tried != 0 || said.Len() > 0 {
			t.Errorf("%v after %v:\n%s", err, tried, said)
		}
	})
}

func TestAnErrorIsWaitedOnForAsLongAsItIsWorth(t *testing.T) {
	t.Parallel()
	for range 20 { // the pauses are drawn by lot
		bubble.Test(t, func(t *testing.T) {
			s, _ := waiting()
			if tried, err := s.Wait(t.Context(), func(context.Context) error { return errOdd }); !errors.Is(err, errOdd) || tried != 3*time.Second {
				t.Errorf("%v after %v", err, tried)
			}
		})
	}
}

func TestAWaitEndsWithItsContext(t *testing.T) {
	t.Parallel()
	bubble.Test(t, func(t *testing.T) {
		s, _ := waiting()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if tried, err := s.Wait(ctx, func(context.Context) error { return errDown }); !errors.Is(err, errDown) || tried != 5*time.Second {
			t.Errorf("%v after %v", err, tried)
		}
		if ctx.Err() == nil {
			t.Error("the caller cannot tell yet that its context has ended")
		}
	})
}

// The caller asks its own context why.
func TestAWaitThatEndsWithItsContextEndsAfterIt(t *testing.T) {
	t.Parallel()
	for range 50 { // which timer of an instant fires first is chance
		bubble.Test(t, func(t *testing.T) {
			s, _ := waiting()
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			deadline, _ := ctx.Deadline()
			_, _ = s.Wait(ctx, func(context.Context) error { <-time.After(time.Until(deadline)); return errDown })
			if ctx.Err() == nil {
				t.Error("the caller cannot tell yet that its context has ended")
			}
		})
	}
}

// The last try may be cut off in the middle of a dial, which tells nothing new.
func TestADialThatIsCutOffDoesNotHideWhatWentWrongBefore(t *testing.T) {
	t.Parallel()
	t.Run("by its context", func(t *testing.T) {
		cutOffLast(t, func(ctx context.Context) { <-ctx.Done() })
	})
	t.Run("by its socket's deadline, before the context's timer fires", func(t *testing.T) {
		cutOffLast(t, func(ctx context.Context) {
			deadline, _ := ctx.Deadline()
			<-time.After(time.Until(deadline))
		})
	})
}

func cutOffLast(t *testing.T, cutOff func(context.Context)) {
	t.Parallel()
	bubble.Test(t, func(t *testing.T) {
		s, _ := waiting()
		_, err := s.Wait(t.Context(), func(ctx context.Context) error {
			if deadline, _ := ctx.Deadline(); time.Until(deadline) > time.Second {
				return errDown
			}
			cutOff(ctx)
			return &net.OpError{Op: "dial", Net: "tcp", Err: os.ErrDeadlineExceeded} // what package net says then
		})
		if !errors.Is(err, errDown) {
			t.Errorf("err = %v; want the one before", err)
		}
	})
}
