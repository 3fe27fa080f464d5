package show

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
)

// Limits says how long an incident waits for what it needs.
type Limits struct {
	Strike time.Duration // for the victim to come to the chosen point
	Move   time.Duration // for the partitions to have another owner
	Settle time.Duration // for a thawed worker to finish or give up what it had in hand
}

// Freeze stops a worker at a point of its next transaction (SIGSTOP), waits
// until the partitions it had in hand have moved on, thaws it (SIGCONT) and lets
// it continue. release is called once the worker waits for a message to be stopped
// at. Freeze returns a line that says what happened.
//
// Moved on means that another worker has committed effects of them; or, where
// the frozen transaction's locks hold that one up, that it has had them for a
// few seconds. If the worker has a request in hand, it means that what it is
// about was done elsewhere.
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

// Kill ends a worker (SIGKILL) at a point of its next transaction, as a rule
// after that has committed and before the source knows, and starts another.
// release is as in [Crew.Freeze]. It returns a line that says what happened once
// all partitions have an owner again, and what it had in hand was done elsewhere.
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

// strike tells a worker that holds partitions, the given one if it does, to stop
// at the point, releases messages for it to be struck at, and waits until it
// stands there. If it loses its partitions before, another one is told.
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
		if r != nil { // just before it took that order
			return p, *r, nil
		}
		worker = p.n + 1
	}
}

// isRepetition reports whether p stands at a request that has been done before:
// where partitions have no owner, nobody need do it again.
func (c *Crew) isRepetition(ctx context.Context, r report) (bool, error) {
	if r.Subject == "" || len(r.Work) > 0 || r.Point == AfterCommit {
		return false, nil
	}
	return c.Elsewhere(ctx, r.Subject)
}

// arm orders p to stop at a point and waits until it has taken the order.
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

// holds reports whether p was the last to report some partition. The mutex is
// held.
func (c *Crew) holds(p *process) bool {
	for _, n := range c.holder {
		if n == p.n {
			return true
		}
	}
	return false
}

// victim is the given worker if it lives and holds partitions, and the next one
// that does otherwise. The mutex is held.
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

// vacate notes that p's partitions have lost their owner now.
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

// missed reports whether a partition of p's has no other owner yet. The mutex is
// held.
func (c *Crew) missed(p *process) bool {
	for _, v := range c.vacant {
		if v.owner == p.n {
			return true
		}
	}
	return false
}

// forgive forgets that p was away: a partition that nobody took over from it
// until now is its own, and moves for other reasons later.
func (c *Crew) forgive(p *process) {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.vacant, func(_ int32, v vacancy) bool { return v.owner == p.n })
}

// lockedFor is how long a next owner may be held up before the frozen one is
// thawed: longer than a healthy transaction takes.
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

// awaitElsewhere returns once what r's request is about was done. Where no
// partition was taken over, that is what counts as one.
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

// awaitOutcome waits for what becomes of the transaction that p was frozen in.
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
