package batches

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/form"
	"github.com/epochfence/epochfence/outbox"
)

// This file has the relay's transaction in the database. It decides from the server's position what became
// of the assigned batch, and which entries the next batch has. relay.go runs it, and the [Session] commits
// the batch in the server.

// Position is what the server has committed last. Its name is random, so that it names the same entries in
// every database that a partition's position was ever compared with, also after a restore. The number is
// for people, and rises.
type Position struct {
	Number int64  // -1: there is none
	Name   string // of the batch
}

// Next returns the position of an empty batch after p.
func (p Position) Next() Position { return p.following(nil).position() }

const emptyStart = "empty "

// empty reports whether the server has no batch, or one without records: the first, and the last of a session
// that was idle.
func (p Position) empty() bool { return p.Number < 0 || strings.HasPrefix(p.Name, emptyStart) }

// assignment is what the database knows of the position in the server. It is an entry of the outbox, with
// Target.keyBatch as its Key. The transaction that deletes the entries of a batch replaces its assignment
// by a settled one, unless it assigns the next batch. A database that has lost its last commits then
// contradicts the server. Only if the server's batch is empty is there none, so that an idle partition has
// no entry.
type assignment struct {
	form.Version
	Number   int64   `json:"number"`
	Name     string  `json:"name"`
	Previous string  `json:"previous"` // the name of the position that the batch follows; empty: settled; or inDoubt
	Entries  []int64 `json:"entries"`

	// Topics are those of the batch, Before those of the one that it follows: see markers.go.
	Topics []string `json:"topics,omitempty"`
	Before []string `json:"before,omitempty"`

	// Completion is that of a [Completer] which has begun: of this batch, of the one that it follows, or of Ahead.
	Completion string `json:"completion,omitempty"`

	// Ahead is the next batch. It is assigned while this one is sent, and sent only once the server has this one.
	Ahead *assignment `json:"ahead,omitempty"`

	row    int64
	offset epoch.Offset // of the entry
}

// inDoubt is the Previous of an entry that keeps a doubt without an assignment. It has the server's position,
// which the server may forget: then the partition would look as if it had never sent.
const inDoubt = "in doubt"

func (a *assignment) position() Position { return Position{a.Number, a.Name} }
func (a *assignment) settled() bool      { return a.Previous == "" }

// batches returns a and what is ahead of it, in the order in which they are sent.
func (a *assignment) batches() []*assignment {
	if a.Ahead == nil {
		return []*assignment{a}
	}
	return []*assignment{a, a.Ahead}
}

// following returns an assignment of rows to the batch after p.
func (p Position) following(rows []outbox.Row) *assignment {
	a := &assignment{Number: p.Number + 1, Name: rand.Text(), Previous: p.Name, Entries: make([]int64, len(rows)), offset: -1}
	for i, row := range rows {
		a.Entries[i] = row.ID
	}
	if len(rows) == 0 {
		a.Name = emptyStart + a.Name
	} else {
		a.offset = rows[0].Offset
	}
	return a
}

type decision int

const (
	nothing  decision = iota // no batch is assigned
	deliver                  // the server has the batch, or also the one ahead: delete its entries, and assign the others anew
	withdraw                 // the server has neither, and never will: their entries can be assigned anew
	doubt
)

// decide returns what became of the assigned batch, or nil, in a session that has read the position p.
//
// The session has fenced all before it, so none of them can commit any more: a batch that p precedes
// stays without effect. A process that opens a session late, after its claim was replaced, learns that
// from the transaction that calls decide, and sends nothing. If a completion is torn, the batch behind p may have
// an effect in a part of its destinations.
func decide(p Position, a *assignment, torn bool) decision {
	switch {
	case a == nil && p.empty():
		return nothing
	case a == nil, // discarded, or the database has lost commits
		a.Previous == inDoubt:
		return doubt
	case p == a.position() && (!torn || a.Ahead == nil),
		a.Ahead != nil && p == a.Ahead.position():
		return deliver
	case !a.settled() && p == Position{a.Number - 1, a.Previous} && !torn:
		return withdraw
	}
	return doubt
}

// ErrDoubt says that it is not known whether the server has a batch. An operator decides.
var ErrDoubt = errors.New("a batch is in doubt")

// doubtful returns an error with what an operator needs to know and do.
func (o *Target) doubtful(p epoch.Partition, at Position, a *assignment) error {
	var ids []int64
	theirs, ours, which, row := fmt.Sprintf("batch %d, %q", at.Number, at.Name), "does not know it", "the partition's entries", "the partition's entry BATCH"
	if at.Number < 0 {
		theirs = "none"
	}
	if a != nil {
		ours = fmt.Sprintf("says in entry %d that it is batch %d, %q, or the one before, %q", a.row, a.Number, a.Name, a.Previous)
		if row, ids = fmt.Sprintf("entry %d", a.row), a.Entries; a.Ahead != nil {
			ours += fmt.Sprintf(", or the one after, %q", a.Ahead.Name)
			ids = slices.Concat(ids, a.Ahead.Entries)
		}
	}
	if a != nil && a.Previous == inDoubt {
		ours = fmt.Sprintf("says in entry %d that it did not know batch %d, %q", a.row, a.Number, a.Name)
	}
	if len(ids) > 0 {
		which = fmt.Sprintf("the entries %v, and of later ones if the database lost commits", ids)
	}
	why := "the position was lost or changed, a batch was discarded, or the database was restored or has lost commits"
	if a != nil && a.Completion != "" && (at == a.position() || at == Position{a.Number - 1, a.Previous}) {
		why = fmt.Sprintf("%s may have the batch in a part of its %ss, because its completion was interrupted", o.Server, o.Destination)
	}
	return fmt.Errorf("%s: %s: %w: the position in %s is %s, and the outbox %s: %s; see whether the %ss have the %ss of %s; "+
		"discard the entries whose %ss they have; then %s, and after that discard %s: what is left is sent",
		o.Package, p, ErrDoubt, o.Server, theirs, ours, why, o.Destination, o.Record, which, o.Record, o.Forget(p), row)
}

const (
	maxBytes = 4 << 20 // of a batch of more than one record
	scanRows = 64      // read at once, at least: others may be no records, or wait
)

// turn is one transaction of the relay, and its results.
type turn struct {
	at    outbox.Cursor // where the scan starts; afterwards, where it ended
	limit int           // of the batch
	probe bool          // there is no session: find out whether there is something to do
	idle  bool          // if nothing is left, write an empty batch, after which the session ends
	keep  bool          // write one in any case, so that the server does not forget the position
	retry []int64       // refused entries that are due, of different Keys
	asks  []int64       // refused entries: read the operators' requests to retry them
	count bool

	sending *assignment // the server may have it by now, or not: it stays, and the next batch is put ahead of it

	unknown   bool           // the doubt is not recorded
	delivered []int64        // entries that were deleted
	full      bool           // the batch has no room for what comes next
	more      bool           // the scan has not reached the end
	seen      map[int64]bool // entries that a scan may return again: those delivered or being sent, and those in batch
	batch     []outbox.Row
	next      *assignment // of batch; nil if it is empty
	asked     []int64     // refused entries that operators want to be tried now
	gone      []int64     // refused entries that an operator has discarded
	behind    []int64     // entries to retry, with an earlier one of their Key in the store
	left      outbox.Backlog
}

// apply runs in the fenced transaction. For a probe, at is nil.
func (r *relay[TX]) apply(ctx context.Context, tx TX, t *turn, at *Position) error {
	limit := 1
	if !t.probe && t.limit > 0 && len(t.retry) == 0 {
		limit = max(scanRows, t.limit)
	}
	rows, to, err := r.store.Scan(ctx, tx, r.p, t.at, limit)
	if err != nil {
		return err
	}
	a, err := r.assigned(ctx, tx, to)
	if err != nil {
		return err
	}
	if !t.probe {
		if err := r.settle(ctx, tx, t, *at, a); err != nil {
			return err
		}
	}
	if len(t.asks) > 0 {
		if t.asked, err = r.store.Retries(ctx, tx, r.p, t.asks); err != nil {
			return err
		}
	}
	switch {
	case len(t.retry) > 0:
		err = r.again(ctx, tx, t, to)
	case t.limit > 0:
		err = r.fill(ctx, tx, t, rows, to, limit)
	}
	if err != nil {
		return err
	}
	if t.count = t.count || r.filled && t.sending == nil && len(t.batch) == 0 && len(t.delivered)+len(t.gone) > 0; t.count {
		entries, oldest, err := r.store.Count(ctx, tx, r.p, countLimit+2)
		if err != nil {
			return err
		}
		if a != nil && (t.probe || a.settled()) {
			entries = max(0, entries-1)
		}
		if t.left = (outbox.Backlog{Partition: r.p, Entries: min(entries, countLimit), More: entries > countLimit}); entries > 0 {
			t.left.Oldest = oldest
		}
	}
	if !t.probe {
		return r.assign(ctx, tx, t, *at, a)
	}
	if a != nil {
		t.next = a
	} else if len(t.batch) > 0 {
		t.next = &assignment{}
	}
	return nil
}

// assigned returns the assigned batch, or nil. It was committed under an earlier claim, or by an
// earlier transaction of this one, so it is visible to the scan that returned to.
func (r *relay[TX]) assigned(ctx context.Context, tx TX, to outbox.Cursor) (*assignment, error) {
	to.ID = math.MaxInt64
	rows, err := r.store.Next(ctx, tx, r.p, to, []outbox.Place{{Key: r.o.keyBatch()}})
	if err != nil || len(rows) == 0 {
		return nil, err
	}
	a := &assignment{}
	if err := form.Parse(rows[0].Body, a); err != nil {
		return nil, fmt.Errorf("%s: entry %d, the batch of %s: %w", r.o.Package, rows[0].ID, r.p, err)
	}
	a.row, a.offset = rows[0].ID, rows[0].Offset
	return a, nil
}

// settle deletes the assigned batches, and the entries that the server has. A settled one stays.
func (r *relay[TX]) settle(ctx context.Context, tx TX, t *turn, at Position, a *assignment) error {
	if t.sending != nil && (a == nil || a.batches()[len(a.batches())-1].Name != t.sending.Name) {
		return fmt.Errorf("%s: %s: batch %d was discarded while it was sent", r.o.Package, r.p, t.sending.Number)
	}
	c, completes := r.session.(Completer)
	decided := decide(at, a, completes && a != nil && t.sending == nil && c.Torn(a.Completion))
	switch {
	case decided == doubt:
		t.unknown = a == nil
		return r.o.doubtful(r.p, at, a)
	case decided == nothing || a.settled():
		return nil
	}
	has := decided == deliver
	for _, batch := range a.batches() {
		for _, id := range batch.Entries {
			if t.seen[id] = has || t.sending != nil; has {
				t.delivered = append(t.delivered, id)
			}
		}
		has = has && batch.position() != at
	}
	_, err := r.store.Delete(ctx, tx, r.p, append([]int64{a.row}, t.delivered...))
	return err
}

// again makes a batch of refused entries whose wait is over. Each must be the first of its Key in the store:
// one before it may have been in the same batch, and not refused.
func (r *relay[TX]) again(ctx context.Context, tx TX, t *turn, to outbox.Cursor) error {
	rows, err := r.store.Load(ctx, tx, r.p, t.retry)
	if err != nil {
		return err
	}
	slices.SortFunc(rows, func(a, b outbox.Row) int { return cmp.Compare(a.ID, b.ID) })
	has := func(rows []outbox.Row, id int64) bool {
		return slices.ContainsFunc(rows, func(row outbox.Row) bool { return row.ID == id })
	}
	for _, id := range t.retry {
		if !has(rows, id) {
			t.gone = append(t.gone, id)
		}
	}
	var places []outbox.Place
	for _, row := range rows {
		if row.Key != "" {
			places = append(places, outbox.Place{Key: row.Key})
		}
	}
	var first []outbox.Row
	if to.ID = math.MaxInt64; len(places) > 0 {
		if first, err = r.store.Next(ctx, tx, r.p, to, places); err != nil {
			return err
		}
	}
	size := 0
	for _, row := range rows {
		if row.Key != "" && !has(first, row.ID) {
			t.behind = append(t.behind, row.ID)
		} else if !t.takes(row, &size) {
			break
		}
	}
	return nil
}

// fill makes a batch of the next entries, in the order of their IDs. An entry that is committed between two
// scans makes the second one return entries again.
func (r *relay[TX]) fill(ctx context.Context, tx TX, t *turn, rows []outbox.Row, to outbox.Cursor, limit int) (err error) {
	defer func() {
		slices.SortFunc(t.batch, func(a, b outbox.Row) int { return cmp.Compare(a.ID, b.ID) })
	}()
	size, all := 0, 0
	for scans := 1; ; scans++ {
		all += len(rows)
		for _, row := range rows {
			if t.seen[row.ID] || !r.o.isRecord(row) || r.refused.holds(row) {
				continue
			}
			if t.full = !t.takes(row, &size); t.full {
				return nil
			}
			t.at = outbox.Cursor{ID: row.ID, Seen: to.Seen}
		}
		t.at = to
		if t.full = !t.probe && len(t.batch) == t.limit; t.full || len(rows) < limit && !to.More || t.probe && len(t.batch) > 0 {
			return nil
		}
		if t.more = scans == r.o.Batch/scanRows+8 || all >= r.o.Batch+8*scanRows; t.more { // enough for a full batch
			return nil
		}
		limit = min(max(scanRows, t.limit-len(t.batch)), r.o.Batch+8*scanRows-all)
		if rows, to, err = r.store.Scan(ctx, tx, r.p, to, limit); err != nil {
			return err
		}
	}
}

// takes adds a row to the batch unless it is full.
func (t *turn) takes(row outbox.Row, size *int) bool {
	n := row.Size()
	if len(t.batch) >= t.limit || len(t.batch) > 0 && *size+n > maxBytes {
		return false
	}
	*size += n
	t.seen[row.ID] = true
	t.batch = append(t.batch, row)
	return true
}

// assign stores what the database is to know of the server's position: the next batch, or that the last is settled.
func (r *relay[TX]) assign(ctx context.Context, tx TX, t *turn, at Position, a *assignment) error {
	settled := a != nil && a.settled()
	store := &assignment{Number: at.Number, Name: at.Name, Entries: []int64{}, offset: -1}
	if a != nil {
		store.Topics = a.Before // if it is withdrawn
		for _, batch := range a.batches() {
			if at == batch.position() {
				store.Topics = batch.Topics
			}
		}
	}
	switch {
	case t.sending != nil:
		store, t.sending.Ahead = t.sending, nil
		if len(t.batch) > 0 {
			t.next = t.sending.position().following(t.batch)
			if r.o.Partial {
				t.next.Topics, t.next.Before = destinationsOf(t.batch), t.sending.Topics
			}
			store.Ahead = t.next
		}
	case len(t.batch) > 0 && at.Number < 0: // an operator has discarded a batch in doubt since the session began
		return fmt.Errorf("%s: %s has no position in %s yet", r.o.Package, r.p, r.o.Server)
	case len(t.batch) > 0, t.idle && settled, t.keep && at.Number >= 0:
		t.next = at.following(t.batch)
		if r.o.Partial {
			t.next.Topics, t.next.Before = destinationsOf(t.batch), store.Topics
		}
		store = t.next
	case settled || at.empty():
		return nil
	}
	if settled {
		if _, err := r.store.Delete(ctx, tx, r.p, []int64{a.row}); err != nil {
			return err
		}
	}
	return r.put(ctx, tx, store, strings.TrimPrefix(store.Name, emptyStart))
}

func (r *relay[TX]) put(ctx context.Context, tx TX, a *assignment, key string) error {
	body, err := form.Text(a)
	if err != nil {
		return err
	}
	m := epoch.Message{Partition: r.p, Offset: a.offset}
	return r.store.Add(ctx, tx, m, outbox.Entry{Key: r.o.keyBatch(), IdempotencyKey: key, Method: MethodBatch, URL: r.o.Prefix + "//" + r.o.Positions, Body: body})
}

// remember keeps a doubt of which the database has no entry.
func (r *relay[TX]) remember(ctx context.Context, at Position) error {
	return r.claim.Do(ctx, func(ctx context.Context, tx TX) error {
		a := &assignment{Number: at.Number, Name: at.Name, Previous: inDoubt, Entries: []int64{}, offset: -1}
		return r.put(ctx, tx, a, rand.Text()) // the name may have been set by hand
	})
}
