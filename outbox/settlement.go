package outbox

import (
	"context"
	"fmt"
	"runtime/debug"
	"slices"
)

// settlement is one transaction of the relay.
type settlement struct {
	settle []*lane // to be deleted
	load   []*lane // to be read again
	scan   bool

	gone map[*lane]bool // entries that were not there any more
	next map[*lane]*Row // what the lane is to send next
	rows []Row
}

// ownError is the failure of OnAnswer or OnRefused.
type ownError struct {
	lane *lane
	err  error
}

func (e *ownError) Error() string { return e.err.Error() }
func (e *ownError) Unwrap() error { return e.err }

// apply runs in the fenced transaction.
func (r *relay[TX]) apply(ctx context.Context, tx TX, t *settlement) error {
	t.gone, t.next = map[*lane]bool{}, map[*lane]*Row{}
	if err := r.settle(ctx, tx, t); err != nil {
		return err
	}
	if err := r.load(ctx, tx, t); err != nil {
		return err
	}
	if err := r.follow(ctx, tx, t); err != nil {
		return err
	}
	if t.scan {
		rows, err := r.store.Scan(ctx, tx, r.p, r.after, scanLimit)
		if err != nil {
			return err
		}
		t.rows = rows
	}
	return nil
}

// settle deletes what was answered, and hands the answers on.
func (r *relay[TX]) settle(ctx context.Context, tx TX, t *settlement) error {
	if len(t.settle) == 0 {
		return nil
	}
	there, err := r.store.Delete(ctx, tx, r.p, ids(t.settle))
	if err != nil {
		return err
	}
	for _, l := range t.settle {
		if !slices.Contains(there, l.id) { // a person took it, or a commit in doubt did land
			t.gone[l] = true
		} else if err := r.tell(ctx, tx, l); err != nil {
			return &ownError{l, err}
		}
	}
	return nil
}

// load reads again what is due again.
func (r *relay[TX]) load(ctx context.Context, tx TX, t *settlement) error {
	if len(t.load) == 0 {
		return nil
	}
	rows, err := r.store.Load(ctx, tx, r.p, ids(t.load))
	if err != nil {
		return err
	}
	for _, l := range t.load {
		if i := slices.IndexFunc(rows, func(row Row) bool { return row.ID == l.id }); i >= 0 {
			t.next[l] = &rows[i]
		}
	}
	return nil
}

// follow reads what comes after the entries of lanes that are done: settled, or
// taken away by a person.
func (r *relay[TX]) follow(ctx context.Context, tx TX, t *settlement) error {
	behind := map[string]*lane{}
	var after []Place
	done := func(l *lane) {
		behind[l.key.key] = l
		after = append(after, Place{l.key.key, l.id})
	}
	for _, l := range t.settle {
		if l.more {
			done(l)
		}
	}
	for _, l := range t.load {
		if t.next[l] == nil && l.key.key != "" {
			done(l)
		}
	}
	if len(after) == 0 {
		return nil
	}
	rows, err := r.store.Next(ctx, tx, r.p, after)
	if err != nil {
		return err
	}
	for i := range rows {
		t.next[behind[rows[i].Key]] = &rows[i]
	}
	return nil
}

func ids(ls []*lane) []int64 {
	all := make([]int64, len(ls))
	for i, l := range ls {
		all[i] = l.id
	}
	return all
}

// tell calls OnAnswer or OnRefused.
func (r *relay[TX]) tell(ctx context.Context, tx TX, l *lane) (err error) {
	call, name := r.o.OnAnswer, "OnAnswer"
	if l.outcome.kind == Refused {
		call, name = r.o.OnRefused, "OnRefused"
	}
	if call == nil {
		return nil
	}
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("outbox: Options.%s panicked: %v\n%s", name, v, debug.Stack())
		}
	}()
	if err := call(ctx, tx, r.sent(l), l.outcome.answer); err != nil {
		return fmt.Errorf("outbox: Options.%s of entry %d: %w", name, l.id, err)
	}
	return nil
}
