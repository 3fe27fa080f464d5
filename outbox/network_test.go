package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/epochfence/epochfence/epoch"
)

// doubtful is a sink that now and then loses the acknowledgement of a
// transaction beside the messages, which has landed or has not: a crash between
// the answer of a receiver and the deletion of its entry, as the next claim sees it.
type doubtful[TX any] struct {
	epoch.Sink[TX]
	on    *atomic.Bool
	count *atomic.Int64
}

func (s doubtful[TX]) Commit(ctx context.Context, as []epoch.Advance, o epoch.TxOptions, calls ...func(context.Context, TX) error) error {
	if as[0].From != as[0].To || len(calls) != 1 {
		return s.Sink.Commit(ctx, as, o, calls...)
	}
	return s.lose(func(apply func(context.Context, TX) error) error { return s.Sink.Commit(ctx, as, o, apply) }, calls[0])
}

func (s doubtful[TX]) CommitHeld(ctx context.Context, h epoch.Hold, o epoch.TxOptions, apply func(context.Context, TX) error) error {
	return s.lose(func(apply func(context.Context, TX) error) error { return epoch.CommitHeld(ctx, s.Sink, h, o, apply) }, apply)
}

func (s doubtful[TX]) lose(commit func(func(context.Context, TX) error) error, apply func(context.Context, TX) error) error {
	if !s.on.Load() || rand.IntN(25) > 0 {
		return commit(apply)
	}
	s.count.Add(1)
	if rand.IntN(2) == 0 { // landed
		if err := commit(apply); err != nil {
			return err
		}
		return fmt.Errorf("%w: the acknowledgement was lost", epoch.ErrInDoubt)
	}
	lost := fmt.Errorf("%w: the connection was lost", epoch.ErrInDoubt)
	return commit(func(ctx context.Context, tx TX) error {
		if err := apply(ctx, tx); err != nil {
			return err
		}
		return lost
	})
}

// network loses requests and answers, and holds some requests back: they arrive
// once more, or after the sender has given up, whoever owns the partition by then.
type network struct {
	http.RoundTripper
	on *atomic.Bool

	mu   sync.Mutex
	held [][]*http.Request // by round, the newest last
}

var errLost = errors.New("lost in the network")

func (n *network) RoundTrip(req *http.Request) (*http.Response, error) {
	if !n.on.Load() {
		return n.RoundTripper.RoundTrip(req)
	}
	switch rand.IntN(12) {
	case 0:
		_ = req.Body.Close()
		return nil, errLost
	case 1: // after the effect
		if res, err := n.RoundTripper.RoundTrip(req); err == nil {
			_ = res.Body.Close()
		}
		return nil, errLost
	case 2: // it arrives, and the sender knows nothing of it
		n.hold(req)
		_ = req.Body.Close()
		return nil, errLost
	case 3: // it arrives twice
		n.hold(req)
	}
	return n.RoundTripper.RoundTrip(req)
}

func (n *network) hold(req *http.Request) {
	late := req.Clone(context.WithoutCancel(req.Context()))
	body, err := req.GetBody()
	if err != nil {
		panic(err)
	}
	late.Body = body
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.held) == 0 {
		n.held = make([][]*http.Request, 1)
	}
	newest := len(n.held) - 1
	n.held[newest] = append(n.held[newest], late)
}

// deliver ends a round, and delivers what was held back in all but the newest
// few, in no order.
func (n *network) deliver(newest int) {
	n.mu.Lock()
	n.held = append(n.held, nil)
	due := max(len(n.held)-1-newest, 0)
	late := slices.Concat(n.held[:due]...)
	n.held = n.held[due:]
	n.mu.Unlock()
	var all sync.WaitGroup
	for _, req := range late {
		all.Go(func() {
			if res, err := n.RoundTripper.RoundTrip(req); err == nil {
				_ = res.Body.Close()
			}
		})
	}
	all.Wait()
}
