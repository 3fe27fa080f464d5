package consumer

import (
	"context"
	"log/slog"

	"github.com/epochfence/epochfence/epoch"
)

// This file decides how offsets look in log lines: as the tenure describes them, or as numbers.
// report.go writes the lines.

// named returns a logger that writes offsets as the tenure describes them, if it does: those of a
// job are times.
func named(l *slog.Logger, t Tenure) *slog.Logger {
	if d, ok := t.(describer); ok {
		return slog.New(&namingHandler{l.Handler(), d})
	}
	return l
}

// describer is a Tenure whose offsets mean something to operators, such as those of package
// schedule.
type describer interface{ DescribeOffset(o epoch.Offset) string }

type namingHandler struct {
	slog.Handler
	describer
}

// Handle replaces attributes of type epoch.Offset. Negative ones stay numbers: they stand for "no
// position".
func (h *namingHandler) Handle(ctx context.Context, r slog.Record) error {
	named := slog.NewRecord(r.Time, r.Level, r.Message, r.PC)
	r.Attrs(func(a slog.Attr) bool {
		if o, is := a.Value.Any().(epoch.Offset); is && o >= 0 {
			a.Value = slog.StringValue(h.DescribeOffset(o))
		}
		named.AddAttrs(a)
		return true
	})
	return h.Handler.Handle(ctx, named)
}

func (h *namingHandler) WithAttrs(as []slog.Attr) slog.Handler {
	return &namingHandler{h.Handler.WithAttrs(as), h.describer}
}

func (h *namingHandler) WithGroup(name string) slog.Handler {
	return &namingHandler{h.Handler.WithGroup(name), h.describer}
}
