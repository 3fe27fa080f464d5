// Package reach waits for a server that does not answer yet when a program
// starts. Sources and sinks do it alike: they try again for a while, say what they
// wait for after a second and then every ten, and give up at once where only a
// person can help.
package reach

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/epochfence/epochfence/internal/backoff"
)

// Timeout is how long a start waits unless it is told otherwise.
const Timeout = 30 * time.Second

// How long to wait before the next try.
const (
	leastPause = 100 * time.Millisecond
	mostPause  = 2 * time.Second
)

// When it is said what is waited for.
const (
	firstWord = time.Second
	nextWord  = 10 * time.Second
)

// Server is what a program wants to reach.
type Server struct {
	Name    string        // what is waited for, with its address, for the log
	Timeout time.Duration // how long in all
	Log     *slog.Logger

	// Patience is how long it makes sense to wait on an error, up to Timeout:
	// zero for one that does not pass by itself.
	Patience func(error) time.Duration
}

// Wait calls try until it succeeds, ctx ends, or it makes no more sense. It
// returns the last error that says more than that time is up, and for how long it
// has tried, which is no more than Timeout. The context of try ends with Timeout.
func (s Server) Wait(ctx context.Context, try func(context.Context) error) (tried time.Duration, err error) {
	began := time.Now()
	spent := func() time.Duration { return min(time.Since(began).Round(100*time.Millisecond), s.Timeout) }
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	deadline, _ := ctx.Deadline()
	over := func() bool {
		if !time.Now().Before(deadline) {
			<-ctx.Done() // a socket's deadline can end a dial before the context's timer has fired
		}
		return ctx.Err() != nil
	}
	var last lastError
	defer s.announce(&last, spent)()
	pause := backoff.New(leastPause, mostPause)
	for {
		err := try(ctx)
		if err == nil {
			return spent(), nil
		}
		if !over() || last.get() == nil || !isEnd(err) {
			last.set(err)
		}
		left := s.Patience(last.get()) - time.Since(began)
		if over() || left <= 0 {
			return spent(), last.get()
		}
		if !backoff.Sleep(ctx, min(pause.Next(), left)) { // to try once more at the end
			return spent(), last.get()
		}
	}
}

// isEnd reports whether err says only that a context has ended. A dial that is cut
// off by one says that it timed out.
func isEnd(err error) bool {
	var cut net.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) || errors.As(err, &cut) && cut.Timeout()
}

// announce says now and then that the server is waited for, until stop is called:
// also while a try continues that gets no answer.
func (s Server) announce(last *lastError, spent func() time.Duration) (stop func()) {
	done := make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		timer := time.NewTimer(firstWord)
		defer timer.Stop()
		for {
			select {
			case <-timer.C:
			case <-done:
				return
			}
			why := []any{"server", s.Name, "for", spent(), "of", s.Timeout}
			if err := last.get(); err != nil {
				why = append(why, "err", err)
			}
			s.Log.Warn("waiting for the server to answer", why...)
			timer.Reset(nextWord)
		}
	})
	return func() { close(done); running.Wait() }
}

// lastError is of the last try that says anything.
type lastError struct {
	mu  sync.Mutex
	err error
}

func (l *lastError) get() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

func (l *lastError) set(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = err
}
