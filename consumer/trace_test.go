package consumer_test

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"testing"
)

// lastRecords is how many of its last records a test that fails shows.
const lastRecords = 200

// tracer keeps the last records that were logged, down to LevelTrace, and shows
// them if the test fails.
type tracer struct {
	*kept
	attrs []slog.Attr
}

type kept struct {
	mu   sync.Mutex
	last []slog.Record
}

func newTracer(t *testing.T) tracer {
	k := &kept{}
	t.Cleanup(func() {
		if t.Failed() {
			h := slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug - 4})
			for _, r := range k.last {
				_ = h.Handle(context.Background(), r)
			}
		}
	})
	return tracer{kept: k}
}

func (tracer) Enabled(context.Context, slog.Level) bool { return true }

func (h tracer) Handle(_ context.Context, r slog.Record) error {
	r = r.Clone()
	r.AddAttrs(h.attrs...)
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.last) == lastRecords {
		h.last = h.last[1:]
	}
	h.last = append(h.last, r)
	return nil
}

func (h tracer) WithAttrs(as []slog.Attr) slog.Handler {
	h.attrs = slices.Concat(h.attrs, as)
	return h
}

func (h tracer) WithGroup(string) slog.Handler { return h }
