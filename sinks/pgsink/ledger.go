package pgsink

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/sql/pgschema"
	"github.com/epochfence/epochfence/operate"
)

// This file keeps the rows of operators in the table fence_ledger: the audit log, dead letters, signs of
// life. It shows entries of the outbox as rows. Package operate decides what they mean and how they change, and the SQL function write_row what
// a consumer may write. operator.go is the operators' own side.

var (
	_ operate.Ledger[Tx]     = (*Sink)(nil)
	_ operate.Ledger[*Queue] = Queued{}
	_ operate.Snapshots      = (*Sink)(nil)
)

// DeadLetter stores a message that could not be applied in the table fence_ledger, in the
// transaction that moves past it. Use it as consumer.Handlers.OnFailure. tx must come from a [Sink]
// with the same Schema. Keys, values, headers and times are stored as they are. Bytes of the error's
// text that PostgreSQL cannot store are replaced.
func (s *Sink) DeadLetter(ctx context.Context, tx Tx, m epoch.Message, e epoch.Epoch, cause error) error {
	return operate.PutAside(ctx, s, tx, m, e, cause)
}

// DeadLetter is [Sink.DeadLetter] for a queue.
func (s Queued) DeadLetter(ctx context.Context, q *Queue, m epoch.Message, e epoch.Epoch, cause error) error {
	return operate.PutAside(ctx, s, q, m, e, cause)
}

// rowArgs are the arguments of the SQL function write_row.
func rowArgs(c operate.Change) []any {
	var headers *string
	if c.Headers != nil {
		text := string(c.Headers)
		headers = &text
	}
	p := c.Partition
	return []any{string(c.Kind), c.ID, c.Revision, c.Remove, c.Name, p.Group, p.Topic, p.Number, int64(c.Epoch), int64(c.Offset),
		c.State, c.Text, c.By, string(c.Body), c.Key, c.Value, headers}
}

// Write implements [operate.Rows].
func (s *Sink) Write(ctx context.Context, cs ...operate.Change) error {
	again := harmless
	for _, c := range cs {
		if err := checkPartition(c.Partition); err != nil {
			return err
		}
		if c.ID == 0 && c.Kind != operate.KindProcess && cs[0].ID == 0 {
			again = harmful // it would be added twice
		}
	}
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	err := s.transact(ctx, again, func(b *pgx.Batch) {
		for _, c := range cs {
			b.Queue(s.sql.write, rowArgs(c)...)
		}
	}, func(r pgx.BatchResults) error {
		for range cs {
			if err := execOne(r); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("pgsink: write %d rows: %w", len(cs), about(cs[0].Kind, changed(ended(ctx, explain(err)))))
	}
	return nil
}

// about marks an error of a statement about rows of a kind. A sign of life is no message's fault, whatever it says.
func about(kind operate.Kind, err error) error {
	if kind == operate.KindProcess {
		return faultless(err)
	}
	return ours(err)
}

// changed marks the refusal of a change as [operate.ErrRowChanged].
func changed(err error) error {
	if sqlState(err) == codeChanged {
		return fmt.Errorf("%w: %w", operate.ErrRowChanged, err)
	}
	return err
}

// WriteIn implements [operate.Ledger]. What it changes or removes, it also does if the handler has
// undone its own writes.
func (s *Sink) WriteIn(ctx context.Context, tx Tx, cs ...operate.Change) error {
	t, ok := tx.(*handlerTx)
	if !ok {
		return fmt.Errorf("pgsink: write a row: a %T is not the transaction that the sink gave", tx)
	}
	if err := t.as.have(cs); err != nil {
		return err
	}
	if cs[0].ID == 0 {
		for _, c := range cs {
			if _, err := t.Exec(pgschema.Own(ctx), s.sql.write, rowArgs(c)...); err != nil {
				return fmt.Errorf("pgsink: write a row of %s: %w", c.Partition, explain(err))
			}
		}
		return nil
	}
	if err := t.settle(ctx, cs); err != nil {
		return fmt.Errorf("pgsink: write a row of %s: %w", cs[0].Partition, changed(explain(err)))
	}
	return nil
}

// have returns an error unless each change is about a partition of the transaction.
func (as *advances) have(cs []operate.Change) error {
	for _, c := range cs {
		if _, ok := as.of(c.Partition); !ok {
			return fmt.Errorf("pgsink: write a row of %s: this transaction is not under a claim of that partition", c.Partition)
		}
	}
	return nil
}

// settle makes changes, also if the handler has undone its own writes.
func (t *handlerTx) settle(ctx context.Context, cs []operate.Change) (err error) {
	if err := t.undo(ctx); err != nil {
		return err
	}
	t.undone = false
	if err := t.use(ctx); err != nil {
		return err
	}
	t.ours = true
	defer func() { t.done(err) }()
	for _, c := range cs {
		if _, err = t.exec(ctx, t.fenced.sink.sql.write, rowArgs(c)...); err != nil {
			return err
		}
	}
	return nil
}

// WriteIn is [Sink.WriteIn] for a queue.
func (s Queued) WriteIn(ctx context.Context, q *Queue, cs ...operate.Change) error {
	if err := q.as.have(cs); err != nil {
		return err
	}
	q.replays = q.replays || cs[0].ID != 0
	for _, c := range cs {
		if _, err := q.Exec(pgschema.Own(ctx), s.sql.write, rowArgs(c)...); err != nil {
			return err
		}
	}
	return nil
}

// Rows implements [operate.Rows].
func (s *Sink) Rows(ctx context.Context, q operate.RowQuery) ([]operate.Row, error) {
	var (
		group, topic, name, by = orNil(q.Group), orNil(q.Topic), orNil(q.Name), orNil(q.By)
		number                 = q.Number
		until                  *time.Time
		most                   *int64
	)
	if p := q.Partition; p != nil {
		group, topic, number = &p.Group, &p.Topic, &p.Number
	}
	if !q.Until.IsZero() {
		until = &q.Until
	}
	if q.Limit > 0 {
		n := int64(q.Limit)
		most = &n
	}
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	found, err := collect(ctx, s, scanRow, s.sql.rows, string(q.Kind), orZero(q.ID), name, by, group, topic, number, q.States,
		orZero(q.After), orZero(q.Before), until, q.Newest, most)
	if err == nil && q.Content && len(found) > 0 {
		err = s.contents(ctx, q.Kind, found)
	}
	if err != nil {
		return nil, fmt.Errorf("pgsink: read rows of kind %s: %w", q.Kind, about(q.Kind, ended(ctx, explain(err))))
	}
	return found, nil
}

// contents reads the messages of dead letters, or the requests of the outbox, if they are still there.
func (s *Sink) contents(ctx context.Context, kind operate.Kind, rows []operate.Row) error {
	at, ids := map[int64]*operate.Row{}, make([]int64, len(rows))
	for i := range rows {
		ids[i], at[rows[i].ID] = rows[i].ID, &rows[i]
	}
	_, err := collect(ctx, s, func(row pgx.CollectableRow) (struct{}, error) {
		var r operate.Row
		var headers *string
		err := row.Scan(&r.ID, &r.Text, &r.Key, &r.Value, &headers)
		if of := at[r.ID]; err == nil && of != nil {
			of.Text, of.Key, of.Value, of.Headers = r.Text, r.Key, r.Value, bytesOf(headers)
		}
		return struct{}{}, err
	}, s.sql.contents, string(kind), ids)
	return err
}

func bytesOf(text *string) []byte {
	if text == nil {
		return nil
	}
	return []byte(*text)
}

func orZero(n int64) *int64 {
	if n == 0 {
		return nil
	}
	return &n
}

const rowColumns = "kind, id, name, group_name, topic, partition, epoch, message_offset, state, cause, operator, role, written_at, changed_at, read_at, revision, body"

func into(r *operate.Row) []any {
	p := &r.Partition
	return []any{&r.Kind, &r.ID, &r.Name, &p.Group, &p.Topic, &p.Number, &r.Epoch, &r.Offset, &r.State, &r.Text, &r.By, &r.Role,
		&r.At, &r.Changed, &r.Now, &r.Revision, (*[]byte)(&r.Body)}
}

func scanRow(row pgx.CollectableRow) (r operate.Row, err error) {
	err = row.Scan(into(&r)...)
	return shown(r), err
}

// shown returns a row as package operate has it.
func shown(r operate.Row) operate.Row {
	r.At, r.Changed, r.Now = inUTC(&r.At), inUTC(&r.Changed), inUTC(&r.Now)
	if r.Kind == operate.KindProcess {
		r.ID = 0
	}
	return r
}

// requestRow is a row of requests(). The first has the number of acts alone.
type requestRow struct {
	acts int64
	row  *operate.Row
}

func scanRequest(row pgx.CollectableRow) (r requestRow, err error) {
	if row.RawValues()[1] == nil {
		return r, row.Scan(append([]any{&r.acts}, make([]any, 20)...)...)
	}
	var found operate.Row
	var headers *string
	err = row.Scan(append(append([]any{nil}, into(&found)...), &found.Key, &found.Value, &headers)...)
	found.Headers = bytesOf(headers)
	found = shown(found)
	return requestRow{row: &found}, err
}

// Requests implements [operate.Ledger].
func (s *Sink) Requests(ctx context.Context, ps []epoch.Partition) (acts int64, letters []operate.Row, err error) {
	for _, p := range ps {
		if err := checkPartition(p); err != nil {
			return 0, nil, err
		}
	}
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	groups, topics, numbers := keys(ps)
	found, err := collect(ctx, s, scanRequest, s.sql.requests, groups, topics, numbers, int64(operate.ReplaysEach), int64(operate.ReplaysMost))
	if err != nil {
		return 0, nil, fmt.Errorf("pgsink: look for requests about %d partitions: %w", len(ps), ours(ended(ctx, explain(err))))
	}
	for _, r := range found {
		if r.row == nil {
			acts = r.acts
		} else {
			letters = append(letters, *r.row)
		}
	}
	return acts, letters, nil
}

// OldestSnapshots implements [operate.Snapshots].
func (s *Sink) OldestSnapshots(ctx context.Context) (held []operate.Snapshot, err error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	err = s.on(ctx, harmless, func(conn *pgx.Conn) (err error) {
		held, err = pgschema.OldestSnapshots(ctx, conn)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("pgsink: find the holders of old snapshots: %w", faultless(ended(ctx, explain(err))))
	}
	return held, nil
}
