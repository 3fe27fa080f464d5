package sqlsink

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/sql/sqltx"
	"github.com/epochfence/epochfence/internal/text/instant"
	"github.com/epochfence/epochfence/operate"
)

// This file is what a running consumer needs of the operators' tables: the audit log and requested
// replays. operator.go is the operators' own side.

var _ operate.Operable[*Tx] = (*Sink)(nil)

// keptDecisions limits the entries of the audit log that no operator made.
const keptDecisions = 200_000

type execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

func (s *Sink) decide(ctx context.Context, tx execer, d operate.Decision) error {
	r, err := tx.ExecContext(ctx, s.q.decide, string(d.Kind), d.Partition.Group, d.Partition.Topic, d.Partition.Number,
		int64(d.Epoch), d.Claim[:], d.Owner, int64(d.From), int64(d.To), d.Reason, d.By, d.TraceID)
	if err != nil {
		return fmt.Errorf("write the audit log: %w", err)
	}
	latest, err := r.LastInsertId()
	if err != nil {
		return fmt.Errorf("write the audit log: %w", err)
	}
	if _, err := tx.ExecContext(ctx, s.q.pruneMany, latest-keptDecisions); err != nil {
		return fmt.Errorf("prune the audit log: %w", err)
	}
	if _, err := tx.ExecContext(ctx, s.q.pruneOld); err != nil {
		return fmt.Errorf("prune the audit log: %w", err)
	}
	return nil
}

// Record implements [operate.Operable].
func (s *Sink) Record(ctx context.Context, ds []operate.Decision) error {
	err := s.write(ctx, func(ctx context.Context, t *sqltx.Tx) error {
		for _, d := range ds {
			if !d.Kind.RecordedByConsumer() {
				return fmt.Errorf("a consumer records no %s", d.Kind)
			}
			if err := s.decide(ctx, t.Conn, d.WithoutOperator()); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("sqlsink: record %d decisions: %w", len(ds), err)
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

// Hangs implements [operate.Operable]. It waits for no transaction.
func (s *Sink) Hangs(ctx context.Context, p epoch.Partition) (found []operate.Decision, err error) {
	var forgiven bool
	err = s.transactions.Rows(ctx, func() { found, forgiven = nil, false }, s.q.hangs, []any{p.Group, p.Topic, p.Number, operate.MaxHangs},
		func(rows *sql.Rows) error {
			d, err := scanDecision(rows)
			if forgiven = forgiven || d.Kind.ForgivesHangs(); !forgiven {
				found = append(found, d)
			}
			return err
		})
	if err != nil {
		return nil, fmt.Errorf("sqlsink: read what hung on %s: %w", p, s.explain(err))
	}
	return found, nil
}

// The limits of the replays in one read: of a partition, and in total.
const (
	replaysEach = 8
	replaysMost = 32
)

// Requests implements [operate.Operable]. It waits for no transaction.
func (s *Sink) Requests(ctx context.Context, ps []epoch.Partition) (found operate.Requests, err error) {
	err = s.transactions.Patiently(ctx, func(ctx context.Context) error {
		found = operate.Requests{}
		conn, err := s.db.Conn(ctx)
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		if err := conn.QueryRowContext(ctx, s.q.acts).Scan(&found.Acts); err != nil {
			return err
		}
		for _, p := range ps {
			if len(found.Replays) >= replaysMost {
				break
			}
			if err := s.replaysOf(ctx, conn, p, &found); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return operate.Requests{}, fmt.Errorf("sqlsink: look for requests about %d partitions: %w", len(ps), s.explain(err))
	}
	slices.SortFunc(found.Replays, func(a, b operate.RequestedReplay) int { return cmp.Compare(a.ID, b.ID) })
	return found, nil
}

func (s *Sink) replaysOf(ctx context.Context, conn *sql.Conn, p epoch.Partition, found *operate.Requests) error {
	rows, err := conn.QueryContext(ctx, s.q.requested, p.Group, p.Topic, p.Number, replaysEach)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		r := operate.RequestedReplay{Message: epoch.Message{Partition: p}}
		var m storedMessage
		if err := rows.Scan(&r.ID, &r.Request, &r.Message.Offset, &m.time, &r.Message.Key, &r.Message.Value, &m.headers); err != nil {
			return err
		}
		if err := m.restore(&r.Message); err != nil {
			return fmt.Errorf("dead letter %d: %w", r.ID, err)
		}
		found.Replays = append(found.Replays, r)
	}
	return rows.Err()
}

type storedMessage struct {
	time    sql.NullString
	headers string
}

func (s storedMessage) restore(m *epoch.Message) (err error) {
	if s.time.Valid {
		if m.Time, err = instant.Parse(s.time.String); err != nil {
			return err
		}
	}
	m.Headers, err = headersOf(s.headers)
	return err
}

// forPeople parses a time of the database's that is only shown, and never compared.
func forPeople(s string) time.Time {
	t, _ := time.Parse(time.RFC3339Nano, s)
	return t
}

// written formats a time as the database writes it.
func written(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }

// Replayed implements [operate.Operable].
func (s *Sink) Replayed(ctx context.Context, tx *Tx, r operate.RequestedReplay, e epoch.Epoch) error {
	p := r.Message.Partition
	fail := func(err error) error {
		return fmt.Errorf("sqlsink: replay dead letter %d of %s, at offset %d: %w", r.ID, p, r.Message.Offset, err)
	}
	i := slices.IndexFunc(tx.as, func(a epoch.Advance) bool { return a.Partition == p })
	if i < 0 {
		return fail(errors.New("this transaction is not under a claim of that partition"))
	}
	d := operate.Decision{
		Kind: operate.DecidedReplay, Partition: p, Epoch: e, Claim: tx.as[i].Claim,
		From: r.Message.Offset, To: r.Message.Offset, Reason: fmt.Sprintf("dead letter %d", r.ID),
	}
	err := tx.QueryRowContext(ctx, s.q.replay, r.ID, r.Request).Scan(&d.By)
	if errors.Is(err, sql.ErrNoRows) {
		err = operate.ErrNotRequested
	}
	if err != nil {
		return fail(err)
	}
	res, err := tx.ExecContext(ctx, s.q.replayed, r.ID, r.Request)
	if err := oneRow(res, err); err != nil {
		return fail(err)
	}
	if err := s.decide(ctx, tx, d); err != nil {
		return fail(err)
	}
	return nil
}

// ReplayFailed implements [operate.Operable].
func (s *Sink) ReplayFailed(ctx context.Context, r operate.RequestedReplay, e epoch.Epoch, cause error) error {
	p := r.Message.Partition
	err := s.write(ctx, func(ctx context.Context, t *sqltx.Tx) error {
		d := operate.Decision{
			Kind: operate.DecidedReplayFailure, Partition: p, Epoch: e,
			From: r.Message.Offset, To: r.Message.Offset, Reason: fmt.Sprintf("dead letter %d: %.500v", r.ID, cause),
		}
		err := t.Conn.QueryRowContext(ctx, s.q.replay, r.ID, r.Request).Scan(&d.By)
		if errors.Is(err, sql.ErrNoRows) {
			return nil // it is not requested any more
		}
		if err != nil {
			return err
		}
		f, err := s.read(ctx, t.Conn, s.q.fence, p)
		if err != nil {
			return err
		}
		d.Claim, d.Owner = f.Claim, f.Owner
		if _, err := t.Conn.ExecContext(ctx, s.q.notReplay, operate.ErrorText(cause), r.ID, r.Request); err != nil {
			return err
		}
		return s.decide(ctx, t.Conn, d)
	})
	if err != nil {
		return fmt.Errorf("sqlsink: record that the replay of dead letter %d of %s has failed: %w", r.ID, p, err)
	}
	return nil
}
