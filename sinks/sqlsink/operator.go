package sqlsink

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/sql/sqltx"
	"github.com/epochfence/epochfence/operate"
)

// This file is the operators' side: lists, history, and actions on fences and dead letters. Package
// operate decides whether an action is allowed.

// Operator operates the fences of a database. It is safe for concurrent use, holds no connection
// between calls, and needs no Close.
type Operator struct{ sink *Sink }

var _ operate.Operator = (*Operator)(nil)

// OpenOperator returns an operator of the sink in db, after the checks of [Open].
func OpenOperator(ctx context.Context, db *sql.DB, d Dialect, o Options) (*Operator, error) {
	s, err := Open(ctx, db, d, o)
	if err != nil {
		return nil, err
	}
	return &Operator{sink: s}, nil
}

func (o *Operator) rows(ctx context.Context, begin func(), query string, args []any, scan func(*sql.Rows) error) error {
	return o.sink.explain(o.sink.transactions.Rows(ctx, begin, query, args, scan))
}

// Partitions implements [operate.Operator].
func (o *Operator) Partitions(ctx context.Context, f operate.Filter) ([]operate.Partition, error) {
	found, err := o.list(ctx, f, nil)
	if err != nil {
		return nil, fmt.Errorf("sqlsink: list fences: %w", err)
	}
	return found, nil
}

// Partition implements [operate.Operator].
func (o *Operator) Partition(ctx context.Context, p epoch.Partition) (operate.Partition, error) {
	found, err := o.list(ctx, operate.Filter{Group: p.Group, Topic: p.Topic}, &p.Number)
	if err != nil {
		return operate.Partition{}, fmt.Errorf("sqlsink: read fence %s: %w", p, err)
	}
	for _, f := range found { // an empty name in a Filter selects all
		if f.Fence.Partition == p {
			return f, nil
		}
	}
	return operate.Partition{}, fmt.Errorf("sqlsink: read fence: %w", &epoch.MissingError{Partition: p})
}

func (o *Operator) list(ctx context.Context, f operate.Filter, number *int32) (found []operate.Partition, err error) {
	q := o.sink.q
	letters := map[epoch.Partition]int64{}
	err = o.rows(ctx, func() { clear(letters) }, q.count, nil, func(rows *sql.Rows) error {
		var p epoch.Partition
		var n int64
		err := rows.Scan(&p.Group, &p.Topic, &p.Number, &n)
		letters[p] = n
		return err
	})
	if err != nil {
		return nil, err
	}
	args := []any{f.Group, f.Group, f.Topic, f.Topic, number, number, f.Paused}
	err = o.rows(ctx, func() { found = nil }, q.list, args, func(rows *sql.Rows) error {
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
	return found, err
}

// Act implements [operate.Operator]. It waits for the database's write lock. It cannot end the
// transaction of another process.
func (o *Operator) Act(ctx context.Context, a operate.Act) (f epoch.Fence, err error) {
	s, p := o.sink, a.Partition
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
		return s.decide(ctx, t.Conn, a.Decided(before, f))
	})
	if err != nil {
		return epoch.Fence{}, fmt.Errorf("sqlsink: %s %s: %w", a.Kind, p, err)
	}
	return f, nil
}

// History implements [operate.Operator].
func (o *Operator) History(ctx context.Context, q operate.HistoryQuery) (found []operate.Decision, err error) {
	var where []string
	var args []any
	add := func(condition string, values ...any) {
		where, args = append(where, condition), append(args, values...)
	}
	if p := q.Partition; p != nil {
		add(`group_name = ? AND topic = ? AND number = ?`, p.Group, p.Topic, p.Number)
	}
	if q.Claim != (epoch.ClaimID{}) {
		add(`claim_id = ?`, q.Claim[:])
	}
	if len(q.Kinds) > 0 {
		kinds := make([]any, len(q.Kinds))
		for i, k := range q.Kinds {
			kinds[i] = string(k)
		}
		add(`kind IN (?`+strings.Repeat(`, ?`, len(kinds)-1)+`)`, kinds...)
	}
	if q.Before > 0 {
		add(`id < ?`, q.Before)
	}
	if !q.Until.IsZero() {
		add(`julianday(decided_at) <= julianday(?)`, written(q.Until))
	}
	err = o.rows(ctx, func() { found = nil }, o.sink.q.history+conditions(where)+` ORDER BY id DESC LIMIT ?`, append(args, operate.Limit(q.Limit)),
		func(rows *sql.Rows) error {
			d, err := scanDecision(rows)
			found = append(found, d)
			return err
		})
	if err != nil {
		return nil, fmt.Errorf("sqlsink: read the audit log: %w", err)
	}
	return found, nil
}

func scanDecision(rows *sql.Rows) (d operate.Decision, err error) {
	var at string
	var claim []byte
	err = rows.Scan(&d.ID, &at, &d.Kind, &d.Partition.Group, &d.Partition.Topic, &d.Partition.Number, &d.Epoch, &claim, &d.Owner,
		&d.From, &d.To, &d.Reason, &d.By, &d.TraceID)
	d.At = forPeople(at)
	copy(d.Claim[:], claim)
	return d, err
}

func conditions(where []string) string {
	if len(where) == 0 {
		return ``
	}
	return ` WHERE ` + strings.Join(where, ` AND `)
}

// DeadLetters implements [operate.Operator].
func (o *Operator) DeadLetters(ctx context.Context, q operate.DeadLetterQuery) (found []operate.DeadLetter, err error) {
	where, args := []string{`id > ?`}, []any{q.After}
	add := func(set bool, condition string, value any) {
		if set {
			where, args = append(where, condition), append(args, value)
		}
	}
	add(q.Group != "", `group_name = ?`, q.Group)
	add(q.Topic != "", `topic = ?`, q.Topic)
	if q.Number != nil {
		add(true, `number = ?`, *q.Number)
	}
	add(q.Requested, `requested = ?`, true)
	err = o.rows(ctx, func() { found = nil }, o.sink.q.letters+conditions(where)+` ORDER BY id LIMIT ?`, append(args, operate.Limit(q.Limit)),
		func(rows *sql.Rows) error {
			l, err := scanLetter(rows)
			l.Message.Key, l.Message.Value, l.Message.Headers = nil, nil, nil
			found = append(found, l)
			return err
		})
	if err != nil {
		return nil, fmt.Errorf("sqlsink: list dead letters: %w", err)
	}
	return found, nil
}

func scanLetter(row interface{ Scan(...any) error }) (l operate.DeadLetter, err error) {
	var (
		m                          storedMessage
		at                         string
		requestedAt, replayFailure sql.NullString
	)
	p := &l.Message.Partition
	if err := row.Scan(&l.ID, &p.Group, &p.Topic, &p.Number, &l.Message.Offset, &l.Epoch, &m.time, &l.Error, &at,
		&l.Request, &l.Requested, &l.RequestedBy, &requestedAt, &l.ReplayError, &replayFailure,
		&l.Message.Key, &l.Message.Value, &m.headers); err != nil {
		return l, err
	}
	l.At, l.RequestedAt, l.ReplayFailedAt = forPeople(at), forPeople(requestedAt.String), forPeople(replayFailure.String)
	return l, m.restore(&l.Message)
}

// DeadLetter implements [operate.Operator].
func (o *Operator) DeadLetter(ctx context.Context, id int64) (l operate.DeadLetter, err error) {
	there := false
	err = o.rows(ctx, func() { there = false }, o.sink.q.letters+` WHERE id = ?`, []any{id}, func(rows *sql.Rows) (err error) {
		there = true
		l, err = scanLetter(rows)
		return err
	})
	if err == nil && !there {
		err = operate.ErrNoDeadLetter
	}
	if err != nil {
		return operate.DeadLetter{}, fmt.Errorf("sqlsink: read dead letter %d: %w", id, err)
	}
	return l, nil
}

// DoDeadLetter implements [operate.Operator].
func (o *Operator) DoDeadLetter(ctx context.Context, a operate.DeadLetterAct) (l operate.DeadLetter, err error) {
	fail := func(err error) (operate.DeadLetter, error) {
		return operate.DeadLetter{}, fmt.Errorf("sqlsink: %s dead letter %d of %s: %w", a.Kind, a.Seen.ID, a.Seen.Message.Partition, err)
	}
	if err := a.Check(); err != nil {
		return fail(err)
	}
	s := o.sink
	err = s.write(ctx, func(ctx context.Context, t *sqltx.Tx) error {
		if l, err = scanLetter(t.Conn.QueryRowContext(ctx, s.q.letters+` WHERE id = ?`, a.Seen.ID)); errors.Is(err, sql.ErrNoRows) {
			return operate.ErrNoDeadLetter
		} else if err != nil {
			return err
		}
		after, err := a.Done(l)
		if err != nil {
			return err
		}
		if a.Kind == operate.Discard {
			r, err := t.Conn.ExecContext(ctx, s.q.discard, l.ID, l.Request, l.Requested)
			if err := oneRow(r, err); err != nil {
				return err
			}
		} else {
			r, err := t.Conn.ExecContext(ctx, s.q.letterAct, after.Requested, after.Request, after.RequestedBy, a.Kind == operate.Replay,
				l.ID, l.Request, l.Requested)
			if err := oneRow(r, err); err != nil {
				return err
			}
			if l, err = scanLetter(t.Conn.QueryRowContext(ctx, s.q.letters+` WHERE id = ?`, l.ID)); err != nil {
				return err
			}
		}
		f, err := s.read(ctx, t.Conn, s.q.fence, l.Message.Partition)
		if err != nil && !errors.Is(err, epoch.ErrMissing) {
			return err
		}
		return s.decide(ctx, t.Conn, a.Decided(l, f))
	})
	if err != nil {
		return fail(err)
	}
	return l, nil
}
