package memsink

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

// This file has what a running consumer needs of operators: the audit log, requests and replays.

var _ operate.Operable[*Tx] = (*Sink)(nil)

const keptDecisions = 10_000

// The caller of decide must hold the database's lock.
func (st *state) decide(d operate.Decision) {
	st.decided++
	d.ID, d.At = st.decided, now()
	if st.decisions = append(st.decisions, d); len(st.decisions) > keptDecisions {
		st.decisions = st.decisions[1:]
	}
}

func now() time.Time {
	at := time.Now().UTC()
	return at
}

// Record implements [operate.Operable].
func (s *Sink) Record(ctx context.Context, ds []operate.Decision) error {
	err := run(ctx, s.hook().Record, ds, func() error {
		s.db.mu.Lock()
		defer s.db.mu.Unlock()
		for _, d := range ds {
			if !d.Kind.RecordedByConsumer() {
				return fmt.Errorf("a consumer records no %s", d.Kind)
			}
			s.db.state.decide(d.WithoutOperator())
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("memsink: record %d decisions: %w", len(ds), err)
	}
	return nil
}

// Hangs implements [operate.Operable].
func (s *Sink) Hangs(ctx context.Context, p epoch.Partition) (found []operate.Decision, err error) {
	err = run(ctx, s.hook().Hangs, p, func() error {
		s.db.mu.Lock()
		defer s.db.mu.Unlock()
		found = s.db.state.hangs(p)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("memsink: read what hung on %s: %w", p, err)
	}
	return found, nil
}

func (st *state) hangs(p epoch.Partition) (found []operate.Decision) {
	for _, d := range slices.Backward(st.decisions) {
		switch {
		case d.Partition != p:
		case d.Kind.ForgivesHangs() || len(found) == operate.MaxHangs:
			return found
		case d.Kind.IsHang():
			found = append(found, d)
		}
	}
	return found
}

// Requests implements [operate.Operable].
func (s *Sink) Requests(ctx context.Context, ps []epoch.Partition) (operate.Requests, error) {
	var found operate.Requests
	err := run(ctx, s.hook().Requests, ps, func() error {
		s.db.mu.Lock()
		defer s.db.mu.Unlock()
		for _, d := range s.db.state.decisions {
			if d.By != "" && d.Kind.ReplacesClaim() {
				found.Acts = d.ID
			}
		}
		for _, l := range s.db.state.dead {
			if l.Requested && slices.Contains(ps, l.Message.Partition) {
				found.Replays = append(found.Replays, operate.RequestedReplay{ID: l.ID, Request: l.Request, Message: l.Message})
			}
		}
		return nil
	})
	if err != nil {
		return operate.Requests{}, fmt.Errorf("memsink: look for requests about %d partitions: %w", len(ps), err)
	}
	return found, nil
}

type replay struct {
	operate.RequestedReplay
	epoch epoch.Epoch
	claim epoch.ClaimID
}

// Replayed implements [operate.Operable]. If the dead letter is not there as it was requested, the
// commit fails.
func (s *Sink) Replayed(_ context.Context, tx *Tx, r operate.RequestedReplay, e epoch.Epoch) error {
	defer tx.use()()
	i := slices.IndexFunc(tx.as, func(a epoch.Advance) bool { return a.Partition == r.Message.Partition })
	if i < 0 {
		return fmt.Errorf("memsink: replay dead letter %d of %s: this transaction is not under a claim of that partition", r.ID, r.Message.Partition)
	}
	tx.replayed = append(tx.replayed, replay{r, e, tx.as[i].Claim})
	return nil
}

func (st *state) find(r operate.RequestedReplay) int {
	return slices.IndexFunc(st.dead, func(l operate.DeadLetter) bool { return l.ID == r.ID && l.Request == r.Request && l.Requested })
}

func (st *state) missing(rs []replay) error {
	for _, r := range rs {
		if st.find(r.RequestedReplay) < 0 {
			return fmt.Errorf("replay dead letter %d of %s: %w", r.ID, r.Message.Partition, operate.ErrNotRequested)
		}
	}
	return nil
}

func (st *state) replayed(rs []replay) {
	for _, r := range rs {
		i := st.find(r.RequestedReplay)
		st.decide(st.about(operate.DecidedReplay, st.dead[i], r.epoch, r.claim, ""))
		st.dead = slices.Delete(st.dead, i, i+1)
	}
}

func (st *state) about(kind operate.DecisionKind, l operate.DeadLetter, e epoch.Epoch, claim epoch.ClaimID, why string) operate.Decision {
	return operate.Decision{
		Kind: kind, Partition: l.Message.Partition, Epoch: e, Claim: claim, Owner: st.fences[l.Message.Partition].Owner,
		From: l.Message.Offset, To: l.Message.Offset, Reason: fmt.Sprintf("dead letter %d%s", l.ID, why), By: l.RequestedBy,
	}
}

// ReplayFailed implements [operate.Operable].
func (s *Sink) ReplayFailed(ctx context.Context, r operate.RequestedReplay, e epoch.Epoch, cause error) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("memsink: record that the replay of dead letter %d of %s has failed: %w", r.ID, r.Message.Partition, err)
	}
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	st := &s.db.state
	i := st.find(r)
	if i < 0 {
		return nil
	}
	l := &st.dead[i]
	l.Requested, l.ReplayError, l.ReplayFailedAt = false, operate.ErrorText(cause), now()
	st.decide(st.about(operate.DecidedReplayFailure, *l, e, st.fences[l.Message.Partition].Claim, ": "+l.ReplayError))
	return nil
}
