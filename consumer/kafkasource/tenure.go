package kafkasource

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/internal/tenures"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/backoff"
)

// tenure is one time with one partition, under one membership.
type tenure struct {
	topicPartition
	*tenures.State
	tenures.Position
	s      *Source
	member string // the member id it was granted to
	began  time.Time

	mu     sync.Mutex
	id     [16]byte  // of the topic, zero until it is known
	feed   *feed     // of the Read under way, or of the last one
	theirs committed // what others had committed when the tenure began
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

// prepare learns which log the partition is of, as of now. It returns false if
// the tenure ended before that was known.
func (t *tenure) prepare() bool {
	ctx, cancel := t.WhileHeld(t.s.base)
	defer cancel()
	who := t.topicPartition
	defer t.s.troubles.Left(who)
	for pause := backoff.New(leastPause, mostPause); ; {
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
		if !backoff.Sleep(ctx, pause.Next()) {
			return false
		}
	}
}

// err returns why the tenure no longer holds, or nil. It does not wait for a
// timer to notice that contact is lost: a process that was stopped may get here
// first.
func (t *tenure) err() error {
	if t.Lost() == nil && t.s.contact.overdue() {
		t.Lose(errSilence)
		t.s.regainIfOwed()
	}
	return t.State.Err()
}

func (t *tenure) topicID() [16]byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.id
}

// Origin implements [consumer.Tenure]. It does not change: when the topic is
// deleted and created again the tenure is lost, and another one begins.
func (t *tenure) Origin() epoch.Origin { return t.s.origin(t.topicPartition, t.topicID()) }

// Term implements [consumer.Tenure].
func (t *tenure) Term() time.Duration { return t.s.contact.lease().term() }

// unpublished returns the position to commit, if the group has not been told of it.
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

// warnOtherCommit says, once, that what others have committed is not where we are.
func (t *tenure) warnOtherCommit(at epoch.Fence) {
	if theirs, say := t.ToSay(at); say {
		t.s.log.Warn(tenures.NotHeeded, "topic", t.topic, "partition", t.number, "committed", theirs, "next", at.Next, "remedy", tenures.Remedy)
	}
}

// publishedAs takes note of what the group has taken.
func (t *tenure) publishedAs(c committed) {
	if c.ours() {
		t.Published(epoch.Offset(c.at))
	}
}
