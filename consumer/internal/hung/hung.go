// Package hung remembers which messages calls have hung on, from what this process knows and what other owners
// of the partition have left in the audit log.
package hung

import (
	"errors"
	"sync"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

// This file decides which message is tried alone because it may hang, and how many attempts it has had (L7).
// Package consumer says when a call hangs, and what follows when the attempts are used up.

// Message is a message that a call hung on, or the messages in [First, Last], one of which
// hangs.
type Message struct {
	First, Last epoch.Offset
	Attempts    int   // if it is a single message
	Failed      error // why OnFailure was called for it, if it was OnFailure that hung
	Recorded    bool  // the sink's audit log has the last hang
}

// Messages are those that calls of one Run have hung on. The zero value is none. Methods are safe for
// concurrent use.
type Messages struct {
	mu sync.Mutex
	of map[epoch.Partition]Message
}

// Blame records that a call hangs on messages. For a single message, that is a failed attempt.
func (ms *Messages) Blame(p epoch.Partition, m Message) {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	if was := ms.of[p]; m.First == m.Last && was.First == m.First && was.Last == m.Last {
		m.Attempts = max(m.Attempts, was.Attempts)
	}
	if m.First == m.Last {
		m.Attempts++
	}
	ms.set(p, m)
}

// Of returns the message that a call for the partition has hung on, if one is remembered.
func (ms *Messages) Of(p epoch.Partition) (Message, bool) {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	m, ok := ms.of[p]
	return m, ok
}

// Forget drops the message, which is applied.
func (ms *Messages) Forget(p epoch.Partition) {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	delete(ms.of, p)
}

// Recorded notes that the audit log has the last hang of a partition. From then on the log is the
// truth: if it no longer has the hang, an operator has allowed another try.
func (ms *Messages) Recorded(p epoch.Partition) {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	m := ms.of[p]
	m.Recorded = true
	ms.set(p, m)
}

// Learn takes over an audit log, and reports whether a message at or above next has hung.
func (ms *Messages) Learn(p epoch.Partition, log []operate.Decision, next epoch.Offset) bool {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	m := recalled(ms.of[p], log, next)
	if !m.exists() {
		delete(ms.of, p)
		return false
	}
	ms.set(p, m)
	return true
}

func (ms *Messages) set(p epoch.Partition, m Message) {
	if ms.of == nil {
		ms.of = map[epoch.Partition]Message{}
	}
	ms.of[p] = m
}

// exists reports whether m is of a message: the zero value is none.
func (m Message) exists() bool { return m.Attempts > 0 || m.First < m.Last }

// hasRangeOf reports whether m and n are of the same message, or the same range.
func (m Message) hasRangeOf(n Message) bool {
	return m.exists() && n.exists() && m.First == n.First && m.Last == n.Last
}

// recalled combines what this process knows of the messages from next on with the decisions of
// [operate.Records.Hangs]. If the log had what this process knows and no longer has it, an
// operator has let the partition continue, and recalled drops it. This process may know of more
// attempts, because the log has no failures other than hangs.
func recalled(known Message, log []operate.Decision, next epoch.Offset) Message {
	var newest Message
	for _, d := range log {
		if d.From < 0 || d.To <= next { // of no message, or of one that is applied
			continue
		}
		m := Message{First: d.From, Last: d.To - 1, Recorded: true}
		if d.Kind == operate.DecidedOnFailureHang {
			m.Failed = errors.New(d.Reason)
		}
		if m.First == m.Last {
			m.Attempts = 1
		}
		if !newest.exists() {
			newest = m
			continue
		}
		if !newest.hasRangeOf(m) {
			break
		}
		newest.Attempts += m.Attempts
	}
	if newest.hasRangeOf(known) {
		newest.Attempts = max(newest.Attempts, known.Attempts)
		known.Attempts = newest.Attempts
	}
	if known.exists() && !known.Recorded {
		return known
	}
	return newest
}
