package sqlsink

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/sql/sqltx"
	"github.com/epochfence/epochfence/internal/text/secret"
	"github.com/epochfence/epochfence/operate"
)

// This file keeps the rows of operators in the table ledger: the audit log, dead letters, signs of
// life. It shows entries of the outbox as rows, lists fences, and carries out operators' actions on them.
// Package operate decides what rows mean, and what an action does.

var _ operate.Ledger[*Tx] = (*Sink)(nil)

// keptEntries limits the entries of the audit log that no operator made.
const keptEntries = 200_000

type execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// DeadLetter stores m in the table TablePrefix + "ledger", in the transaction tx, with its
// group and everything needed to send it again. Use it as OnFailure of consumer.Handlers.
func (s *Sink) DeadLetter(ctx context.Context, tx *Tx, m epoch.Message, e epoch.Epoch, cause error) error {
	return operate.PutAside(ctx, s, tx, m, e, cause)
}

// Write implements [operate.Rows]. It waits for the database's write lock.
func (s *Sink) Write(ctx context.Context, cs ...operate.Change) error {
	err := s.write(ctx, func(ctx context.Context, t *sqltx.Tx) error { return s.put(ctx, t.Conn, cs) })
	if err != nil {
		return fmt.Errorf("sqlsink: write %d rows: %w", len(cs), err)
	}
	return nil
}

func (s *Sink) write(ctx context.Context, do func(ctx context.Context, t *sqltx.Tx) error) error {
	t, err := s.transactions.Begin(ctx)
	if err != nil {
		return s.explain(err)
	}
	defer t.End()
	if err := do(context.WithoutCancel(ctx), t); err != nil { // the commit checks ctx again
		return s.explain(err)
	}
	return s.explain(t.Commit(ctx))
}

// WriteIn implements [operate.Ledger].
func (s *Sink) WriteIn(ctx context.Context, tx *Tx, cs ...operate.Change) error {
	for _, c := range cs {
		if !slices.ContainsFunc(tx.as, func(a epoch.Advance) bool { return a.Partition == c.Partition }) {
			return fmt.Errorf("sqlsink: write a row of %s: this transaction is not under a claim of that partition", c.Partition)
		}
	}
	if err := s.put(ctx, tx, cs); err != nil {
		return fmt.Errorf("sqlsink: write %d rows: %w", len(cs), err)
	}
	return nil
}

// put makes the changes of cs.
func (s *Sink) put(ctx context.Context, tx execer, cs []operate.Change) error {
	for _, c := range cs {
		if err := s.putOne(ctx, tx, c); err != nil {
			return fmt.Errorf("%s: %w", c.Kind, err)
		}
	}
	return nil
}

func (s *Sink) putOne(ctx context.Context, tx execer, c operate.Change) error {
	switch {
	case c.Kind == operate.KindProcess && c.Remove:
		_, err := tx.ExecContext(ctx, s.q.gone, c.Name, c.Revision, c.Revision)
		return err
	case c.Kind == operate.KindProcess:
		r, err := tx.ExecContext(ctx, s.q.sign, c.Text, string(c.Body), c.Name)
		if err := oneRow(r, err); !errors.Is(err, errNoRow) {
			return err
		}
		_, err = s.add(ctx, tx, c)
		return err
	case c.Kind == operate.KindOutbox:
		query := s.q.retry
		if c.Remove {
			query = s.q.discard
		}
		r, err := tx.ExecContext(ctx, query, c.Partition.Group, c.Partition.Topic, c.Partition.Number, c.ID, c.Name)
		return changedOne(c, oneRow(r, err))
	case c.ID == 0:
		if _, err := s.add(ctx, tx, c); err != nil || c.Kind != operate.KindEntry {
			return err
		}
		return s.prune(ctx, tx)
	}
	query, args := s.q.remove, []any{string(c.Kind), c.ID, c.Revision}
	if !c.Remove {
		query, args = s.q.revise, slices.Concat([]any{c.State, c.Text, c.By, string(c.Body), delay(c)}, args)
	}
	r, err := tx.ExecContext(ctx, query, args...)
	return changedOne(c, oneRow(r, err))
}

// delay returns the milliseconds after which a dead letter is due, or nil unless it is deferred.
func delay(c operate.Change) any {
	if c.Kind != operate.KindLetter || c.State != operate.StateDeferred {
		return nil
	}
	return c.Delay().Milliseconds()
}

// changedOne returns the error of a change that found no row as [operate.ErrRowChanged].
func changedOne(c operate.Change, err error) error {
	if errors.Is(err, errNoRow) {
		return fmt.Errorf("%d of %s: %w", c.ID, c.Partition, operate.ErrRowChanged)
	}
	return err
}

func (s *Sink) add(ctx context.Context, tx execer, c operate.Change) (sql.Result, error) {
	var headers any
	if c.Headers != nil {
		headers = string(c.Headers)
	}
	return tx.ExecContext(ctx, s.q.add, delay(c), string(c.Kind), string(c.Kind), c.Name, c.Partition.Group, c.Partition.Topic, c.Partition.Number,
		int64(c.Epoch), int64(c.Offset), c.State, c.Text, c.By, string(c.Body), c.Key, c.Value, headers)
}

// prune deletes some of the oldest entries of the audit log, after one was added.
func (s *Sink) prune(ctx context.Context, tx execer) error {
	if _, err := tx.ExecContext(ctx, s.q.pruneMany, keptEntries); err != nil {
		return fmt.Errorf("prune: %w", err)
	}
	if _, err := tx.ExecContext(ctx, s.q.pruneOld); err != nil {
		return fmt.Errorf("prune: %w", err)
	}
	return nil
}

// Rows implements [operate.Rows]. It waits for no transaction.
func (s *Sink) Rows(ctx context.Context, q operate.RowQuery) ([]operate.Row, error) {
	return s.rows(ctx, q, ``)
}

// rows returns the rows that q selects and for which a condition holds, if there is one.
func (s *Sink) rows(ctx context.Context, q operate.RowQuery, condition string) (found []operate.Row, err error) {
	query, args := s.selects(q, condition)
	err = s.transactions.Rows(ctx, func() { found = nil }, query, args, func(rows *sql.Rows) error {
		r, err := scanRow(rows)
		if r.Kind == operate.KindOutbox && !q.Content {
			r.Text = secret.Receiver(r.Text)
		}
		found = append(found, r)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("sqlsink: read rows of kind %s: %w", q.Kind, s.explain(err))
	}
	return found, nil
}

func (s *Sink) selects(q operate.RowQuery, condition string) (query string, args []any) {
	where := []string{`kind = ?`}
	args = []any{string(q.Kind)}
	add := func(is bool, condition string, values ...any) {
		if is {
			where, args = append(where, condition), append(args, values...)
		}
	}
	add(q.ID != 0, `id = ?`, q.ID)
	add(q.Name != "", `name = ?`, q.Name)
	add(q.By != "", `operator = ?`, q.By)
	if p := q.Partition; p != nil {
		add(true, `group_name = ? AND topic = ? AND number = ?`, p.Group, p.Topic, p.Number)
	}
	add(q.Group != "", `group_name = ?`, q.Group)
	add(q.Topic != "", `topic = ?`, q.Topic)
	if q.Number != nil {
		add(true, `number = ?`, *q.Number)
	}
	if n := len(q.States); n > 0 {
		states := make([]any, n)
		for i, state := range q.States {
			states[i] = state
		}
		add(true, `state IN (?`+strings.Repeat(`, ?`, n-1)+`)`, states...)
	}
	add(q.After > 0, `id > ?`, q.After)
	add(q.Before > 0, `id < ?`, q.Before)
	add(!q.Until.IsZero(), `written_at <= ?`, written(q.Until))
	add(condition != ``, condition)
	switch box := q.Kind == operate.KindOutbox; {
	case box && q.Content:
		query = s.q.boxWhole
	case box:
		query = s.q.box
	case q.Content:
		query = s.q.rowsWhole
	default:
		query = s.q.rows
	}
	query += ` WHERE ` + strings.Join(where, ` AND `) + ` ORDER BY `
	if len(q.States) > 0 { // few of many rows: sorted, rather than read in the order of another index
		query += `+`
	}
	query += `id`
	if q.Newest {
		query += ` DESC`
	}
	if q.Limit > 0 {
		query, args = query+` LIMIT ?`, append(args, q.Limit)
	}
	return query, args
}

func scanRow(rows *sql.Rows) (r operate.Row, err error) {
	var at, changed, now, body string
	var headers sql.NullString
	err = rows.Scan(&r.Kind, &r.ID, &r.Name, &r.Partition.Group, &r.Partition.Topic, &r.Partition.Number, &r.Epoch, &r.Offset,
		&r.State, &r.Text, &r.By, &r.Role, &at, &changed, &now, &r.Revision, &body, &r.Key, &r.Value, &headers)
	r.At, r.Changed, r.Now, r.Body = forPeople(at), forPeople(changed), forPeople(now), []byte(body)
	if headers.Valid {
		r.Headers = []byte(headers.String)
	}
	if r.Kind == operate.KindProcess {
		r.ID = 0
	}
	return r, err
}

// forPeople parses a time of the database's that is only shown, and never compared.
func forPeople(s string) time.Time {
	t, _ := time.Parse(time.RFC3339Nano, s)
	return t
}

// written formats a time as the database writes it.
func written(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }

// Requests implements [operate.Ledger]. It waits for no transaction.
func (s *Sink) Requests(ctx context.Context, ps []epoch.Partition) (acts int64, letters []operate.Row, err error) {
	fail := func(err error) (int64, []operate.Row, error) {
		return 0, nil, fmt.Errorf("sqlsink: look for requests about %d partitions: %w", len(ps), s.explain(err))
	}
	err = s.transactions.Patiently(ctx, func(ctx context.Context) error {
		return s.db.QueryRowContext(ctx, s.q.acts).Scan(&acts)
	})
	if err != nil {
		return fail(err)
	}
	due := map[epoch.Partition]bool{}
	err = s.transactions.Rows(ctx, func() { clear(due) }, s.q.due, nil, func(rows *sql.Rows) error {
		var p epoch.Partition
		err := rows.Scan(&p.Group, &p.Topic, &p.Number)
		due[p] = true
		return err
	})
	if err != nil {
		return fail(err)
	}
	for _, p := range ps {
		of := 0
		for _, state := range []string{operate.StateRequested, operate.StateDeferred} {
			most, condition := min(operate.ReplaysEach-of, operate.ReplaysMost-len(letters)), ``
			if state == operate.StateDeferred {
				condition = s.q.isDue
			}
			if most == 0 || state == operate.StateDeferred && !due[p] {
				continue
			}
			rows, err := s.rows(ctx, operate.RowQuery{Kind: operate.KindLetter, Partition: &p, States: []string{state}, Limit: most, Content: true}, condition)
			if err != nil {
				return fail(err)
			}
			of, letters = of+len(rows), append(letters, rows...)
		}
	}
	slices.SortFunc(letters, func(a, b operate.Row) int { return int(a.ID - b.ID) })
	return acts, letters, nil
}

var _ operate.Admin = (*Sink)(nil)

// OpenOperator returns an operator of the sink in db, after the checks of [Open]. It is safe for
// concurrent use, holds no connection between calls, and needs no Close.
func OpenOperator(ctx context.Context, db *sql.DB, d Dialect, o Options) (operate.Operator, error) {
	s, err := Open(ctx, db, d, o)
	if err != nil {
		return nil, err
	}
	return operate.On(s), nil
}

// Partitions implements [operate.Admin].
func (s *Sink) Partitions(ctx context.Context, f operate.Filter, p *epoch.Partition) (found []operate.Partition, err error) {
	letters := map[epoch.Partition]int64{}
	err = s.transactions.Rows(ctx, func() { clear(letters) }, s.q.count, []any{string(operate.KindLetter)}, func(rows *sql.Rows) error {
		var p epoch.Partition
		var n int64
		err := rows.Scan(&p.Group, &p.Topic, &p.Number, &n)
		letters[p] = n
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("sqlsink: list fences: %w", s.explain(err))
	}
	query, args := s.q.list, []any{f.Group, f.Group, f.Topic, f.Topic, f.Paused}
	if p != nil {
		query, args = s.q.listOne, []any{p.Group, p.Topic, p.Number}
	}
	err = s.transactions.Rows(ctx, func() { found = nil }, query, args, func(rows *sql.Rows) error {
		var p operate.Partition
		var claimed, advanced, now string
		k := &p.Fence.Partition
		if err := scan(rows, &p.Fence, &k.Group, &k.Topic, &k.Number, &claimed, &advanced, &now); err != nil {
			return err
		}
		p.ClaimedAt, p.AdvancedAt, p.Now, p.DeadLetters = forPeople(claimed), forPeople(advanced), forPeople(now), letters[*k]
		found = append(found, p)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("sqlsink: list fences: %w", s.explain(err))
	}
	return found, nil
}

// Act implements [operate.Admin]. It waits for the database's write lock. It cannot end the
// transaction of another process.
func (s *Sink) Act(ctx context.Context, a operate.Act) (f epoch.Fence, err error) {
	p := a.Partition
	err = s.write(ctx, func(ctx context.Context, t *sqltx.Tx) error {
		var now string
		if err := t.Conn.QueryRowContext(ctx, s.q.now).Scan(&now); err != nil {
			return err
		}
		a.At = forPeople(now)
		before, err := s.read(ctx, t.Conn, s.q.fence+s.d.forUpdate(), p)
		if err != nil {
			return err
		}
		if f, err = a.Apply(before); err != nil {
			return err
		}
		var since any
		if a.Kind == operate.ActPause {
			since = now
		} else if before.Pause.Mode != epoch.Running && f.Pause == before.Pause {
			since = written(before.Pause.Since)
		}
		r, err := t.Conn.ExecContext(ctx, s.q.act, f.Owner, int64(f.Epoch), f.Claim[:], int64(f.Next), int64(f.Mark), f.Applied, int64(f.SetUnder),
			f.Log, f.Source, string(f.Pause.Mode), f.Pause.By, f.Pause.Reason, since,
			p.Group, p.Topic, p.Number, a.Seen.Claim[:], int64(a.Seen.Epoch))
		if err := oneRow(r, err); err != nil {
			return err
		}
		return s.put(ctx, t.Conn, []operate.Change{operate.EntryOf(a.Decided(before, f))})
	})
	if err != nil {
		return epoch.Fence{}, fmt.Errorf("sqlsink: act on the fence: %w", err)
	}
	return f, nil
}
