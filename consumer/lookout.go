package consumer

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/epochfence/epochfence/epoch"
)

// lookout looks at the fences of partitions that have had nothing to commit for a
// while. A commit finds out by itself that its fence is not as it was; where none
// comes, nobody would notice that the sink went back, or that the claim is lost.
type lookout[TX any] struct {
	run  *runner[TX]
	ctx  context.Context
	stop context.CancelFunc
	wake chan struct{} // there is a first partition
	all  chan struct{} // look at all, now

	mu    sync.Mutex
	posts map[*post]struct{}
}

// post is a partition that is being consumed.
type post struct {
	term      time.Duration
	interrupt func() // ends the read under way

	// Guarded by the lookout's mutex.
	fence epoch.Fence
	quiet bool  // no transaction of messages is under way or waits
	aged  bool  // it has been so since the last round
	turn  int   // counts the transactions
	found error // what ends the claim
}

const (
	// lookAtOnce is how many fences are read at a time.
	lookAtOnce = 1000

	// lookRest is the least time between two looks at everything.
	lookRest = time.Second
)

func newLookout[TX any](base context.Context, r *runner[TX]) *lookout[TX] {
	l := &lookout[TX]{run: r, wake: make(chan struct{}, 1), all: make(chan struct{}, 1), posts: map[*post]struct{}{}}
	l.ctx, l.stop = context.WithCancel(base)
	return l
}

// begin has a partition looked after, which is quiet until it says otherwise.
func (l *lookout[TX]) begin(f epoch.Fence, term time.Duration, interrupt func()) *post {
	p := &post{term: term, interrupt: interrupt, fence: f, quiet: true}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.posts[p] = struct{}{}
	if len(l.posts) == 1 {
		signal(l.wake)
	}
	return p
}

// end returns what was found, if anything was.
func (l *lookout[TX]) end(p *post) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.posts, p)
	return p.found
}

// busy says that p has something to commit, unless something was found.
func (l *lookout[TX]) busy(p *post) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	p.quiet, p.aged = false, false
	p.turn++
	return p.found
}

// quiet says that all is committed, and where the fence stands.
func (l *lookout[TX]) quiet(p *post, f epoch.Fence) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p.quiet, p.fence = true, f
}

// lookAtAll has all quiet partitions looked at now: there is reason to believe
// that the sink went back.
func (l *lookout[TX]) lookAtAll() { signal(l.all) }

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (l *lookout[TX]) serve() {
	replaced := l.run.sink.Replaced()
	for l.ctx.Err() == nil {
		var due <-chan time.Time
		if in := l.interval(); in > 0 {
			due = time.After(in)
		}
		select {
		case <-l.ctx.Done():
		case <-l.wake:
		case <-due:
			l.round(false)
		case <-l.all:
			l.round(true)
		case <-replaced:
			replaced = l.run.sink.Replaced() // before the look: what changes during it is news
			l.round(true)
		}
	}
}

// interval is the time to the next round, or zero if there is nobody to look
// after. A partition that falls quiet is looked at within its term or a third
// more. Jitter keeps processes that started together apart.
func (l *lookout[TX]) interval() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	var least time.Duration
	for p := range l.posts {
		if least == 0 || p.term < least {
			least = p.term
		}
	}
	if least == 0 {
		return 0
	}
	return least/3 + rand.N(least/3+1)
}

// watched is a quiet partition as it was before a look.
type watched struct {
	post      *post
	partition epoch.Partition
	turn      int
}

// round looks at the partitions that have been quiet since the last round, or at
// all that are quiet.
func (l *lookout[TX]) round(all bool) {
	due := l.due(all)
	for chunk := range slices.Chunk(due, lookAtOnce) {
		l.look(chunk)
	}
	if all {
		select {
		case <-time.After(lookRest):
		case <-l.ctx.Done():
		}
	}
}

func (l *lookout[TX]) due(all bool) []watched {
	l.mu.Lock()
	defer l.mu.Unlock()
	var due []watched
	for p := range l.posts {
		if p.quiet && (all || p.aged) {
			due = append(due, watched{p, p.fence.Partition, p.turn})
		}
		p.aged = p.quiet
	}
	return due
}

// look reads the fences of some partitions and ends the claims of those that are
// not as they were. A read that fails says nothing.
func (l *lookout[TX]) look(due []watched) {
	ps := make([]epoch.Partition, len(due))
	for i, w := range due {
		ps[i] = w.partition
	}
	ctx, cancel := context.WithTimeout(l.ctx, due[0].post.term)
	defer cancel()
	now, err := l.run.sink.Look(ctx, ps)
	if err != nil {
		l.run.Logger.Debug("could not look at the fences of quiet partitions", "partitions", len(ps), "err", err)
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, w := range due {
		p := w.post
		if _, here := l.posts[p]; !here || !p.quiet || p.turn != w.turn {
			continue // its next transaction tells, or the last one has
		}
		f, err := now.Read(w.partition)
		if err == nil {
			err = p.fence.Still(f)
		}
		if err != nil {
			p.found = err
			p.interrupt()
		}
	}
}

// foundOut is what something found by a look means to the claim.
func foundOut(err error) outcome {
	out, _ := refusal(err)
	if out.end == applied {
		out = outcome{end: inDoubt, err: err}
	}
	return out
}

// fenceAt is the fence that a refusal shows, of a partition whose fence we left
// as ours.
func fenceAt(ours epoch.Fence, err error) (now epoch.Fence, ok bool) {
	var (
		back  *epoch.WentBackError
		stale *epoch.StaleError
		moved *epoch.MovedError
	)
	switch {
	case errors.As(err, &back):
		return back.Now, true
	case errors.As(err, &stale):
		return stale.Held, stale.Held.Partition == ours.Partition
	case errors.As(err, &moved):
		ours.Next = moved.Next
		return ours, true
	default:
		return epoch.Fence{}, false
	}
}
