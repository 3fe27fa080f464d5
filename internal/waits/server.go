package waits

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"
)

// Timeout is the default of [Server].Timeout.
const Timeout = 30 * time.Second

// Pauses between tries.
const (
	leastPause = 100 * time.Millisecond
	mostPause  = 2 * time.Second
)

// Waits before the first and between later log lines.
const (
	firstWord = time.Second
	nextWord  = 10 * time.Second
)

// Server is a server to reach. Sources and sinks share it. It logs what it waits for after 1 second
// and then every 10 seconds. It gives up at once on an error that does not pass by itself.
type Server struct {
	Name    string        // for the log, with the address
	Timeout time.Duration // for all tries together
	Log     *slog.Logger

	// Patience returns how long to keep trying after an error, counted from the first try. It
	// returns zero for an error that does not pass by itself. Timeout limits it.
	Patience func(error) time.Duration
}

// Wait calls try until it succeeds, ctx or Timeout ends, or Patience is used up. It returns the
// last error that does not only say that a context ended, and the time that it has tried. The
// context of try ends after Timeout.
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
	pause := New(leastPause, mostPause)
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
		if !Sleep(ctx, min(pause.Next(), left)) { // min: so that the last try is at the end
			return spent(), last.get()
		}
	}
}

// isEnd reports whether err says only that a context ended. A dial that a context has ended returns
// a timeout error.
func isEnd(err error) bool {
	var cut net.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) || errors.As(err, &cut) && cut.Timeout()
}

// announce logs that Wait is waiting, until stop is called. It has its own goroutine because one
// try can hang for long.
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

// IsTLS reports whether err comes from a TLS handshake that cannot succeed: the other side does not
// speak TLS, or one side does not accept the certificate of the other.
func IsTLS(err error) bool {
	var (
		record *tls.RecordHeaderError
		value  tls.RecordHeaderError
		verify *tls.CertificateVerificationError
		alert  tls.AlertError
		signer x509.UnknownAuthorityError
		host   x509.HostnameError
		bad    x509.CertificateInvalidError
		remote *net.OpError
	)
	return errors.As(err, &record) || errors.As(err, &value) || errors.As(err, &verify) || errors.As(err, &alert) ||
		errors.As(err, &signer) || errors.As(err, &host) || errors.As(err, &bad) ||
		errors.As(err, &remote) && remote.Op == "remote error" // crypto/tls: an alert from the other side
}
