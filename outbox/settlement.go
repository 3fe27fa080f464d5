package outbox

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/epochfence/epochfence/epoch"
)

// This file decides what the relay's next transaction settles and reads, and what a failed one is
// split into. [Store] says what the store has to do in it; relay.go sends what was read.

// settlement is one transaction of the relay.
type settlement struct {
	settle []*lane  // to be deleted
	load   []*lane  // to be read again
	scan   bool     // look for entries that are in no lane
	at     Cursor   // where the scan starts; after apply, where it ended
	count  bool     // count the entries that are left
	ask    []target // targets with a higher epoch; a commit shows that there is no later claim
	retry  []int64  // entries that wait: read the operators' requests to retry them

	// The results of apply:
	retries []int64        // entries that operators want to be tried now
	gone    map[*lane]bool // lanes whose entry did not exist any more
	next    map[*lane]*Row // the entry that a lane sends next
	rows    []Row          // found by the scan
	left    Backlog        // if count
}

// ownError is the failure of OnAnswer or OnRefused.
type ownError struct {
	lane *lane
	err  error
}

func (e *ownError) Error() string { return e.err.Error() }
func (e *ownError) Unwrap() error { return e.err }

// begin begins the next transaction, if there is something to do. The transaction settles the
// answers and reads the entries to send next.
func (r *relay[TX]) begin(ctx context.Context, now time.Time) {
	t := &settlement{at: r.at}
	if r.apart {
		r.read(t, now)
	}
	r.apart = false
	if !t.reads() {
		r.take(t)
		r.more = r.more || r.callsBack(t)
		if !r.alone {
			r.read(t, now)
		}
	}
	if !now.Before(r.askPeople) {
		t.retry = slices.Concat(ids(r.waiting.lanes), ids(r.kept.lanes))
	}
	if len(t.settle) == 0 && !t.reads() && len(r.ask) == 0 && len(t.retry) == 0 {
		return
	}
	if len(t.retry) > 0 {
		r.askPeople = now.Add(askOperatorsEvery)
	}
	t.ask, r.ask = r.ask, nil
	t.count = r.mayCount(now)
	if t.scan {
		r.more = false // handlers may set it again before the transaction ends
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

// callsBack reports whether t calls OnAnswer or OnRefused. They may add entries, so a scan follows, in
// the same transaction if there is capacity.
func (r *relay[TX]) callsBack(t *settlement) bool {
	return len(t.settle) > 0 && (r.o.OnAnswer != nil || r.o.OnRefused != nil)
}

func (r *relay[TX]) read(t *settlement, now time.Time) {
	t.load = r.waiting.due(now, r.capacity())
	t.scan = r.mayScan()
}

func (t *settlement) reads() bool { return t.scan || len(t.load) > 0 }

// came handles the outcome of the transaction under way. It returns false if the claim has ended.
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

// apply runs in the fenced transaction, concurrently with the relay's loop. Nothing else uses the
// transaction's lanes meanwhile.
func (r *relay[TX]) apply(ctx context.Context, tx TX, t *settlement) error {
	t.gone, t.next = map[*lane]bool{}, map[*lane]*Row{}
	if err := r.settle(ctx, tx, t); err != nil {
		return err
	}
	if err := r.load(ctx, tx, t); err != nil {
		return err
	}
	if len(t.retry) > 0 {
		ids, err := r.store.Retries(ctx, tx, r.p, t.retry)
		if err != nil {
			return err
		}
		t.retries = ids
	}
	if t.scan { // after OnAnswer and OnRefused, which may have added entries
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

func (r *relay[TX]) settle(ctx context.Context, tx TX, t *settlement) error {
	if len(t.settle) == 0 {
		return nil
	}
	there, err := r.store.Delete(ctx, tx, r.p, ids(t.settle))
	if err != nil {
		return err
	}
	for _, l := range t.settle {
		if !slices.Contains(there, l.id) { // an operator has deleted it, or a commit in doubt had succeeded
			t.gone[l] = true
		} else if err := r.callBack(ctx, tx, l); err != nil {
			return &ownError{l, err}
		}
	}
	return nil
}

// load reads the entries again whose wait is over.
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
			row := rows[i] // a copy: a lane may live long, and must not keep all rows in memory
			t.next[l] = &row
		}
	}
	return nil
}

// follow reads the next entry of each lane whose entry is settled or was deleted by an operator.
// That is the first entry of the lane's key among all entries that were read, not only those with a
// higher ID: a concurrent transaction may have committed an entry with a lower ID since.
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

func (r *relay[TX]) callBack(ctx context.Context, tx TX, l *lane) (err error) {
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

// failed puts the lanes of t back. It moves an answer to r.kept if its OnAnswer or OnRefused fails
// or if it cannot be settled alone. The other answers of t are tried again without later answers,
// which could bring a failing one into each transaction. If t has read entries too, the next
// transaction only reads, so that a failing answer does not undo the read a second time.
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

func (r *relay[TX]) keep(l *lane, err error) {
	r.reportOwn(l, err)
	r.kept.add(l, time.Now().Add(l.next(r.Box)))
}

func (r *relay[TX]) committed(t *settlement) {
	r.pause.Reset()
	r.claimHolds(t.ask)
	r.again = max(0, r.again-len(t.settle))
	r.waiting.now(t.retries, time.Now())
	r.kept.now(t.retries, time.Now())
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
	r.reportBacklog(t)
}

// scanned adds the entries that the scan of t has found to the lanes.
func (r *relay[TX]) scanned(t *settlement) {
	r.at = t.at
	r.more = r.more || len(t.rows) == scanLimit || t.at.More
	for _, row := range t.rows {
		if strings.HasPrefix(row.URL, Kafka) || strings.HasPrefix(row.URL, NATS) {
			continue // of package kafkaoutbox or natsoutbox
		}
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

func (r *relay[TX]) continueWith(l *lane, row *Row) {
	if row == nil || row.ID != l.id {
		r.troubles.Well(l)
	}
	if row == nil {
		delete(r.lanes, l.key)
		return
	}
	if row.ID != l.id {
		l.attempt, l.wait = 0, nil
		l.more, l.late = true, 0 // more: not known
	}
	l.id, l.row, l.outcome = row.ID, row, outcome{}
	r.ready = append(r.ready, l)
}
