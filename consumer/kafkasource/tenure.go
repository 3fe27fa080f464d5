package kafkasource

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/internal/tenures"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/waits"
)

// This file has what package consumer sees of a partition. The decisions are in the files of
// Confirm, Committed, Starts and Read.

// tenure implements [consumer.Tenure], under one membership.
type tenure struct {
	topicPartition
	*tenures.State
	tenures.Position
	s      *Source
	member string // the member id that it was granted to
	began  time.Time

	mu     sync.Mutex
	id     [16]byte  // of the topic, zero until it is known
	theirs committed // position that others had committed when the tenure began
}

var _ consumer.Tenure = (*tenure)(nil)

func (s *Source) newTenure(p topicPartition, member string, previous *tenure) *tenure {
	var before *tenures.State
	if previous != nil {
		before = previous.State
	}
	return &tenure{topicPartition: p, State: tenures.NewState(s.base, before), s: s, member: member, began: time.Now()}
}

// run is the tenure's goroutine. It ends when own has returned.
func (t *tenure) run(own func(context.Context, consumer.Tenure)) {
	t.Run(func(ctx context.Context) {
		if t.prepare() {
			own(ctx, t)
		}
		if until := t.GivenUp(); until != nil {
			t.s.hung(t, until)
			return
		}
		if t.Held() {
			t.s.log.Info("gave up the partition; it stays idle until the group moves it", "topic", t.topic, "partition", t.number)
		}
	})
}

// prepare reads the present id of the topic. It returns false if the tenure ended before.
func (t *tenure) prepare() bool {
	ctx, cancel := t.WhileHeld(t.s.base)
	defer cancel()
	who := t.topicPartition
	defer t.s.troubles.Left(who)
	for pause := waits.New(leastPause, mostPause); ; {
		id, err := t.s.topics.fresh(ctx, t.topic, t.began)
		if err == nil {
			t.s.troubles.Well(who)
			t.mu.Lock()
			t.id = id
			t.mu.Unlock()
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		const what = "cannot start with the partition yet"
		t.s.troubles.Add(t.s.log, slog.LevelWarn, who, what, what, "topic", t.topic, "partition", t.number, "err", err)
		if !waits.Sleep(ctx, pause.Next()) {
			return false
		}
	}
}

// err returns why the tenure no longer holds, or nil. It checks contact itself, because a process
// that was frozen may call err before the timer fires.
func (t *tenure) err() error {
	if t.Lost() == nil && t.s.contact.overdue() {
		t.Lose(errSilence)
		t.s.regainIfDue()
	}
	return t.State.Err()
}

func (t *tenure) topicID() [16]byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.id
}

// Origin implements [consumer.Tenure]. It does not change: if the topic is deleted and created
// again, the tenure is lost, and another tenure begins.
func (t *tenure) Origin() epoch.Origin { return t.s.origin(t.topicPartition, t.topicID()) }

// Term implements [consumer.Tenure].
func (t *tenure) Term() time.Duration { return t.s.contact.lease().term() }

func (t *tenure) unpublished() (committed, bool) {
	at, ok := t.Unpublished()
	if !ok {
		return committed{}, false
	}
	t.warnOtherCommit(at)
	if _, stays := t.Theirs(at); stays {
		return committed{}, false
	}
	return committedOf(at), true
}

// warnOtherCommit logs, once, that others have committed another position than ours.
func (t *tenure) warnOtherCommit(at epoch.Fence) {
	if theirs, say := t.ToSay(at); say {
		t.s.log.Warn(tenures.NotHeeded, "topic", t.topic, "partition", t.number, "committed", theirs, "next", at.Next, "remedy", tenures.Remedy)
	}
}

func (t *tenure) publishedAs(c committed) {
	if c.ours() {
		t.Published(epoch.Offset(c.at))
	}
}
