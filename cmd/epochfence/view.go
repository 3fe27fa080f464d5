package main

import (
	"context"
	"strings"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/lease"
	"github.com/epochfence/epochfence/operate"
)

// This file decides the state of a partition from its fence, its halt and the signs of life, and
// what of it is shown.

type partitionView struct {
	Name        string     `json:"name"`
	Group       string     `json:"group"`
	Topic       string     `json:"topic"`
	Number      int32      `json:"partition"`
	State       state      `json:"state"`
	Reason      string     `json:"reason,omitempty"` // of a pause or a halt
	By          string     `json:"by,omitempty"`     // of a pause
	Since       *time.Time `json:"since,omitempty"`
	Epoch       int64      `json:"epoch"`
	Claim       string     `json:"claim"`
	Owner       string     `json:"owner"`
	OwnerAlive  *bool      `json:"owner_alive,omitempty"` // null if an operator acted last
	OwnerSeen   *time.Time `json:"owner_seen_at,omitempty"`
	Next        int64      `json:"next_offset"`
	Generation  int64      `json:"lease_generation"`
	Log         string     `json:"log"`
	Source      string     `json:"lease_source"`
	ClaimedAt   *time.Time `json:"claimed_at"`
	AdvancedAt  *time.Time `json:"advanced_at"`
	DeadLetters int64      `json:"dead_letters"`

	sign string // of life of the owner
}

type state string

const (
	unclaimed state = "unclaimed" // no process has ever claimed it
	claimed   state = "claimed"   // a live process has claimed it
	orphaned  state = "orphaned"  // the process that claimed it is dead, and no other has claimed it since
	waiting   state = "waiting"   // an operator has acted, and no process has claimed it since
	halted    state = "halted"
	hanging   state = "hung" // the process that claimed it is alive and has given it up, because a call hangs
	paused    state = "paused"
	elsewhere state = "elsewhere"  // another database of the sink keeps it
	locked    state = "lock"       // of package lease, which claims it for each holder
	unread    state = "unreadable" // a newer version has written it, or something else
)

func stateOf(p operate.Partition, h *operate.Decision) state {
	switch {
	case p.Unreadable != "":
		return unread
	case strings.HasPrefix(p.Log, operate.RedirectLog):
		return elsewhere
	case p.Pause.Mode != epoch.Running:
		return paused
	case isLock(p.Fence):
		return locked
	case h != nil:
		return halted
	case p.Epoch == 0:
		return unclaimed
	case operate.OperatorOf(p.Owner) != "":
		return waiting
	default:
		return claimed
	}
}

// isLock reports whether the fence is of package lease. Then it has no log and no consumer.
func isLock(f epoch.Fence) bool { return f.Log == lease.FenceLog }

// isJob reports whether the fence is of package schedule. Its offsets are times.
func isJob(f epoch.Fence) bool { return f.Log == operate.JobLog }

// hasLog reports whether a broker has the log of the fence.
func hasLog(f epoch.Fence) bool { return !isLock(f) && !isJob(f) }

// position returns the position of a fence for operators.
func position(f epoch.Fence) string { return positionIn(f.Log, f.Next) }

// nextOf is position, or "-" if the application determines where the first claim begins.
func nextOf(s state, f epoch.Fence) string {
	if s == unclaimed || s == unread {
		return "-"
	}
	return position(f)
}

// positionIn returns an offset of a log for operators: a time for a job.
func positionIn(log string, o epoch.Offset) string {
	if o < 0 {
		return "-"
	}
	return operate.FormatOffset(log, o)
}

// placeIn is positionIn for sentences.
func placeIn(log string, o epoch.Offset) string {
	if log == operate.JobLog {
		return "position " + positionIn(log, o)
	}
	return "offset " + positionIn(log, o)
}

func viewOf(p operate.Partition, h *operate.Decision) partitionView {
	v := partitionView{
		Name: p.Fence.Partition.String(), Group: p.Fence.Partition.Group, Topic: p.Fence.Partition.Topic, Number: p.Fence.Partition.Number,
		State: stateOf(p, h), Epoch: int64(p.Epoch), Claim: p.Claim.String(), Owner: p.Owner, Next: int64(p.Next),
		Generation: p.Generation, Log: p.Log, Source: p.Source, ClaimedAt: orNull(p.ClaimedAt), AdvancedAt: orNull(p.AdvancedAt), DeadLetters: p.DeadLetters,
	}
	switch v.State {
	case unread:
		v.Reason = p.Unreadable
	case paused:
		v.Reason, v.By, v.Since = p.Pause.Reason, p.Pause.By, orNull(p.Pause.Since)
	case halted:
		v.Reason, v.Since = h.Reason, orNull(h.At)
	default:
	}
	return v
}

func orNull(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

func (v *partitionView) owned(p operate.Partition, lives operate.Lives) {
	if p.Epoch == 0 || operate.OperatorOf(p.Owner) != "" || v.State == elsewhere || isLock(p.Fence) {
		return
	}
	owner, known := lives.Owner(p.Fence)
	alive := known && owner.Alive()
	v.OwnerAlive, v.OwnerSeen, v.sign = &alive, orNull(owner.Seen), signOf(owner, known)
	switch said := owner.Hangs(p.Fence); {
	case v.State != claimed:
	case !alive:
		v.State = orphaned
	case said != "":
		v.State, v.Reason = hanging, said
	}
}

func signOf(p operate.Process, known bool) string {
	switch {
	case !known:
		return "no sign of life"
	case p.Alive():
		return "alive, seen " + age(p.Now.Sub(p.Seen)) + " ago"
	default:
		return "not seen for " + age(p.Now.Sub(p.Seen))
	}
}

func (v *partitionView) ownerText() string {
	if v.sign == "" {
		return dash(v.Owner)
	}
	return v.Owner + " (" + v.sign + ")"
}

func (a *app) views(ctx context.Context, c chosen, names []string) ([]operate.Partition, []partitionView, error) {
	op, err := a.operator(ctx)
	if err != nil {
		return nil, nil, err
	}
	ps, err := a.partitions(ctx, op, c, names)
	if err != nil {
		return nil, nil, err
	}
	vs, err := viewsOf(ctx, op, ps)
	return ps, vs, err
}

func viewsOf(ctx context.Context, op operate.Operator, ps []operate.Partition) ([]partitionView, error) {
	hs, err := operate.Halts(ctx, op, ps)
	if err != nil {
		return nil, err
	}
	lives, err := op.Processes(ctx, "")
	if err != nil {
		return nil, err
	}
	vs := []partitionView{}
	for _, p := range ps {
		v := viewOf(p, hs[p.Fence.Partition])
		v.owned(p, lives)
		vs = append(vs, v)
	}
	return vs, nil
}
