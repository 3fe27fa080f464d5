package pgsink

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

// This file reads from the audit log which calls hung on a partition. Package consumer decides when
// they are too many.

// Hangs implements [operate.Operable].
func (s *Sink) Hangs(ctx context.Context, p epoch.Partition) ([]operate.Decision, error) {
	if err := checkPartition(p); err != nil {
		return nil, err
	}
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	found, err := s.hangs.do(ctx, p, func() ([]operate.Decision, error) {
		found, err := s.readHangs(ctx, []epoch.Partition{p})
		return found[p], err
	})
	if err != nil {
		return nil, fmt.Errorf("pgsink: read what hung on %s: %w", p, ours(ended(ctx, explain(err))))
	}
	return found, nil
}

func (s *Sink) hangsMany(ctx context.Context, ps []epoch.Partition) ([][]operate.Decision, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	found, err := s.readHangs(ctx, ps)
	if err != nil {
		return nil, ended(ctx, err)
	}
	hangs := make([][]operate.Decision, len(ps))
	for i, p := range ps {
		hangs[i] = found[p]
	}
	return hangs, nil
}

func (s *Sink) readHangs(ctx context.Context, ps []epoch.Partition) (found map[epoch.Partition][]operate.Decision, err error) {
	var (
		groups, topics []string
		numbers        []int32
	)
	for _, p := range ps {
		groups, topics, numbers = append(groups, p.Group), append(topics, p.Topic), append(numbers, p.Number)
	}
	found = map[epoch.Partition][]operate.Decision{}
	err = s.reading(ctx, func(b *pgx.Batch) {
		b.Queue(s.sql.hangs, groups, topics, numbers, int64(operate.MaxHangs))
	}, func(r pgx.BatchResults) error {
		rows, err := r.Query()
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			d, err := scanDecision(rows)
			if err != nil {
				return err
			}
			found[d.Partition] = append(found[d.Partition], d)
		}
		return rows.Err()
	})
	return found, err
}

const decisionColumns = "id, decided_at, role, kind, group_name, topic, partition, epoch, claim_id::text, owner, from_offset, to_offset, reason, operator, trace_id"

func scanDecision(rows pgx.Rows) (d operate.Decision, err error) {
	var claim string
	if err := rows.Scan(&d.ID, &d.At, &d.Role, &d.Kind, &d.Partition.Group, &d.Partition.Topic, &d.Partition.Number, &d.Epoch,
		&claim, &d.Owner, &d.From, &d.To, &d.Reason, &d.By, &d.TraceID); err != nil {
		return d, err
	}
	d.At = inUTC(&d.At)
	d.Claim, err = epoch.ParseClaimID(claim)
	return d, err
}
