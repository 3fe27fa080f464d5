package shardsink

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

// This file passes rows and requests on to the shards. sink.go decides which shard a partition is in.

var (
	_ operate.Ledger[any] = (*Sink[any])(nil)
	_ operate.Watch       = (*Sink[any])(nil)
)

// Attend implements [operate.Watch] in the first shard, which all processes of a group have.
func (s *Sink[TX]) Attend(ctx context.Context, self operate.Peer) (operate.Vigil, error) {
	w, ok := epoch.As[operate.Watch](s.shards[0])
	if !ok {
		return nil, fmt.Errorf("shardsink: watch group %s: %w", self.Group, operate.ErrNoWatch)
	}
	return w.Attend(ctx, self)
}

// ledger returns shard i for operators. A shard without it has no audit log and no requests.
func (s *Sink[TX]) ledger(i int) (operate.Ledger[TX], bool) {
	return epoch.As[operate.Ledger[TX]](s.shards[i])
}

// Write implements [operate.Rows]. Each change goes to its partition's shard, and a sign of life to
// each shard, so that any of the databases shows who is alive. A suspicion is about a group, and goes to the first
// shard, where processes see each other. No shard waits for another one: the
// changes of one shard are one transaction, and others may fail.
func (s *Sink[TX]) Write(ctx context.Context, cs ...operate.Change) error {
	of := make([][]operate.Change, len(s.shards))
	var failed error
	for _, c := range cs {
		if c.Kind == operate.KindProcess {
			for i := range of {
				of[i] = append(of[i], c)
			}
			continue
		}
		home, err := 0, error(nil)
		if c.Partition.Topic != "" {
			home, err = s.home(c.Partition)
		}
		if err != nil {
			failed = fmt.Errorf("shardsink: write a row of %s: %w", c.Partition, err)
			continue
		}
		of[home] = append(of[home], c)
	}
	errs := make([]error, len(of)+1)
	var writing sync.WaitGroup
	for i, cs := range of {
		if l, ok := s.ledger(i); ok && len(cs) > 0 {
			writing.Go(func() { errs[i] = l.Write(ctx, cs...) })
		}
	}
	writing.Wait()
	errs[len(of)] = failed
	return errors.Join(errs...)
}

// WriteIn implements [operate.Ledger].
func (s *Sink[TX]) WriteIn(ctx context.Context, tx TX, cs ...operate.Change) error {
	home, err := s.home(cs[0].Partition)
	if err != nil {
		return fmt.Errorf("shardsink: write a row of %s: %w", cs[0].Partition, err)
	}
	l, ok := s.ledger(home)
	if !ok {
		return fmt.Errorf("shardsink: write a row of %s: shard %d keeps none", cs[0].Partition, home)
	}
	return l.WriteIn(ctx, tx, cs...)
}

// Rows implements [operate.Rows]. It reads the rows of a partition in its shard, and processes in each.
// An operator of other rows opens the shard: IDs are those of a shard.
func (s *Sink[TX]) Rows(ctx context.Context, q operate.RowQuery) (found []operate.Row, err error) {
	if q.Partition != nil {
		home, err := s.home(*q.Partition)
		if err != nil {
			return nil, fmt.Errorf("shardsink: read rows of %s: %w", *q.Partition, err)
		}
		if l, ok := s.ledger(home); ok {
			return l.Rows(ctx, q)
		}
		return nil, nil
	}
	if q.Kind != operate.KindProcess {
		return nil, fmt.Errorf("shardsink: read rows of kind %s: name a partition, or open the shard that you mean", q.Kind)
	}
	seen := map[string]bool{}
	for i := range s.shards {
		l, ok := s.ledger(i)
		if !ok {
			continue
		}
		rows, err := l.Rows(ctx, q)
		if err != nil {
			return nil, err
		}
		for _, r := range rows {
			if !seen[r.Name] {
				seen[r.Name], found = true, append(found, r)
			}
		}
	}
	return found, nil
}

// Requests implements [operate.Ledger]. It asks the shard of each partition, and ignores a
// partition that is routed to none.
func (s *Sink[TX]) Requests(ctx context.Context, ps []epoch.Partition) (acts int64, letters []operate.Row, err error) {
	of := make([][]epoch.Partition, len(s.shards))
	for _, p := range ps {
		if home, err := s.home(p); err == nil {
			of[home] = append(of[home], p)
		}
	}
	for i, ps := range of {
		l, ok := s.ledger(i)
		if !ok || len(ps) == 0 {
			continue
		}
		n, rows, err := l.Requests(ctx, ps)
		if err != nil {
			return 0, nil, err
		}
		acts, letters = acts+n, append(letters, rows...)
	}
	return acts, letters, nil
}

// OldestSnapshots implements [operate.Snapshots]. It returns those of each shard.
func (s *Sink[TX]) OldestSnapshots(ctx context.Context) (all []operate.Snapshot, err error) {
	for i := range s.shards {
		if o, ok := epoch.As[operate.Snapshots](s.shards[i]); ok {
			held, failed := o.OldestSnapshots(ctx)
			all, err = append(all, held...), errors.Join(err, failed)
		}
	}
	return all, err
}
