package consumer

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/epochfence/epochfence/internal/backoff"
	"github.com/epochfence/epochfence/operate"
)

const (
	// aliveEvery is the least wait between two signs of life. A longer term of a lease raises it.
	aliveEvery = 15 * time.Second

	aliveTimeout = 10 * time.Second

	// failedSigns is how many failures in a row cause a warning.
	failedSigns = 2
)

// life sends signs of life to the sink. Nothing waits for them, and nothing else fails with them.
type life struct {
	process operate.Process
	alive   func(ctx context.Context, p operate.Process) error
	gone    func(ctx context.Context, p operate.Process) error
	log     *slog.Logger
	every   atomic.Int64 // a duration
	failed  int          // in a row
}

func newLife(source Source, alive, gone func(context.Context, operate.Process) error, log *slog.Logger) *life {
	group, name := source.Identity()
	host, err := os.Hostname()
	if err != nil {
		host = "unknown-host"
	}
	l := &life{alive: alive, gone: gone, log: log}
	l.process = operate.Process{Run: rand.Text(), Group: group, Name: name, Host: host, PID: os.Getpid(), Version: version()}
	l.every.Store(int64(aliveEvery))
	return l
}

// version returns the main module of the user's program, and the commit it was built from.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	v := info.Main.Path
	if info.Main.Version != "" {
		v += "@" + info.Main.Version
	}
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			v += fmt.Sprintf(" %.12s", s.Value)
		case s.Key == "vcs.modified" && s.Value == "true":
			v += " modified"
		}
	}
	return v
}

// leased raises the wait to the term of a lease. A nil life does nothing.
func (l *life) leased(term time.Duration) {
	for l != nil {
		now := l.every.Load()
		if int64(term) <= now || l.every.CompareAndSwap(now, int64(term)) {
			return
		}
	}
}

func (l *life) live(ctx context.Context) {
	for ctx.Err() == nil {
		l.sign(ctx)
		timer := time.NewTimer(time.Duration(l.every.Load()))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastRecords)
	defer cancel()
	if err := l.gone(ctx, l.process); err != nil {
		l.log.Warn("could not tell the sink that this process ends, it will be taken for one that has died", "err", err)
	}
}

// sign gives one sign of life. When Run ends it is waited for, because a request that was cancelled may
// be carried out after that of gone.
func (l *life) sign(run context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(run), aliveTimeout)
	defer cancel()
	defer context.AfterFunc(run, func() {
		if backoff.Sleep(ctx, lastRecords) {
			cancel()
		}
	})()
	l.process.Every = time.Duration(l.every.Load())
	switch err := l.alive(ctx, l.process); {
	case err == nil && l.failed >= failedSigns:
		l.log.Info("the sink has a sign of life of this process again", "failed", l.failed)
		l.failed = 0
	case err == nil:
		l.failed = 0
	default:
		if l.failed++; l.failed == failedSigns {
			l.log.Warn("the sink takes no sign of life of this process, which will be taken for dead", "signs", l.failed, "err", err)
		}
	}
}
