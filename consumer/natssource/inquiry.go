package natssource

import (
	"context"
	"sync"

	"github.com/nats-io/nats.go/jetstream"
)

// inquiry shares answers about a stream among concurrent callers. No caller gets an answer to a
// request that was sent before its call.
type inquiry struct {
	ask func(context.Context) (*jetstream.StreamInfo, error)

	mu   sync.Mutex
	busy bool
	next *inquired
}

type inquired struct {
	done chan struct{}
	info *jetstream.StreamInfo // read-only
	err  error
}

func (q *inquiry) answer(ctx context.Context) (*jetstream.StreamInfo, error) {
	q.mu.Lock()
	a := q.next
	if a == nil {
		a = &inquired{done: make(chan struct{})}
		if q.busy {
			q.next = a
		} else {
			q.busy = true
			go q.run(a)
		}
	}
	q.mu.Unlock()
	select {
	case <-a.done:
		return a.info, a.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (q *inquiry) run(a *inquired) {
	for a != nil {
		ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
		a.info, a.err = q.ask(ctx)
		cancel()
		close(a.done)
		q.mu.Lock()
		a, q.next = q.next, nil
		q.busy = a != nil
		q.mu.Unlock()
	}
}
