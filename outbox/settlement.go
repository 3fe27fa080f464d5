package outbox

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"time"

	"github.com/epochfence/epochfence/epoch"
)

// settlement is one transaction of the relay.
type settlement struct {
	settle []*lane  // to be deleted
	load   []*lane  // to be read again
	scan   bool     // look for entries that are in no lane
	at     Cursor   // from here on, and then up to here
	count  bool     // how many entries are left
	ask    []target // which have said that there is a later claim: its commit says that there is none
	retry  bool     // look what operators want to be tried now

	retries []int64 // that

	gone map[*lane]bool // entries that were not there any more
	next map[*lane]*Row // what the lane is to send next
	rows []Row
	left Backlog // if they were counted
}

// ownError is the failure of OnAnswer or OnRefused.
type ownError struct {
	lane *lane
	err  error
}

func (e *ownError) Error() string { return e.err.Error() }
func (e *ownError) Unwrap() error { return e.err }

// begin begins the next transaction, if there is something to do: it settles
// what was answered, and reads what is to be sent next.
func (r *relay[TX]) begin(ctx context.Context, now time.Time) {
	t := &settlement{at: r.at}
	if r.apart {
		r.read(t, now)
	}
	r.apart = false
	if !t.reads() {
		r.take(t)
		r.more = r.more || r.tells(t)
		if !r.alone {
			r.read(t, now)
		}
	}
	t.retry = r.retrier != nil && r.waiting.len() > 0 && !now.Before(r.askPeople)
	if len(t.settle) == 0 && !t.reads() && len(r.ask) == 0 && !t.retry {
		return
	}
	if t.retry {
		r.askPeople = now.Add(askOperatorsEvery)
	}
	t.ask, r.ask = r.ask, nil
	t.count = r.mayCount(now)
	if t.scan {
		r.more = false // as far as it is known; what is applied meanwhile may add some
	}
	r.underWay = t
	r.working.Go(func() {
		err := errors.New("outbox: the transaction did not return")
		defer func() {
			if v := recover(); v != nil {
				err = fmt.Errorf("outbox: the transaction panicked: %v\n%s", v, debug.Stack())
			}
			r.outcomes <- err
		}()
		err = r.claim.Do(ctx, func(ctx context.Context, tx TX) error { return r.apply(ctx, tx, t) })
	})
}

// take has t settle the answers whose turn it is.
func (r *relay[TX]) take(t *settlement) {
	n := min(len(r.finished), settleLimit)
	switch {
	case r.again == 0:
		r.alone = false
	case r.alone:
		n = 1
	default:
		n = min(n, r.again)
	}
	t.settle, r.finished = r.finished[:n], r.finished[n:]
}

// tells reports whether OnAnswer or OnRefused is called in t. They may add entries,
// which are looked for after that, in the same transaction if there is room.
func (r *relay[TX]) tells(t *settlement) bool {
	return len(t.settle) > 0 && (r.o.OnAnswer != nil || r.o.OnRefused != nil)
}

// read has t read what there is room for.
func (r *relay[TX]) read(t *settlement, now time.Time) {
	t.load = r.waiting.due(now, r.room())
	t.scan = r.mayScan()
}

func (t *settlement) reads() bool { return t.scan || len(t.load) > 0 }

// came says what the outcome of the transaction under way means. It returns false
// when the claim has ended.
func (r *relay[TX]) came(ctx context.Context, err error) bool {
	t := r.underWay
	r.underWay = nil
	if err == nil {
		r.committed(t)
		return true
	}
	if ctx.Err() != nil || ended(err) {
		if len(t.ask) > 0 && ended(err) {
			r.logger.Info("the claim of the outbox's relay was superseded, as its receiver said", "err", err)
		}
		return false
	}
	r.failed(t, err)
	return true
}

// apply runs in the fenced transaction, beside the relay's loop. It has the
// transaction's lanes for itself.
func (r *relay[TX]) apply(ctx context.Context, tx TX, t *settlement) error {
	t.gone, t.next = map[*lane]bool{}, map[*lane]*Row{}
	if err := r.settle(ctx, tx, t); err != nil {
		return err
	}
	if err := r.load(ctx, tx, t); err != nil {
		return err
	}
	if t.retry {
		ids, err := r.retrier.Retries(ctx, tx, r.p)
		if err != nil {
			return err
		}
		t.retries = ids
	}
	if t.scan { // after OnAnswer and OnRefused, which may have added some
		rows, at, err := r.store.Scan(ctx, tx, r.p, t.at, scanLimit)
		if err != nil {
			return err
		}
		t.rows, t.at = rows, at
	}
	if err := r.follow(ctx, tx, t); err != nil || !t.count {
		return err
	}
	return r.count(ctx, tx, t)
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
		if !slices.Contains(there, l.id) { // an operator took it, or a commit in doubt did land
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
			row := rows[i] // by itself: a lane may be kept for long
			t.next[l] = &row
		}
	}
	return nil
}

// follow reads what comes after the entries of lanes that are done: settled, or
// taken away by an operator. That is the first entry of their keys that is still there,
// of all that have been read, not only of those above: a transaction beside this one
// may have committed lower ones since.
func (r *relay[TX]) follow(ctx context.Context, tx TX, t *settlement) error {
	behind := map[string]*lane{}
	var after []Place
	done := func(l *lane) {
		behind[l.key.key] = l
		place := min(l.id, t.at.ID)
		if l.late > 0 {
			place = min(place, l.late-1)
		}
		if len(t.rows) > 0 {
			place = min(place, t.rows[0].ID-1)
		}
		after = append(after, Place{l.key.key, place})
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
	rows, err := r.store.Next(ctx, tx, r.p, t.at, after)
	if err != nil {
		return err
	}
	for _, row := range rows {
		t.next[behind[row.Key]] = &row
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

// failed puts everything back. An answer that cannot be settled alone is put
// aside, and so is one whose OnAnswer or OnRefused fails; the others of its
// transaction are tried again before any that came later, lest there be a failing one
// among those each time. Nor is what it has read undone for an answer twice.
func (r *relay[TX]) failed(t *settlement, err error) {
	r.waiting.back(t.load)
	r.ask = append(r.ask, t.ask...)
	r.more = r.more || t.scan
	r.apart = len(t.settle) > 0 && t.reads()
	again := slices.Clone(t.settle)
	aside := func(l *lane, err error) {
		again = slices.DeleteFunc(again, func(other *lane) bool { return other == l })
		r.keep(l, err)
	}
	var own *ownError
	switch {
	case errors.As(err, &own):
		aside(own.lane, own.err)
	case len(again) > 1:
		r.alone = true
	case len(again) == 1 && !errors.Is(err, epoch.ErrTransient) && !errors.Is(err, epoch.ErrUnhealthy) && !errors.Is(err, epoch.ErrInDoubt):
		aside(again[0], err)
	default:
		wait := r.pause.Next()
		r.resume = time.Now().Add(wait)
		r.logger.Warn("the outbox could not be read or settled, trying again", "err", err, "retry_in", wait)
	}
	r.again = max(0, r.again-len(t.settle)) + len(again)
	r.finished = append(again, r.finished...)
}

// keep puts a lane aside whose answer the application could not take.
func (r *relay[TX]) keep(l *lane, err error) {
	r.reportOwn(l, err)
	r.kept.add(l, time.Now().Add(l.next(r.Box)))
}

// committed notes what the transaction has done.
func (r *relay[TX]) committed(t *settlement) {
	r.pause.Reset()
	r.claimHolds(t.ask)
	r.again = max(0, r.again-len(t.settle))
	r.waiting.now(t.retries, time.Now())
	for _, l := range t.settle {
		if !t.gone[l] {
			r.o.Observe(Event{Kind: l.outcome.kind, Sent: r.sent(l), Status: l.outcome.answer.Status, Took: l.took})
		}
		r.continueWith(l, t.next[l])
	}
	for _, l := range t.load {
		r.continueWith(l, t.next[l])
	}
	if t.scan {
		r.scanned(t)
	}
	r.tellBacklog(t)
}

// scanned takes in the entries that were read and are in no lane yet.
func (r *relay[TX]) scanned(t *settlement) {
	r.at = t.at
	r.more = r.more || len(t.rows) == scanLimit
	for _, row := range t.rows {
		at := laneKey{key: row.Key}
		if row.Key == "" {
			at.id = row.ID
		}
		if l := r.lanes[at]; l != nil {
			l.more = l.more || l.id != row.ID
			if row.ID < l.id && (l.late == 0 || row.ID < l.late) {
				l.late = row.ID
			}
			continue
		}
		l := &lane{key: at, id: row.ID, row: &row}
		r.lanes[at] = l
		r.ready = append(r.ready, l)
	}
}

// continueWith continues with the next entry of a lane, or ends it.
func (r *relay[TX]) continueWith(l *lane, row *Row) {
	if row == nil || row.ID != l.id {
		r.recovered(l)
	}
	if row == nil {
		delete(r.lanes, l.key)
		return
	}
	if row.ID != l.id {
		l.attempt, l.wait = 0, nil
		l.more, l.late = true, 0 // perhaps
	}
	l.id, l.row, l.outcome = row.ID, row, outcome{}
	r.ready = append(r.ready, l)
}
