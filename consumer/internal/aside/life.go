package aside

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/waits"
	"github.com/epochfence/epochfence/operate"
)

// This file sends signs of life to the sink, with the problems of this process. Operators' tools
// compare them with the owners of fences. They decide nothing: ownership is the fence's alone. It also says how the
// process as a whole is doing: whether it is a member of its group, which the source decides, and what a Run that ends
// waits for.

const (
	// aliveEvery is the least wait between two signs of life. A longer term of a lease raises it.
	aliveEvery = 15 * time.Second

	aliveTimeout = 10 * time.Second

	// failedSigns is how many failures in a row cause a warning.
	failedSigns = 2

	// oldSnapshot is the age of a snapshot, in transactions, that causes a warning.
	oldSnapshot = 1_000_000
)

// Life sends signs of life to the sink. Nothing waits for them, and nothing else fails with them.
type Life struct {
	process operate.Process
	alive   func(ctx context.Context, p operate.Process) error
	gone    func(ctx context.Context, p operate.Process) error
	log     *slog.Logger
	every   atomic.Int64 // a duration
	failed  int          // in a row
	signs   int          // that the sink has taken

	problems func() []string
	wake     chan struct{}

	// Snapshots returns the oldest snapshots that are held in the sink, and Held is called with them at each sign of
	// life. Both are nil if the sink knows none.
	Snapshots func(ctx context.Context) ([]operate.Snapshot, error)
	Held      func(oldest []operate.Snapshot)
	Count     func(ctx context.Context) // is called with one sign in four, because it costs the sink more

	old operate.Snapshot // the one that was logged
}

// NewProcess returns one Run of this process, which has the name in the group.
func NewProcess(group, name string) operate.Process {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown-host"
	}
	return operate.Process{Run: rand.Text(), Group: group, Name: name, Host: host, PID: os.Getpid(), Version: version()}
}

// NewLife returns the life of a process. problems returns what a sign says besides that the process lives.
func NewLife(process operate.Process, alive, gone func(context.Context, operate.Process) error, problems func() []string, log *slog.Logger) *Life {
	l := &Life{process: process, alive: alive, gone: gone, log: log, problems: problems, wake: make(chan struct{}, 1)}
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

// Leased raises the wait to the term of a lease. A nil Life does nothing.
func (l *Life) Leased(term time.Duration) {
	for l != nil {
		now := l.every.Load()
		if int64(term) <= now || l.every.CompareAndSwap(now, int64(term)) {
			return
		}
	}
}

// Changed makes the next sign of life come at once, because the problems have changed. A nil Life does
// nothing.
func (l *Life) Changed() {
	if l == nil {
		return
	}
	waits.Notify(l.wake)
}

// Live sends signs of life until ctx ends, and then reports the end, so that operators can
// distinguish an orderly end from a process that has died.
func (l *Life) Live(ctx context.Context) {
	for ctx.Err() == nil {
		l.sign(ctx)
		timer := time.NewTimer(time.Duration(l.every.Load()))
		select {
		case <-timer.C:
		case <-l.wake:
		case <-ctx.Done():
		}
		timer.Stop()
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastRecords)
	defer cancel()
	if err := l.gone(ctx, l.process); err != nil {
		l.log.Warn("could not report to the sink that this process ends, it will be taken for one that has died", "err", err)
	}
}

// sign gives one sign of life. When Run ends it is waited for, because a request that was cancelled may
// be carried out after that of gone.
func (l *Life) sign(run context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(run), aliveTimeout)
	defer cancel()
	defer context.AfterFunc(run, func() {
		if waits.Sleep(ctx, lastRecords) {
			cancel()
		}
	})()
	l.process.Every, l.process.Problems = time.Duration(l.every.Load()), oneEach(l.problems())
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
		return
	}
	if l.signs++; l.signs%4 == 1 {
		l.Count(ctx)
	}
	l.lookAtSnapshots(ctx)
}

// lookAtSnapshots warns, once for each holder, about a transaction of any program that keeps the
// database from removing old row versions. Each commit replaces the rows of fences, so their table
// would grow.
func (l *Life) lookAtSnapshots(ctx context.Context) {
	if l.Snapshots == nil {
		return
	}
	held, err := l.Snapshots(ctx)
	if err != nil {
		return // the next sign of life shows whether the sink answers
	}
	l.Held(held)
	var old operate.Snapshot
	for _, s := range held {
		if s.Transactions >= oldSnapshot && s.Transactions > old.Transactions {
			old = s
		}
	}
	if same := old.Holder == l.old.Holder && old.Name == l.old.Name && old.PID == l.old.PID; same {
		return
	}
	l.old = old
	if old.Holder == "" {
		l.log.Info("no old snapshot is held in the sink's database any more")
		return
	}
	l.log.Warn("an old snapshot is held in the sink's database: no row version that was replaced since is removed, and tables grow; see epochfence doctor",
		"holder", old.Holder, "name", old.Name, "pid", old.PID, "transactions", old.Transactions)
}

const (
	// mostProblems limits the lines of a sign of life, and maxProblem the bytes of a line.
	mostProblems = 8
	maxProblem   = 400
)

// oneEach returns the problems as lines, cut to what a row of the sink should hold (L8).
func oneEach(problems []string) string {
	more := len(problems) - mostProblems
	if more > 0 {
		problems = append(problems[:mostProblems:mostProblems], fmt.Sprintf("and %d more", more))
	}
	lines := make([]string, len(problems))
	for i, p := range problems {
		if p = strings.Join(strings.Fields(strings.ToValidUTF8(p, "\uFFFD")), " "); len(p) > maxProblem {
			p = strings.ToValidUTF8(p[:maxProblem], "") + "…"
		}
		lines[i] = p
	}
	return strings.Join(lines, "\n")
}

// standby is how long a member waits for a partition before it logs that it has none.
const standby = 5 * time.Second

// Membership reports each change of this process's membership in the group once.
type Membership struct {
	Joined func()
	Left   func(cause error)
	Idle   func() bool // reports whether this process has no partition
	Log    *slog.Logger
	Life   *Life // nil if the sink takes no signs of life

	mu       sync.Mutex
	reported bool // Changed was called
	in       bool
	done     bool // Run is over
	waiting  *time.Timer
	cause    error // why it is no member, once reported
}

// Cause returns why this process is no member of the group, or nil if it is one or has not joined yet.
func (m *Membership) Cause() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.cause
}

// Changed is the joined of consumer.Source.Run. Sources may repeat themselves, so an unchanged membership is
// not reported again.
func (m *Membership) Changed(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if in := err == nil; m.done || m.reported && in == m.in {
		return
	}
	m.reported, m.in, m.cause = true, err == nil, err
	m.Life.Changed()
	if m.in {
		m.Log.Info("joined the group")
		m.waiting = time.AfterFunc(standby, m.stand)
		m.Joined()
	} else {
		if m.waiting != nil {
			m.waiting.Stop()
		}
		m.Left(err)
	}
}

// stand logs that this member has no partition, so that an idle process is not taken for a broken
// one.
func (m *Membership) stand() {
	if m.Idle() {
		m.Log.Info("no partition is assigned to this member of the group: it waits until one that others have is free")
	}
}

// Over ends the reports: a source may still call Changed while it returns.
func (m *Membership) Over(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.done = true
	if m.in {
		m.waiting.Stop()
		m.Left(err)
	}
}

// UnderWay lists the transactions under way, for operators who wait for them.
type UnderWay struct{ open sync.Map } // by *Transaction

// Transaction is a transaction under way.
type Transaction struct {
	Partition epoch.Partition
	From, To  epoch.Offset
	Timeout   time.Duration
	Beside    int // partitions that share it
	began     time.Time
}

// Add lists a transaction until Done.
func (u *UnderWay) Add(t *Transaction) *Transaction {
	t.began = time.Now()
	u.open.Store(t, nil)
	return t
}

// Done ends what Add began.
func (u *UnderWay) Done(t *Transaction) { u.open.Delete(t) }

// patienceAtTheEnd is how long a Run that ends waits before it logs what it waits for.
const patienceAtTheEnd = 2 * time.Second

// LogWaits logs from time to time what delays the end of Run, until over is closed.
func (u *UnderWay) LogWaits(log func(epoch.Partition) *slog.Logger, all *slog.Logger, over <-chan struct{}) {
	began := time.Now()
	for wait := patienceAtTheEnd; ; wait *= 2 {
		timer := time.NewTimer(wait)
		select {
		case <-over:
			timer.Stop()
			return
		case <-timer.C:
		}
		none := true
		for key := range u.open.Range {
			t, _ := key.(*Transaction)
			none = false
			log(t.Partition).Info("stopping: waiting for the end of a transaction", "from", t.From, "to", t.To,
				"partitions_beside", t.Beside, "for", time.Since(t.began).Round(time.Millisecond), "batch_timeout", t.Timeout)
		}
		if none {
			all.Info("stopping: no transaction is under way; waiting for the source to give back what it holds",
				"for", time.Since(began).Round(time.Millisecond))
		}
	}
}
