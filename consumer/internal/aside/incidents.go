package aside

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/text/troubles"
	"github.com/epochfence/epochfence/operate"
)

// This file decides how often operators read the same about a partition: which failures share a line in
// the log, when a partition whose transactions keep failing is reported as halted (L5), and which ticks of
// a job are in the audit log. What failed, and what follows, is decided in package consumer.

// Log logs what is wrong with partitions without flooding the log.
type Log struct {
	*troubles.Log[epoch.Partition]
}

// NewLog returns a Log that writes to l. Close it.
func NewLog(l *slog.Logger) Log { return Log{troubles.New[epoch.Partition](l, "partitions")} }

// NotClaimed is an incident that the next claim ends. Partitions share its lines.
const NotClaimed = "not claimed, trying again"

// Add records an incident. Equal failures of a partition share the lines, and so do partitions
// whose databases give the same answer.
func (l Log) Add(to *slog.Logger, level slog.Level, p epoch.Partition, what string, err error, args ...any) {
	key := what + " " + p.String() + ": " + root(err)
	if what == NotClaimed || errors.Is(err, epoch.ErrUnhealthy) || errors.Is(err, epoch.ErrTransient) || errors.Is(err, epoch.ErrInDoubt) {
		key = what + ": " + root(err)
	}
	l.Log.Add(to, level, p, key, what, append(args, "err", err)...)
}

// Claimed records that a partition was claimed. It may have other incidents.
func (l Log) Claimed(p epoch.Partition) {
	if l.Of(p) == NotClaimed {
		l.Well(p)
	}
}

// root returns the text of the innermost error, which partitions with the same cause share.
func root(err error) string {
	for {
		switch e := err.(type) { //nolint:errorlint // the chain itself is walked
		case interface{ Unwrap() error }:
			inner := e.Unwrap()
			if inner == nil {
				return err.Error()
			}
			err = inner
		case interface{ Unwrap() []error }:
			inner := e.Unwrap()
			if len(inner) == 0 {
				return err.Error()
			}
			err = inner[len(inner)-1]
		default:
			return err.Error()
		}
	}
}

// Standstill distinguishes a partition that does not move for long from one that is retried now and then.
type Standstill struct {
	Since    time.Time // begin of the first failed attempt; zero while the partition moves
	Reported bool
}

// Failed records an attempt that began at began and failed at now. The next one follows after in.
// Failed returns true once, within the term of the lease, of which an attempt may take two thirds.
func (s *Standstill) Failed(began, now time.Time, in, term time.Duration) (say bool) {
	if s.Since.IsZero() {
		s.Since = began
	}
	if s.Reported || now.Sub(s.Since)+in < term/3 {
		return false
	}
	s.Reported = true
	return true
}

// Moved ends the standstill. The next one is reported again.
func (s *Standstill) Moved() { *s = Standstill{} }

// tickEvery is the least time between two records of ticks of one job with the same outcome (L8).
const tickEvery = time.Minute

// Ticks counts what the audit log gets about the ticks of a job.
type Ticks struct {
	began    time.Time    // the first attempt of the present tick by this tenure; zero between two ticks
	at       epoch.Offset // of the step that has failed
	attempts int          // of it
	err      error        // of the last one

	recorded time.Time // the last record
	outcome  string    // in it
	since    int       // ticks since then
}

// Failed counts a failed attempt of a tick's step. took is its duration.
func (t *Ticks) Failed(at epoch.Offset, err error, took time.Duration) {
	if at != t.at {
		t.at, t.attempts = at, 0
	}
	t.attempts, t.err = t.attempts+1, err
	if t.began.IsZero() {
		t.began = time.Now().Add(-took)
	}
}

// Moved records a transaction that has moved the job from a.From to a.To with messages. failed is why
// OnFailure was called, if it was. Moved returns what the audit log gets, if a tick has ended and its record
// is due.
func (t *Ticks) Moved(a epoch.Advance, messages []epoch.Message, failed error, took time.Duration) (record bool, d operate.Decision) {
	now, from := time.Now(), a.From
	if len(messages) > 0 {
		from = messages[0].Offset
		if t.began.IsZero() {
			t.began = now.Add(-took)
		}
	}
	at, step := operate.JobTime(from)
	if _, steps := operate.JobTime(a.To); steps > 0 { // others follow
		return false, d
	}
	if len(messages) == 0 && step == 0 { // ticks were left out
		return false, d
	}
	outcome := "done"
	if failed != nil {
		outcome = "failed, OnFailure has taken it"
	}
	text := outcome
	if !t.began.IsZero() {
		text += fmt.Sprintf(", begun %s, took %v", t.began.UTC().Format(time.RFC3339), now.Sub(t.began).Round(time.Millisecond))
	}
	if step > 0 {
		text += fmt.Sprintf(", %d steps", step)
	}
	switch {
	case failed != nil:
		text += fmt.Sprintf(": %v", failed)
	case t.attempts > 0 && t.at == from:
		text += fmt.Sprintf(", attempt %d; the one before failed: %v", t.attempts+1, t.err)
	}
	t.began, t.attempts, t.err = time.Time{}, 0, nil
	if outcome == t.outcome && now.Sub(t.recorded) < tickEvery {
		t.since++
		return false, d
	}
	if t.since > 0 {
		text += fmt.Sprintf("; %d ticks were %s since %s", t.since, t.outcome, t.recorded.UTC().Format(time.RFC3339))
	}
	t.recorded, t.outcome, t.since = now, outcome, 0
	return true, operate.Decision{Kind: operate.DecidedTick, From: operate.JobOffset(at), To: a.To, Reason: text}
}

// Named returns a logger that writes offsets as the tenure describes them, if it does: those of a
// job are times.
func Named(l *slog.Logger, tenure any) *slog.Logger {
	if d, ok := tenure.(describer); ok {
		return slog.New(&namingHandler{l.Handler(), d})
	}
	return l
}

// describer is a consumer.Tenure whose offsets mean something to operators, such as those of package
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
