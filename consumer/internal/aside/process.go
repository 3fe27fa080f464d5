package aside

import (
	"log/slog"
	"sync"
	"time"

	"github.com/epochfence/epochfence/epoch"
)

// This file says how the process as a whole is doing: whether it is a member of its group, which the source
// decides, and what a Run that ends waits for.

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
