package pgsink

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/sql/pgschema"
	"github.com/epochfence/epochfence/operate"
)

// This file is what a running consumer needs of the operators' tables: the audit log, requested
// replays, the calls that hung, and signs of life. operator.go is the operators' own side.

var (
	_ operate.Operable[Tx]     = (*Sink)(nil)
	_ operate.Snapshots        = (*Sink)(nil)
	_ operate.Operable[*Queue] = Queued{}
)

// Record implements [operate.Operable].
func (s *Sink) Record(ctx context.Context, ds []operate.Decision) error {
	if len(ds) == 0 {
		return nil
	}
	var (
		kinds, groups, topics, claims, owners, reasons, traces []string
		numbers                                                []int32
		epochs, froms, tos                                     []int64
	)
	for _, d := range ds {
		if err := checkPartition(d.Partition); err != nil {
			return err
		}
		kinds, groups, topics = append(kinds, string(d.Kind)), append(groups, d.Partition.Group), append(topics, d.Partition.Topic)
		numbers, epochs, claims = append(numbers, d.Partition.Number), append(epochs, int64(d.Epoch)), append(claims, d.Claim.String())
		owners = append(owners, operate.Text(d.Owner, operate.MaxText))
		froms, tos = append(froms, int64(d.From)), append(tos, int64(d.To))
		reasons, traces = append(reasons, operate.Text(d.Reason, operate.MaxText)), append(traces, operate.Text(d.TraceID, maxTraceID))
	}
	if err := s.write(ctx, harmful, s.sql.record, kinds, groups, topics, numbers, epochs, claims, owners, froms, tos, reasons, traces); err != nil {
		return fmt.Errorf("pgsink: record %d decisions: %w", len(ds), ours(err))
	}
	return nil
}

// The limits of the replays in one read: of a partition, and in total.
const (
	replaysEach = 8
	replaysMost = 32
)

// Requests implements [operate.Operable].
func (s *Sink) Requests(ctx context.Context, ps []epoch.Partition) (operate.Requests, error) {
	for _, p := range ps {
		if err := checkPartition(p); err != nil {
			return operate.Requests{}, err
		}
	}
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	groups, topics, numbers := keys(ps)
	rows, err := collect(ctx, s, scanRequest, s.sql.requests, groups, topics, numbers, int64(replaysEach), int64(replaysMost))
	if err != nil {
		return operate.Requests{}, fmt.Errorf("pgsink: look for requests about %d partitions: %w", len(ps), ours(ended(ctx, explain(err))))
	}
	var found operate.Requests
	for _, r := range rows {
		if r.id == nil {
			found.Acts = r.acts
			continue
		}
		p := epoch.Partition{Group: *r.group, Topic: *r.topic, Number: *r.number}
		found.Replays = append(found.Replays, operate.RequestedReplay{ID: *r.id, Request: *r.request, Message: r.message(p, epoch.Offset(*r.offset))})
	}
	return found, nil
}

// requestRow is a row of requests(). The row without an ID has acts, which each action changes.
type requestRow struct {
	acts                int64
	id, request, offset *int64
	group, topic        *string
	number              *int32
	messageRow
}

func scanRequest(row pgx.CollectableRow) (r requestRow, err error) {
	err = row.Scan(&r.acts, &r.id, &r.request, &r.group, &r.topic, &r.number, &r.offset,
		&r.seconds, &r.nanos, &r.key, &r.value, &r.headerKeys, &r.headerValues)
	return r, err
}

type messageRow struct {
	seconds                  *int64
	nanos                    *int32
	key, value               []byte
	headerKeys, headerValues [][]byte
}

func (r *messageRow) message(p epoch.Partition, at epoch.Offset) epoch.Message {
	m := epoch.Message{Partition: p, Offset: at, Key: r.key, Value: r.value}
	if r.seconds != nil && r.nanos != nil {
		m.Time = time.Unix(*r.seconds, int64(*r.nanos)).UTC()
	}
	for i, k := range r.headerKeys {
		m.Headers = append(m.Headers, epoch.Header{Key: string(k), Value: r.headerValues[i]})
	}
	return m
}

// Replayed implements [operate.Operable].
func (s *Sink) Replayed(ctx context.Context, tx Tx, r operate.RequestedReplay, e epoch.Epoch) error {
	t, ok := tx.(*handlerTx)
	if !ok {
		return fmt.Errorf("pgsink: replay: a %T is not the transaction that the sink gave", tx)
	}
	if _, ok := t.as.of(r.Message.Partition); !ok {
		return errElsewhere(r)
	}
	if err := t.replayed(ctx, r, e); err != nil {
		return fmt.Errorf("pgsink: replay dead letter %d of %s, at offset %d: %w", r.ID, r.Message.Partition, r.Message.Offset, explainReplay(explain(err)))
	}
	return nil
}

// replayed deletes the dead letter, also if the handler has undone its own writes.
func (t *handlerTx) replayed(ctx context.Context, r operate.RequestedReplay, e epoch.Epoch) (err error) {
	if err := t.undo(ctx); err != nil {
		return err
	}
	t.undone = false
	if err := t.use(); err != nil {
		return err
	}
	t.ours = true
	defer func() { t.done(err) }()
	_, err = t.exec(ctx, t.fenced.sink.sql.replayed, r.ID, r.Request, int64(e))
	return err
}

// Replayed is [Sink.Replayed] for a queue.
func (s Queued) Replayed(ctx context.Context, q *Queue, r operate.RequestedReplay, e epoch.Epoch) error {
	if _, ok := q.as.of(r.Message.Partition); !ok {
		return errElsewhere(r)
	}
	q.replays = true
	_, err := q.Exec(pgschema.Own(ctx), s.sql.replayed, r.ID, r.Request, int64(e))
	return err
}

func explainReplay(err error) error {
	if sqlState(err) == codeGone {
		return fmt.Errorf("%w: %w", operate.ErrNotRequested, err)
	}
	return err
}

func errElsewhere(r operate.RequestedReplay) error {
	return fmt.Errorf("pgsink: replay dead letter %d of %s: this transaction is not under a claim of that partition", r.ID, r.Message.Partition)
}

// ReplayFailed implements [operate.Operable].
func (s *Sink) ReplayFailed(ctx context.Context, r operate.RequestedReplay, e epoch.Epoch, cause error) error {
	if cause == nil {
		return errors.New("pgsink: ReplayFailed: the cause is nil")
	}
	if err := s.write(ctx, harmless, s.sql.replayFailed, r.ID, r.Request, int64(e), operate.ErrorText(cause)); err != nil {
		return fmt.Errorf("pgsink: record that the replay of dead letter %d of %s has failed: %w", r.ID, r.Message.Partition, ours(err))
	}
	return nil
}

// Hangs implements [operate.Operable].
func (s *Sink) Hangs(ctx context.Context, p epoch.Partition) ([]operate.Decision, error) {
	if err := checkPartition(p); err != nil {
		return nil, err
	}
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	found, err := s.hangs.do(ctx, p, func() ([]operate.Decision, error) {
		found, err := s.hangsMany(ctx, []epoch.Partition{p})
		return slices.Concat(found...), err
	})
	if err != nil {
		return nil, fmt.Errorf("pgsink: read what hung on %s: %w", p, ours(ended(ctx, explain(err))))
	}
	return found, nil
}

func (s *Sink) hangsMany(ctx context.Context, ps []epoch.Partition) ([][]operate.Decision, error) {
	return perPartition(ctx, s, ps, func(d operate.Decision) epoch.Partition { return d.Partition }, scanDecision, s.sql.hangs, int64(operate.MaxHangs))
}

const decisionColumns = "id, decided_at, role, kind, group_name, topic, partition, epoch, claim_id::text, owner, from_offset, to_offset, reason, operator, trace_id"

func scanDecision(row pgx.CollectableRow) (d operate.Decision, err error) {
	var claim string
	if err := row.Scan(&d.ID, &d.At, &d.Role, &d.Kind, &d.Partition.Group, &d.Partition.Topic, &d.Partition.Number, &d.Epoch,
		&claim, &d.Owner, &d.From, &d.To, &d.Reason, &d.By, &d.TraceID); err != nil {
		return d, err
	}
	d.At = inUTC(&d.At)
	d.Claim, err = epoch.ParseClaimID(claim)
	return d, err
}

// maxProcessText limits the bytes of each text of a process, and maxProblems those of its problems.
const (
	maxProcessText = 500
	maxProblems    = 4000
)

// Alive implements [operate.Operable].
func (s *Sink) Alive(ctx context.Context, p operate.Process) error {
	keep := func(text string) string { return operate.Text(text, maxProcessText) }
	err := s.write(ctx, harmless, s.sql.alive, keep(p.Run), keep(p.Group), keep(p.Name), keep(p.Host), int64(p.PID), keep(p.Version),
		operate.Text(p.Problems, maxProblems), p.Every.Milliseconds())
	if err != nil {
		return fmt.Errorf("pgsink: sign of life of %s in group %q: %w", p.Name, p.Group, faultless(err))
	}
	return nil
}

// Gone implements [operate.Operable].
func (s *Sink) Gone(ctx context.Context, p operate.Process) error {
	if err := s.write(ctx, harmless, s.sql.gone, operate.Text(p.Run, maxProcessText)); err != nil {
		return fmt.Errorf("pgsink: take away the sign of life of %s in group %q: %w", p.Name, p.Group, faultless(err))
	}
	return nil
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

// Processes implements [operate.Operator].
func (o *Operator) Processes(ctx context.Context, group string) (found []operate.Process, err error) {
	found, err = operated(ctx, o, scanProcess, o.sql.processes, orNil(group))
	if err != nil {
		return nil, fmt.Errorf("pgsink: list processes: %w", err)
	}
	operate.SortProcesses(found)
	return found, nil
}

func scanProcess(row pgx.CollectableRow) (p operate.Process, err error) {
	var every int64
	err = row.Scan(&p.Run, &p.Group, &p.Name, &p.Host, &p.PID, &p.Version, &p.Problems, &every, &p.Since, &p.Seen, &p.Now)
	p.Every = time.Duration(every) * time.Millisecond
	p.Since, p.Seen, p.Now = p.Since.UTC(), p.Seen.UTC(), p.Now.UTC()
	return p, err
}
