package sqlsink

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/sql/sqltx"
	"github.com/epochfence/epochfence/operate"
)

// This file lists fences, and carries out operators' actions on them. Package operate decides what an
// action does.

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
