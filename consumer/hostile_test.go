package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
)

var errOutOfStock = errors.New("out of stock")

// hostile is an error that does in its methods what the fields say.
type hostile struct{ text, is, unwrap func() }

func (h *hostile) do(f func()) {
	if f != nil {
		f()
	}
}

func (h *hostile) Error() string { h.do(h.text); return "hostile" }
func (h *hostile) Is(error) bool { h.do(h.is); return false }
func (h *hostile) As(any) bool   { h.do(h.is); return false }
func (h *hostile) Unwrap() error { h.do(h.unwrap); return errOutOfStock }

// childVar is set in a process of tests that may end, and must not end this one.
const childVar = "EPOCHFENCE_TEST_CHILD"

// inChild runs the test in a process of its own, and reports whether this is not that one:
// what kills the process then fails the test.
func inChild(t *testing.T) bool {
	t.Helper()
	if os.Getenv(childVar) != "" {
		return false
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.timeout=5m")
	cmd.Env = append(os.Environ(), childVar+"=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("its process ended: %v\n%s", err, out[:min(len(out), 4000)])
	}
	return true
}

type unprintable struct{}

func (unprintable) String() string { panic(unprintable{}) }

// hostiles are errors, and panics, that panic again where somebody looks at them.
func hostiles() map[string]func() error {
	var none *fs.PathError
	boom := func() { panic("boom") }
	block := func() { <-time.After(time.Hour) } // for longer than anything else here
	returned := map[string]error{
		"a typed nil":             none,
		"Error panics":            &hostile{text: boom},
		"Is and As panic":         &hostile{is: boom},
		"Is and As end goroutine": &hostile{is: runtime.Goexit},
		"Unwrap panics":           &hostile{unwrap: boom},
		"Error blocks":            &hostile{text: block},
		"Is and As block":         &hostile{is: block},
		"Unwrap blocks":           &hostile{unwrap: block},
	}
	all := map[string]func() error{
		"panic with what cannot be printed": func() error { panic(unprintable{}) },
	}
	for name, err := range returned {
		all[name] = func() error { return err }
		all[name+", permanent"] = func() error { return consumer.Permanent(err) }
		all[name+", transient"] = func() error { return fmt.Errorf("%w: %w", epoch.ErrTransient, consumer.Permanent(err)) }
		all[name+", as a panic"] = func() error { panic(err) }
		if name != "Error blocks" { // otherwise it is the handler that hangs
			all[name+", in %w"] = func() error { return fmt.Errorf("reserve: %w", err) }
		}
	}
	return all
}

// TestAnErrorWhoseMethodsPanicCostsItsMessageAndNothingElse: L6. The methods of an error
// are its author's code, and so is the text of a panic's value.
func TestAnErrorWhoseMethodsPanicCostsItsMessageAndNothingElse(t *testing.T) {
	if inChild(t) {
		return
	}
	for name, fail := range hostiles() {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 2, func(r *rig) {
				first, other := r.fill(0, 5), r.fill(1, 5)
				p := r.start("a", letters(r, func(m consumer.Message) error {
					if string(m.Value) == "0/2" {
						return fail()
					}
					return nil
				}), options{MaxAttempts: 2, Logger: slog.New(slog.NewTextHandler(&strings.Builder{}, nil))})
				r.applied()
				p.end()
				<-time.After(2 * time.Hour) // for what blocks
				r.wantEffects(0, first[0], first[1], first[3], first[4])
				r.wantEffects(1, other...)
				if dead := r.sink.DeadLetters(); len(dead) != 1 || dead[0].Message.Offset != 2 || dead[0].Cause == "" {
					t.Errorf("dead letters: %+v", dead)
				}
			})
		})
	}
}

func TestOnFailureWhoseErrorPanicsHaltsItsPartition(t *testing.T) {
	for name, fail := range hostiles() {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 2, func(r *rig) {
				first, other := r.fill(0, 3), r.fill(1, 3)
				p := r.start("a", each(func(ctx context.Context, tx tx, m consumer.Message, e epoch.Epoch) error {
					if string(m.Value) == "0/1" {
						return errOutOfStock
					}
					return record(ctx, tx, m, e)
				}).OnFailure(func(context.Context, tx, consumer.Message, epoch.Epoch, error) error { return fail() }), options{MaxAttempts: 1})
				r.pass(20 * time.Second)
				p.end()
				<-time.After(2 * time.Hour) // for what blocks
				r.wantEffects(0, first[0])
				r.wantEffects(1, other...)
				for _, h := range seen[consumer.Halted](p) {
					if h.Reason != consumer.ReasonOnFailureFailed || h.Next != 1 || h.Err.Error() == "" {
						t.Errorf("halted: %+v", h)
					}
				}
				if len(seen[consumer.Halted](p)) == 0 {
					t.Error("nothing has halted")
				}
			})
		})
	}
}

func TestBackgroundWorkWhoseErrorPanicsIsStartedAgain(t *testing.T) {
	for name, fail := range hostiles() {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 1, func(r *rig) {
				want := r.fill(0, 3)
				var called atomic.Int32
				p := r.start("a", each(record).Background(func(ctx context.Context, b consumer.Background[tx]) {
					cancelled, cancel := context.WithCancelCause(ctx)
					if called.Add(1) == 1 {
						_ = b.Do(ctx, func(context.Context, tx) error { return fail() })
						_ = b.Do(cancelled, func(ctx context.Context, _ tx) error {
							cancel(&hostile{is: func() { panic("boom") }})
							<-ctx.Done()
							return context.Cause(ctx)
						})
						panic(fail())
					}
					<-ctx.Done()
					cancel(nil)
				}), options{})
				r.pass(20 * time.Second)
				p.end()
				<-time.After(2 * time.Hour) // for what blocks
				r.wantEffects(0, want...)
				if called.Load() != 2 {
					t.Errorf("called %d times", called.Load())
				}
			})
		})
	}
}

// TestWhatAHandlerReturnsIsFoundInEventsAndInOnFailure: by errors.Is and errors.As,
// although the error is not handed on as it is.
func TestWhatAHandlerReturnsIsFoundInEventsAndInOnFailure(t *testing.T) {
	missing := &fs.PathError{Op: "open", Path: "stock", Err: errOutOfStock}
	for name, fail := range map[string]func() error{
		"returned": func() error { return fmt.Errorf("reserve: %w", missing) },
		"panicked": func() error { panic(missing) },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 1, func(r *rig) {
				r.fill(0, 1)
				found := func(err error) bool {
					var path *fs.PathError
					return errors.Is(err, errOutOfStock) && errors.As(err, &path) && path == missing
				}
				var cause error
				p := r.start("a", each(func(context.Context, tx, consumer.Message, epoch.Epoch) error { return fail() }).
					OnFailure(func(_ context.Context, _ tx, _ consumer.Message, _ epoch.Epoch, err error) error {
						cause = err
						return nil
					}), options{MaxAttempts: 2})
				r.applied()
				p.end()
				if !found(cause) {
					t.Errorf("not found in OnFailure's cause: %v", cause)
				}
				if retried := wantOne[consumer.Retried](p); !found(retried.Err) {
					t.Errorf("not found in an event: %v", retried.Err)
				}
			})
		})
	}
}
