package consumer

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/epochfence/epochfence/consumer/internal/aside"
)

// This file says how the process as a whole is doing: whether it is a member of its group, which the source
// decides; what a sign of life says; and what a Run that ends waits for.

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
