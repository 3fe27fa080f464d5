package show

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
)

// Limits are the timeouts of an incident.
type Limits struct {
	Strike time.Duration // for the victim to reach the chosen point
	Move   time.Duration // for the partitions to get another owner
	Settle time.Duration // for a thawed worker to finish or give up its transaction
}

// Freeze stops a worker (SIGSTOP) at a point of its next transaction, waits until its work has
// moved on, and lets it continue (SIGCONT). It calls release once the worker waits for the message
// at which it will stop. Freeze returns a line that describes the incident.
//
// Partitions have moved on when another worker has committed effects of them. If the frozen
// transaction's locks block the other worker, it is enough that it has had the partitions for a few
// seconds. A request has moved on when another worker has done it.
func (c *Crew) Freeze(ctx context.Context, worker int, at Point, release func(), l Limits) (string, error) {
	p, r, err := c.strike(ctx, worker, at, release, l)
	if err != nil {
		return "", err
	}
	if err := freeze(p.cmd.Process); err != nil {
		return "", err
	}
	began := c.vacate(p)
	c.frozen(p, true)
	moved := c.awaitMoved(ctx, p, r, l.Move)
	frozen := time.Since(began)
	if err := thaw(p.cmd.Process); err != nil {
		return "", err
	}
	c.frozen(p, false)
	if moved != nil {
		return "", moved
	}
	if err := p.orders.Encode(order{Do: orderGo}); err != nil {
		return "", fmt.Errorf("let worker %d continue: %w", p.n, err)
	}
	end, err := c.awaitOutcome(ctx, p, l.Settle)
	c.forgive(p)
	return fmt.Sprintf("worker %d frozen %s at %s%s, then %s", p.n, Seconds(frozen), r.inHand(), at.phrase(), end), err
}

// Kill ends a worker (SIGKILL) at a point of its next transaction, and starts another. The usual
// point is after the commit and before the source knows. release is as in [Crew.Freeze]. Kill
// returns a line that describes the incident, once all partitions have an owner again and another
// worker has done the killed worker's request.
func (c *Crew) Kill(ctx context.Context, worker int, at Point, release func(), l Limits) (string, error) {
	p, r, err := c.strike(ctx, worker, at, release, l)
	if err != nil {
		return "", err
	}
	c.mu.Lock()
	p.stopping = true
	c.mu.Unlock()
	began := c.vacate(p)
	p.kill()
	n, err := c.Start()
	if err != nil {
		return "", err
	}
	switch {
	case len(r.Work) > 0:
		err = c.await(ctx, l.Move, func() bool { return !c.missed(p) })
	case at != AfterCommit:
		err = c.awaitElsewhere(ctx, r, began, l.Move)
	}
	if errors.Is(err, errTimeout) {
		err = fmt.Errorf("worker %d was killed %v ago and nobody has taken over", p.n, l.Move)
	}
	c.forgive(p)
	after := ""
	if len(r.Work) > 0 || at != AfterCommit {
		after = "taken over in " + Seconds(time.Since(began)) + ", "
	}
	return fmt.Sprintf("worker %d killed at %s%s, %sworker %d joined", p.n, r.inHand(), at.phrase(), after, n), err
}

// strike orders a worker with partitions to stop at a point, calls release, and waits until the
// worker has stopped there. It prefers the given worker. If the worker loses its partitions first,
// strike chooses another one.
func (c *Crew) strike(ctx context.Context, worker int, at Point, release func(), l Limits) (*process, report, error) {
	for {
		c.mu.Lock()
		p := c.victim(worker)
		if p != nil {
			p.reached, p.outcome = nil, nil
		}
		c.mu.Unlock()
		if p == nil {
			return nil, report{}, errors.New("no worker holds a partition")
		}
		if err := c.arm(ctx, p, at, l.Strike); err != nil {
			return nil, report{}, err
		}
		release()
		release = func() {}
		err := c.await(ctx, l.Strike, func() bool { return p.reached != nil || !c.holds(p) })
		if errors.Is(err, errTimeout) {
			err = fmt.Errorf("worker %d got no message to be stopped at for %v", p.n, l.Strike)
		}
		if err != nil {
			return nil, report{}, err
		}
		c.mu.Lock()
		r := p.reached
		c.mu.Unlock()
		if r != nil {
			again, err := c.isRepetition(ctx, *r)
			if err != nil {
				return nil, report{}, err
			}
			if !again {
				return p, *r, nil
			}
			if err := p.orders.Encode(order{Do: orderGo}); err != nil {
				return nil, report{}, fmt.Errorf("let worker %d continue: %w", p.n, err)
			}
			continue
		}
		if err := c.arm(ctx, p, "", l.Strike); err != nil {
			return nil, report{}, err
		}
		c.mu.Lock()
		r = p.reached
		c.mu.Unlock()
		if r != nil { // it stopped just before it took that order
			return p, *r, nil
		}
		worker = p.n + 1
	}
}

// isRepetition reports whether p has stopped at a request that is already done. Without owners of
// partitions, nobody would have to do it again.
func (c *Crew) isRepetition(ctx context.Context, r report) (bool, error) {
	if r.Subject == "" || len(r.Work) > 0 || r.Point == AfterCommit {
		return false, nil
	}
	return c.Elsewhere(ctx, r.Subject)
}

func (c *Crew) arm(ctx context.Context, p *process, at Point, limit time.Duration) error {
	c.mu.Lock()
	p.armed = "unknown"
	c.mu.Unlock()
	if err := p.orders.Encode(order{Do: orderStopAt, Point: at}); err != nil {
		return fmt.Errorf("order worker %d: %w", p.n, err)
	}
	err := c.await(ctx, limit, func() bool { return p.armed == at })
	if errors.Is(err, errTimeout) {
		err = fmt.Errorf("worker %d has not taken an order for %v", p.n, limit)
	}
	return err
}

// holds reports whether p was the last to report some partition. It requires the mutex.
func (c *Crew) holds(p *process) bool {
	for _, n := range c.holder {
		if n == p.n {
			return true
		}
	}
	return false
}

// victim returns the given worker if it lives and holds partitions, and otherwise the next such
// worker. It requires the mutex.
func (c *Crew) victim(worker int) *process {
	var holding []int
	for _, n := range c.holder {
		if c.workers[n] != nil {
			holding = append(holding, n)
		}
	}
	if len(holding) == 0 {
		return nil
	}
	slices.Sort(holding)
	i, _ := slices.BinarySearch(holding, worker)
	return c.workers[holding[i%len(holding)]]
}

func (c *Crew) vacate(p *process) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	for partition, n := range c.holder {
		if n == p.n {
			c.vacant[partition] = vacancy{p.n, now}
		}
	}
	c.notify()
	return now
}

// missed reports whether a partition of p still has no other owner. It requires the mutex.
func (c *Crew) missed(p *process) bool {
	for _, v := range c.vacant {
		if v.owner == p.n {
			return true
		}
	}
	return false
}

// forgive forgets that p was away. A partition that no other worker has taken yet stays p's, and
// moves for other reasons later.
func (c *Crew) forgive(p *process) {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.vacant, func(_ int32, v vacancy) bool { return v.owner == p.n })
}

// lockedFor is how long the next owner may be blocked before the frozen one is thawed. It is longer
// than a healthy transaction takes.
const lockedFor = 3 * time.Second

func (c *Crew) awaitMoved(ctx context.Context, p *process, r report, limit time.Duration) error {
	began := time.Now()
	moved := func() bool {
		for _, s := range r.Work {
			if c.holder[s.Partition] == p.n {
				return false
			}
		}
		return true
	}
	if err := c.await(ctx, limit, moved); err != nil {
		if errors.Is(err, errTimeout) {
			err = fmt.Errorf("worker %d is frozen for %v and still has its partitions", p.n, limit)
		}
		return err
	}
	if r.Subject != "" {
		return c.awaitElsewhere(ctx, r, began, limit)
	}
	err := c.await(ctx, lockedFor, func() bool {
		for _, s := range r.Work {
			if c.position[s.Partition] <= s.From && r.Work.moves() {
				return false
			}
		}
		return true
	})
	if errors.Is(err, errTimeout) {
		return nil
	}
	return err
}

// awaitElsewhere returns once r's request is done and recorded. If no partition was taken over, the
// request counts as the takeover.
func (c *Crew) awaitElsewhere(ctx context.Context, r report, began time.Time, limit time.Duration) error {
	left := func(ctx context.Context) (int, error) {
		done, err := c.Elsewhere(ctx, r.Subject)
		if done || err != nil {
			return 0, err
		}
		return 1, nil
	}
	if err := c.AwaitNone(ctx, left, limit); err != nil {
		return fmt.Errorf("nobody else has done %s: %w", r.Subject, err)
	}
	if len(r.Work) == 0 {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.tally.Takeovers = append(c.tally.Takeovers, time.Since(began))
	}
	return nil
}

func (c *Crew) awaitOutcome(ctx context.Context, p *process, limit time.Duration) (string, error) {
	err := c.await(ctx, limit, func() bool { return p.outcome != nil })
	if errors.Is(err, errTimeout) {
		err = fmt.Errorf("worker %d was thawed %v ago and neither committed nor gave up", p.n, limit)
	}
	if err != nil {
		return "", err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch p.outcome.Kind {
	case reportApplied:
		if p.outcome.Messages <= 1 {
			return "committed", nil
		}
		return "committed all " + Thousands(p.outcome.Messages), nil
	case reportSent:
		return "answered", nil
	case reportRefused:
		return "refused by the receiver", nil
	case reportStale:
		return "refused as stale", nil
	case reportDoubt:
		return "cut off", nil
	default:
		return "failed", nil
	}
}

func (c *Crew) frozen(p *process, is bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p.frozen = is
	if is {
		c.tally.Frozen++
	} else {
		c.tally.Frozen--
	}
	c.notify()
}
