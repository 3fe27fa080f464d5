package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/epochfence/epochfence/consumer/internal/aside"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/text/troubles"
	"github.com/epochfence/epochfence/operate"
)

// This file decides how often operators are told the same: which failures share a line in the log, when a
// partition whose transactions keep failing is reported as halted (L5), and which ticks of a job are in the
// audit log. It says how the process as a whole is doing: whether it is a member of its group, which the source
// decides, and what a Run that ends waits for. report.go writes the lines of a partition.

// troubleLog logs what is wrong with partitions without flooding the log.
type troubleLog struct{ *troubles.Log[epoch.Partition] }

// notClaimed is the incident that a claim ends.
const notClaimed = "not claimed, trying again"

// add records an incident. Equal failures of a partition share the lines, and so do partitions
// whose databases give the same answer.
func (ts troubleLog) add(l *slog.Logger, level slog.Level, p epoch.Partition, what string, err error, args ...any) {
	key := what + " " + p.String() + ": " + root(err)
	if what == notClaimed || errors.Is(err, epoch.ErrUnhealthy) || errors.Is(err, epoch.ErrTransient) || errors.Is(err, epoch.ErrInDoubt) {
		key = what + ": " + root(err)
	}
	ts.Add(l, level, p, key, what, append(args, "err", err)...)
}

// claimed records that a partition was claimed. It may have other incidents.
func (ts troubleLog) claimed(p epoch.Partition) {
	if ts.Of(p) == notClaimed {
		ts.Well(p)
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

// standstill distinguishes a partition that does not move for long from one that is retried now and then.
type standstill struct {
	since time.Time // begin of the first failed attempt; zero while the partition moves
	said  bool
}

// failed records an attempt that began at began and failed at now. The next one follows after in.
// failed returns true once, within the term of the lease, of which an attempt may take two thirds.
func (s *standstill) failed(began, now time.Time, in, term time.Duration) (say bool) {
	if s.since.IsZero() {
		s.since = began
	}
	if s.said || now.Sub(s.since)+in < term/3 {
		return false
	}
	s.said = true
	return true
}

// moved ends the standstill. The next one is reported again.
func (s *standstill) moved() { *s = standstill{} }

// tickEvery is the least time between two records of ticks of one job with the same outcome (L8).
const tickEvery = time.Minute

// ticks counts what the audit log gets about the ticks of a job.
type ticks struct {
	began    time.Time    // the first attempt of the present tick by this tenure; zero between two ticks
	at       epoch.Offset // of the step that has failed
	attempts int          // of it
	err      error        // of the last one

	recorded time.Time // the last record
	outcome  string    // in it
	since    int       // ticks since then
}

// failed counts a failed attempt of a tick's step. took is its duration.
func (t *ticks) failed(at epoch.Offset, err error, took time.Duration) {
	if at != t.at {
		t.at, t.attempts = at, 0
	}
	t.attempts, t.err = t.attempts+1, err
	if t.began.IsZero() {
		t.began = time.Now().Add(-took)
	}
}

// recordTick records the tick of a job that did has ended.
func (p *partition) recordTick(did *part, took time.Duration) {
	t, a := &p.told.tick, did.advance
	if p.fence.Log != operate.JobLog {
		return
	}
	now := time.Now()
	if len(did.messages) > 0 && t.began.IsZero() {
		t.began = now.Add(-took)
	}
	from := a.From
	if len(did.messages) > 0 {
		from = did.messages[0].Offset
	}
	at, step := operate.JobTime(from)
	if _, steps := operate.JobTime(a.To); steps > 0 { // others follow
		return
	}
	if len(did.messages) == 0 && step == 0 { // ticks were left out
		return
	}
	outcome := "done"
	if did.failed != nil {
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
	case did.failed != nil:
		text += fmt.Sprintf(": %v", did.failed)
	case t.attempts > 0 && t.at == from:
		text += fmt.Sprintf(", attempt %d; the one before failed: %v", t.attempts+1, t.err)
	}
	t.began, t.attempts, t.err = time.Time{}, 0, nil
	if outcome == t.outcome && now.Sub(t.recorded) < tickEvery {
		t.since++
		return
	}
	if t.since > 0 {
		text += fmt.Sprintf("; %d ticks were %s since %s", t.since, t.outcome, t.recorded.UTC().Format(time.RFC3339))
	}
	t.recorded, t.outcome, t.since = now, outcome, 0
	f := p.fence
	p.run.recorder.Add(operate.Decision{
		Kind: operate.DecidedTick, Partition: p.id, Epoch: did.epoch, Claim: f.Claim, Owner: f.Owner,
		From: operate.JobOffset(at), To: a.To, Reason: text,
	})
}

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

// standby is how long a member waits for a partition before it logs that it has none.
const standby = 5 * time.Second

// membership reports each change of this process's membership in the group once.
type membership struct {
	observe func(Event)
	log     *slog.Logger
	idle    func() bool // reports whether this process has no partition

	mu       sync.Mutex
	reported bool // changed was called
	in       bool
	done     bool // Run is over
	waiting  *time.Timer
	cause    error       // why it is no member, once reported
	life     *aside.Life // nil if the sink takes no signs of life
}

// left returns why this process is no member of the group, or nil if it is one or has not joined yet.
func (m *membership) left() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.cause
}

// changed is the joined of Source.Run. Sources may repeat themselves, so an unchanged membership is
// not reported again.
func (m *membership) changed(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if in := err == nil; m.done || m.reported && in == m.in {
		return
	}
	m.reported, m.in, m.cause = true, err == nil, err
	m.life.Changed()
	if m.in {
		m.log.Info("joined the group")
		m.waiting = time.AfterFunc(standby, m.stand)
		m.observe(Joined{})
	} else {
		if m.waiting != nil {
			m.waiting.Stop()
		}
		m.observe(Left{Cause: err})
	}
}

// stand logs that this member has no partition, so that an idle process is not taken for a broken
// one.
func (m *membership) stand() {
	if m.idle() {
		m.log.Info("no partition is assigned to this member of the group: it waits until one that others have is free")
	}
}

// over ends the reports: a source may still call changed while it returns.
func (m *membership) over(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.done = true
	if m.in {
		m.waiting.Stop()
		m.observe(Left{Cause: err})
	}
}

// problems returns what a sign of life says besides that this process lives.
func (r *runner) problems() (all []string) {
	r.hung.mu.Lock()
	calls := r.hung.calls()
	r.hung.mu.Unlock()
	for _, c := range calls {
		all = append(all, c.String())
	}
	if why := r.membership.left(); why != nil {
		all = append(all, fmt.Sprintf("not a member of the group: %v", why))
	}
	return all
}

// underWay lists the transactions under way, for operators who wait for them.
type underWay struct {
	mu   sync.Mutex
	open map[*open]struct{}
}

// open is a transaction under way.
type open struct {
	Overdue     // the report if it becomes overdue
	more    int // partitions that share it
	began   time.Time
}

func (u *underWay) add(o Overdue, more int) (done func()) {
	t := &open{o, more, time.Now()}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.open == nil {
		u.open = map[*open]struct{}{}
	}
	u.open[t] = struct{}{}
	return func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		delete(u.open, t)
	}
}

func (u *underWay) list() []*open {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Collect(maps.Keys(u.open))
}

// patienceAtTheEnd is how long a Run that ends waits before it logs what it waits for.
const patienceAtTheEnd = 2 * time.Second

// sayWhatIsWaitedFor logs from time to time what delays the end of Run, until over is closed.
func (r *runner) sayWhatIsWaitedFor(over <-chan struct{}) {
	began := time.Now()
	for wait := patienceAtTheEnd; ; wait *= 2 {
		timer := time.NewTimer(wait)
		select {
		case <-over:
			timer.Stop()
			return
		case <-timer.C:
		}
		open := r.underWay.list()
		for _, t := range open {
			r.log(t.Partition).Info("stopping: waiting for the end of a transaction", "from", t.From, "to", t.To,
				"partitions_beside", t.more, "for", time.Since(t.began).Round(time.Millisecond), "batch_timeout", t.Timeout)
		}
		if len(open) == 0 {
			r.Logger.Info("stopping: no transaction is under way; waiting for the source to give back what it holds",
				"for", time.Since(began).Round(time.Millisecond))
		}
	}
}
