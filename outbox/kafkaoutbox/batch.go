package kafkaoutbox

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/form"
	"github.com/epochfence/epochfence/outbox"
)

// This file has the relay's transaction in the database. It decides from Kafka's position what became of
// the assigned batch, and which entries the next batch has. relay.go runs it, and session.go commits
// the batch in Kafka.

// position is what Kafka has committed last. Its name is random, so that it names the same entries in
// every database that a partition's position was ever compared with, also after a restore. The number is
// the offset: it is for people, and rises.
type position struct {
	number int64  // -1: there is none
	name   string // of the batch
}

// assignment is a batch as the database has it, from the transaction that assigns entries to it until the one
// that deletes them. It is an entry of the outbox, with keyBatch as its Key.
type assignment struct {
	form.Version
	Number   int64   `json:"number"`
	Name     string  `json:"name"`
	Previous string  `json:"previous"` // the name of the position that the batch follows
	Entries  []int64 `json:"entries"`

	row int64
}

func (a *assignment) position() position { return position{a.Number, a.Name} }

// following returns an assignment of rows to the batch after p.
func (p position) following(rows []outbox.Row) *assignment {
	a := &assignment{Number: p.number + 1, Name: rand.Text(), Previous: p.name}
	for _, row := range rows {
		a.Entries = append(a.Entries, row.ID)
	}
	return a
}

type decision int

const (
	nothing  decision = iota // no batch is assigned
	deliver                  // Kafka has the batch: delete its entries
	withdraw                 // Kafka does not have it, and never will: its entries can be assigned anew
	doubt
)

// decide returns what became of the assigned batch, or nil, in a session that has read Kafka's position.
//
// The session's InitProducerId came before the read, so no producer before it can commit any more: a
// batch that p precedes stays without effect. A process that calls InitProducerId late, after its claim was
// replaced, learns that from the transaction that calls decide, and sends nothing.
func decide(p position, a *assignment) decision {
	switch {
	case a == nil:
		return nothing
	case p == a.position():
		return deliver
	case p == position{a.Number - 1, a.Previous}:
		return withdraw
	}
	return doubt
}

var errDoubt = errors.New("a batch is in doubt")

// doubtful returns an error with what an operator needs to know and do.
func doubtful(p epoch.Partition, at position, a *assignment) error {
	has := fmt.Sprintf("batch %d, %q", at.number, at.name)
	if at.number < 0 {
		has = "none"
	}
	return fmt.Errorf("kafkaoutbox: %s: %w: the position in Kafka is %s, and entry %d of the outbox says that it is batch %d, %q, or the one before, %q: "+
		"the position was lost or changed, or the database was restored; see whether the topics have the records of the entries %v; if they have, discard these entries; "+
		"then discard entry %d, and what is left is sent", p, errDoubt, has, a.row, a.Number, a.Name, a.Previous, a.Entries, a.row)
}

// maxBytes limits the bytes of a batch of more than one record.
const maxBytes = 4 << 20

const scanRows = 64 // the rows that are read before their size is known

// turn is one transaction of the relay, and its results.
type turn struct {
	at    outbox.Cursor // where the scan starts; afterwards, where it ended
	limit int           // of the batch
	retry []int64       // refused entries that are due
	asks  bool          // read the operators' requests to retry
	count bool

	delivered *assignment    // whose entries were deleted
	seen      map[int64]bool // entries that a scan may return again: those delivered, and those in batch
	batch     []outbox.Row
	next      *assignment // of batch; nil if it is empty
	asked     []int64     // refused entries that operators want to be tried now
	gone      []int64     // refused entries that an operator has discarded
	left      outbox.Backlog
}

// apply runs in the fenced transaction. Without a session, at is nil: it only finds out whether there is
// something to do.
func (r *relay[TX]) apply(ctx context.Context, tx TX, t *turn, at *position) error {
	rows, to, err := r.store.Scan(ctx, tx, r.p, t.at, scanRows)
	if err != nil {
		return err
	}
	a, err := r.assigned(ctx, tx, to)
	if err != nil {
		return err
	}
	if at != nil {
		if err := r.settle(ctx, tx, t, *at, a); err != nil {
			return err
		}
	}
	if t.asks {
		if t.asked, err = r.store.Retries(ctx, tx, r.p); err != nil {
			return err
		}
	}
	if len(t.retry) > 0 {
		err = r.again(ctx, tx, t)
	} else {
		err = r.fill(ctx, tx, t, rows, to)
	}
	if err != nil {
		return err
	}
	if t.count {
		entries, oldest, err := r.store.Count(ctx, tx, r.p, countLimit+1)
		if err != nil {
			return err
		}
		t.left = outbox.Backlog{Partition: r.p, Entries: min(entries, countLimit), More: entries > countLimit, Oldest: oldest}
	}
	if at == nil {
		if a != nil {
			t.next = a
		} else if len(t.batch) > 0 {
			t.next = &assignment{}
		}
		return nil
	}
	return r.assign(ctx, tx, t, *at)
}

// assigned returns the assigned batch, or nil. It was committed under an earlier claim, or by an
// earlier transaction of this one, so it is visible to the scan that returned to.
func (r *relay[TX]) assigned(ctx context.Context, tx TX, to outbox.Cursor) (*assignment, error) {
	to.ID = math.MaxInt64
	rows, err := r.store.Next(ctx, tx, r.p, to, []outbox.Place{{Key: keyBatch}})
	if err != nil || len(rows) == 0 {
		return nil, err
	}
	a := &assignment{}
	if err := form.Parse(rows[0].Body, a); err != nil {
		return nil, fmt.Errorf("kafkaoutbox: entry %d, the batch of %s: %w", rows[0].ID, r.p, err)
	}
	a.row = rows[0].ID
	return a, nil
}

// settle deletes the assigned batch, and its entries if Kafka has them.
func (r *relay[TX]) settle(ctx context.Context, tx TX, t *turn, at position, a *assignment) error {
	var ids []int64
	switch decide(at, a) {
	case nothing:
		return nil
	case deliver:
		t.delivered = a
		for _, id := range a.Entries {
			ids, t.seen[id] = append(ids, id), true
		}
	case withdraw:
	default:
		return doubtful(r.p, at, a)
	}
	_, err := r.store.Delete(ctx, tx, r.p, append(ids, a.row))
	return err
}

// again makes a batch of refused entries whose wait is over.
func (r *relay[TX]) again(ctx context.Context, tx TX, t *turn) error {
	rows, err := r.store.Load(ctx, tx, r.p, t.retry)
	if err != nil {
		return err
	}
	slices.SortFunc(rows, func(a, b outbox.Row) int { return cmp.Compare(a.ID, b.ID) })
	for _, id := range t.retry {
		if !slices.ContainsFunc(rows, func(row outbox.Row) bool { return row.ID == id }) {
			t.gone = append(t.gone, id)
		}
	}
	size := 0
	for _, row := range rows {
		if !t.takes(row, &size) {
			break
		}
	}
	return nil
}

// fill makes a batch of the next entries, in the order of their IDs. An entry that is committed between two
// scans makes the second one return entries again.
func (r *relay[TX]) fill(ctx context.Context, tx TX, t *turn, rows []outbox.Row, to outbox.Cursor) (err error) {
	defer func() {
		slices.SortFunc(t.batch, func(a, b outbox.Row) int { return cmp.Compare(a.ID, b.ID) })
	}()
	size, limit := 0, scanRows
	for {
		for _, row := range rows {
			if t.seen[row.ID] || !isRecord(row) || r.refused.holds(row) {
				continue
			}
			if !t.takes(row, &size) {
				return nil
			}
			t.at = outbox.Cursor{ID: row.ID, Seen: to.Seen}
		}
		t.at = to
		if len(rows) < limit {
			return nil
		}
		limit = scanRows
		if n := len(t.batch); n > 0 { // as many as probably fit
			limit = min(max((maxBytes-size)/(size/n+1), 1), max(t.limit-n, 1))
		}
		if rows, to, err = r.store.Scan(ctx, tx, r.p, to, limit); err != nil {
			return err
		}
	}
}

// takes adds a row to the batch unless it is full.
func (t *turn) takes(row outbox.Row, size *int) bool {
	n := len(row.Body) + 512
	for _, values := range row.Header {
		for _, v := range values {
			n += len(v)
		}
	}
	if len(t.batch) >= t.limit || len(t.batch) > 0 && *size+n > maxBytes {
		return false
	}
	*size += n
	t.seen[row.ID] = true
	t.batch = append(t.batch, row)
	return true
}

// assign stores which entries the batch after at has.
func (r *relay[TX]) assign(ctx context.Context, tx TX, t *turn, at position) error {
	if len(t.batch) == 0 {
		return nil
	}
	if at.number < 0 { // an operator has discarded a batch in doubt since the session began
		return fmt.Errorf("kafkaoutbox: %s has no position in Kafka yet", r.p)
	}
	t.next = at.following(t.batch)
	body, err := form.Text(t.next)
	if err != nil {
		return err
	}
	e := outbox.Entry{Key: keyBatch, IdempotencyKey: t.next.Name, Method: methodBatch, URL: urlStart + r.o.Positions, Body: body}
	return r.store.Add(ctx, tx, epoch.Message{Partition: r.p, Offset: t.batch[0].Offset}, e)
}

// refusals are entries that their topic refuses. Later entries of their Keys wait.
type refusals struct {
	of   map[int64]time.Time // when to try again
	keys map[string]int64
}

func (s *refusals) add(row outbox.Row, until time.Time) {
	if s.of == nil {
		s.of, s.keys = map[int64]time.Time{}, map[string]int64{}
	}
	if row.Key != "" {
		s.keys[row.Key] = row.ID
	}
	s.of[row.ID] = until
}

// holds reports whether row is refused, or waits for one that is.
func (s *refusals) holds(row outbox.Row) bool {
	_, refused := s.of[row.ID]
	_, waits := s.keys[row.Key]
	return refused || waits
}

func (s *refusals) remove(id int64) {
	delete(s.of, id)
	for key, of := range s.keys {
		if of == id {
			delete(s.keys, key)
		}
	}
}

// due returns the first refused entries whose wait is over, in order.
func (s *refusals) due(now time.Time, limit int) (ids []int64) {
	for id, until := range s.of {
		if !until.After(now) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids[:min(len(ids), limit)]
}

// blame returns the rows of a failed batch that are the cause: their topic refuses them. narrow is true if
// the cause is among several that Kafka refused together, and fewer must be sent to find it. For an
// error that is no record's fault, both are empty.
func blame(rows []outbox.Row, errs []error) (refused []int, narrow bool) {
	var together []int
	keys := map[string]bool{}
	for i, err := range errs {
		switch {
		case errors.Is(err, kerr.UnknownTopicOrPartition), errors.Is(err, kerr.UnknownTopicID), errors.Is(err, kerr.TopicAuthorizationFailed),
			errors.Is(err, kerr.InvalidTopicException):
			if rows[i].Key == "" || !keys[rows[i].Key] { // the first of a Key: the others wait for it
				refused = append(refused, i)
			}
			keys[rows[i].Key] = true
		case errors.Is(err, kerr.MessageTooLarge), errors.Is(err, kerr.RecordListTooLarge), errors.Is(err, kerr.InvalidRecord),
			errors.Is(err, kerr.PolicyViolation), errors.Is(err, kerr.InvalidTimestamp), errors.Is(err, kerr.UnsupportedForMessageFormat):
			together = append(together, i)
		}
	}
	if len(together) == 1 {
		return append(refused, together...), false
	}
	return refused, len(refused) == 0 && len(together) > 1
}
