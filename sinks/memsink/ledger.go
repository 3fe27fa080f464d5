package memsink

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

// This file keeps the rows of operators: the audit log, dead letters, signs of life. Package operate
// decides what they mean and how they change.

var (
	_ operate.Ledger[*Tx] = (*Sink)(nil)
	_ operate.Admin       = admin{}
)

const keptEntries = 10_000

func now() time.Time { return time.Now().UTC() }

// table has the rows of a kind, by ID.
type table struct {
	rows []operate.Row
	last int64 // ID, ever
}

func (t table) find(r operate.Row) int {
	return slices.IndexFunc(t.rows, func(old operate.Row) bool { return old.ID == r.ID && old.Revision == r.Revision })
}

// check returns an error if a change is not possible.
func (st *state) check(cs []operate.Change) error {
	for _, c := range cs {
		if c.Kind != operate.KindProcess && c.ID != 0 && st.tables[c.Kind].find(c.Row) < 0 {
			return fmt.Errorf("%s %d of %s: %w", c.Kind, c.ID, c.Partition, operate.ErrRowChanged)
		}
	}
	return nil
}

// write makes changes that check has allowed. The caller of write must hold the database's lock.
func (st *state) write(cs ...operate.Change) {
	for _, c := range cs {
		t := st.tables[c.Kind]
		r := c.Row
		r.Changed = now()
		if r.ID == 0 {
			t.last++
			r.ID, r.At = t.last, r.Changed
			t.rows = append(t.rows, r)
			if r.Kind == operate.KindEntry && len(t.rows) > keptEntries {
				t.rows = t.rows[1:]
			}
		} else if i := t.find(r); c.Remove {
			t.rows = slices.Delete(t.rows, i, i+1)
		} else {
			old := &t.rows[i]
			old.State, old.Text, old.By, old.Body, old.Changed, old.Revision = r.State, r.Text, r.By, r.Body, r.Changed, r.Revision+1
		}
		st.tables[c.Kind] = t
	}
}

// sign writes or deletes a sign of life.
func (db *database) sign(c operate.Change) {
	r := c.Row
	before, again := db.lives[r.Name]
	if r.At, r.Changed = now(), now(); c.Remove {
		if r.Revision == 0 || r.Revision == before.Revision {
			delete(db.lives, r.Name)
		}
		return
	}
	if r.Revision = before.Revision + 1; again {
		r.At = before.At
	}
	db.lives[r.Name] = r
}

func (db *database) write(cs []operate.Change) error {
	db.mu.Lock()
	defer db.mu.Unlock()
	if err := db.state.check(cs); err != nil {
		return err
	}
	for _, c := range cs {
		if c.Kind == operate.KindProcess {
			db.sign(c)
		} else {
			db.state.write(c)
		}
	}
	return nil
}

// Write implements [operate.Rows].
func (s *Sink) Write(ctx context.Context, cs ...operate.Change) error {
	if err := s.hooked(ctx, cs, func() error { return s.db.write(cs) }); err != nil {
		return fmt.Errorf("memsink: write %d rows: %w", len(cs), err)
	}
	return nil
}

// hooked runs the hook for what a consumer writes.
func (s *Sink) hooked(ctx context.Context, cs []operate.Change, step func() error) error {
	switch first := cs[0]; {
	case first.Kind == operate.KindEntry && first.By == "":
		var ds []operate.Decision
		for _, c := range cs {
			d, err := operate.DecisionOf(c.Row)
			if err != nil {
				return err
			}
			ds = append(ds, d)
		}
		return run(ctx, s.hook().Record, ds, step)
	case first.Kind == operate.KindProcess && !first.Remove:
		p, err := operate.ProcessOf(first.Row)
		if err != nil {
			return err
		}
		return run(ctx, s.hook().Alive, p, step)
	default:
		return run(ctx, nil, cs, step)
	}
}

// WriteIn implements [operate.Ledger]. The commit makes the changes.
func (s *Sink) WriteIn(_ context.Context, tx *Tx, cs ...operate.Change) error {
	defer tx.use()()
	for _, c := range cs {
		if !slices.ContainsFunc(tx.as, func(a epoch.Advance) bool { return a.Partition == c.Partition }) {
			return fmt.Errorf("memsink: write a row of %s: this transaction is not under a claim of that partition", c.Partition)
		}
	}
	tx.changes = append(tx.changes, cs...)
	return nil
}

// Rows implements [operate.Rows].
func (s *Sink) Rows(ctx context.Context, q operate.RowQuery) (found []operate.Row, err error) {
	step := func() error {
		s.db.mu.Lock()
		defer s.db.mu.Unlock()
		found = s.db.rows(q)
		return nil
	}
	if q.Kind == operate.KindEntry && q.Partition != nil {
		err = run(ctx, s.hook().Hangs, *q.Partition, step)
	} else {
		err = run(ctx, nil, q, step)
	}
	if err != nil {
		return nil, fmt.Errorf("memsink: read rows: %w", err)
	}
	return found, nil
}

func (db *database) rows(q operate.RowQuery) []operate.Row {
	all := db.state.tables[q.Kind].rows
	for _, r := range db.lives {
		all = append(all[:len(all):len(all)], r)
	}
	found := q.Page(all)
	for i := range found {
		found[i].Now = now()
	}
	return found
}

// Requests implements [operate.Ledger].
func (s *Sink) Requests(ctx context.Context, ps []epoch.Partition) (acts int64, letters []operate.Row, err error) {
	err = run(ctx, s.hook().Requests, ps, func() error {
		s.db.mu.Lock()
		defer s.db.mu.Unlock()
		for _, e := range s.db.state.tables[operate.KindEntry].rows {
			if e.By != "" && operate.DecisionKind(e.State).ReplacesClaim() {
				acts = e.ID
			}
		}
		of := map[epoch.Partition]int{}
		for _, l := range s.db.rows(operate.RowQuery{Kind: operate.KindLetter, Content: true}) {
			if l.IsWanted(l.Now) && slices.Contains(ps, l.Partition) && of[l.Partition] < operate.ReplaysEach && len(letters) < operate.ReplaysMost {
				of[l.Partition]++
				letters = append(letters, l)
			}
		}
		return nil
	})
	if err != nil {
		return 0, nil, fmt.Errorf("memsink: look for requests about %d partitions: %w", len(ps), err)
	}
	return acts, letters, nil
}

// Operator returns an operator of the database of s. It has no hooks.
func (s *Sink) Operator() operate.Operator { return operate.On(admin{s.Open()}) }

// admin is a sink without hooks.
type admin struct{ *Sink }

// Partitions implements [operate.Admin].
func (o admin) Partitions(ctx context.Context, f operate.Filter, p *epoch.Partition) (found []operate.Partition, err error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("memsink: list fences: %w", err)
	}
	o.db.mu.Lock()
	defer o.db.mu.Unlock()
	for _, fence := range o.db.state.fences {
		if f.Selects(fence) && (p == nil || fence.Partition == *p) {
			found = append(found, o.db.state.partition(fence))
		}
	}
	slices.SortFunc(found, func(a, b operate.Partition) int { return a.Fence.Partition.Compare(b.Fence.Partition) })
	return found, nil
}

func (st *state) partition(f epoch.Fence) operate.Partition {
	p := operate.Partition{Fence: f, AdvancedAt: st.advanced[f.Partition], Now: now()}
	for _, l := range st.tables[operate.KindLetter].rows {
		if l.Partition == f.Partition && l.State != operate.StateDeferred {
			p.DeadLetters++
		}
	}
	for _, e := range st.tables[operate.KindEntry].rows {
		if e.Partition == f.Partition && operate.DecisionKind(e.State).ReplacesClaim() {
			p.ClaimedAt = e.At
		}
	}
	return p
}

// Act implements [operate.Admin].
func (o admin) Act(ctx context.Context, a operate.Act) (after epoch.Fence, err error) {
	if err := ctx.Err(); err != nil {
		return epoch.Fence{}, fmt.Errorf("memsink: act: %w", err)
	}
	o.db.mu.Lock()
	defer o.db.mu.Unlock()
	st := &o.db.state
	a.At = now()
	before := st.fences[a.Partition]
	if after, err = a.ApplyTo(st.fences); err != nil {
		return epoch.Fence{}, fmt.Errorf("memsink: act: %w", err)
	}
	st.write(operate.EntryOf(a.Decided(before, after)))
	return after, nil
}

// DeadLetter is a message that was dead-lettered.
type DeadLetter struct {
	Epoch   epoch.Epoch // under which it was dead-lettered
	Message epoch.Message
	Cause   string
}

// DeadLetter stores m as a dead letter in the transaction tx. Use it as OnFailure of
// consumer.Handlers. [Sink.DeadLetters] returns the dead letters.
func (s *Sink) DeadLetter(ctx context.Context, tx *Tx, m epoch.Message, e epoch.Epoch, cause error) error {
	return operate.PutAside(ctx, s, tx, m, e, cause)
}

// DeadLetters returns the dead letters of [Sink.DeadLetter], ordered by partition and then by
// commit, without those that are deferred.
func (s *Sink) DeadLetters() (dead []DeadLetter) {
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	for _, r := range s.db.rows(operate.RowQuery{Kind: operate.KindLetter, Content: true}) {
		if r.State == operate.StateDeferred {
			continue
		}
		l, err := operate.DeadLetterOf(r)
		if err != nil {
			panic(errors.Join(errors.New("memsink: a dead letter that it has not written"), err))
		}
		dead = append(dead, DeadLetter{Epoch: l.Epoch, Message: l.Message, Cause: l.Error})
	}
	slices.SortStableFunc(dead, func(a, b DeadLetter) int { return a.Message.Partition.Compare(b.Message.Partition) })
	return dead
}
