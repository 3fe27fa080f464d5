package shardsink

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

// This file passes the audit log, signs of life, requests and replays on to the shards. sink.go
// decides which shard a partition is in.

var _ operate.Operable[any] = (*Sink[any])(nil)

// operable returns shard i for operators. A shard without it has no audit log and no requests.
func (s *Sink[TX]) operable(i int) (operate.Operable[TX], bool) {
	return epoch.As[operate.Operable[TX]](s.shards[i])
}

// Record implements [operate.Operable]. Each decision goes to the audit log of its partition's
// shard. No shard waits for another one.
func (s *Sink[TX]) Record(ctx context.Context, ds []operate.Decision) error {
	of := make([][]operate.Decision, len(s.shards))
	var failed error
	for _, d := range ds {
		home, err := s.home(d.Partition)
		if err != nil {
			failed = fmt.Errorf("shardsink: record a decision about %s: %w", d.Partition, err)
			continue
		}
		of[home] = append(of[home], d)
	}
	errs := make([]error, len(of)+1)
	var writing sync.WaitGroup
	for i, ds := range of {
		if o, ok := s.operable(i); ok && len(ds) > 0 {
			writing.Go(func() { errs[i] = o.Record(ctx, ds) })
		}
	}
	writing.Wait()
	errs[len(of)] = failed
	return errors.Join(errs...)
}

// Hangs implements [operate.Operable]. It reads the audit log of the partition's shard.
func (s *Sink[TX]) Hangs(ctx context.Context, p epoch.Partition) ([]operate.Decision, error) {
	home, err := s.home(p)
	if err != nil {
		return nil, fmt.Errorf("shardsink: read what hung on %s: %w", p, err)
	}
	o, ok := s.operable(home)
	if !ok {
		return nil, nil
	}
	return o.Hangs(ctx, p)
}

// Alive implements [operate.Operable]. Each shard gets the sign of life, so that any of the
// databases shows who is alive. No shard waits for another one.
func (s *Sink[TX]) Alive(ctx context.Context, p operate.Process) error {
	return s.onEach(func(o operate.Operable[TX]) error { return o.Alive(ctx, p) })
}

// Gone implements [operate.Operable].
func (s *Sink[TX]) Gone(ctx context.Context, p operate.Process) error {
	return s.onEach(func(o operate.Operable[TX]) error { return o.Gone(ctx, p) })
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

func (s *Sink[TX]) onEach(do func(o operate.Operable[TX]) error) error {
	errs := make([]error, len(s.shards))
	var doing sync.WaitGroup
	for i := range s.shards {
		if o, ok := s.operable(i); ok {
			doing.Go(func() { errs[i] = do(o) })
		}
	}
	doing.Wait()
	return errors.Join(errs...)
}

// Requests implements [operate.Operable]. It asks the shard of each partition, and ignores a
// partition that is routed to none.
func (s *Sink[TX]) Requests(ctx context.Context, ps []epoch.Partition) (operate.Requests, error) {
	of := make([][]epoch.Partition, len(s.shards))
	for _, p := range ps {
		if home, err := s.home(p); err == nil {
			of[home] = append(of[home], p)
		}
	}
	var found operate.Requests
	for i, ps := range of {
		o, ok := s.operable(i)
		if !ok || len(ps) == 0 {
			continue
		}
		here, err := o.Requests(ctx, ps)
		if err != nil {
			return operate.Requests{}, err
		}
		found.Acts += here.Acts
		found.Replays = append(found.Replays, here.Replays...)
	}
	return found, nil
}

// Replayed implements [operate.Operable].
func (s *Sink[TX]) Replayed(ctx context.Context, tx TX, r operate.RequestedReplay, e epoch.Epoch) error {
	o, err := s.operableAt(r)
	if err != nil {
		return err
	}
	return o.Replayed(ctx, tx, r, e)
}

// ReplayFailed implements [operate.Operable].
func (s *Sink[TX]) ReplayFailed(ctx context.Context, r operate.RequestedReplay, e epoch.Epoch, cause error) error {
	o, err := s.operableAt(r)
	if err != nil {
		return err
	}
	return o.ReplayFailed(ctx, r, e, cause)
}

func (s *Sink[TX]) operableAt(r operate.RequestedReplay) (operate.Operable[TX], error) {
	home, err := s.home(r.Message.Partition)
	if err != nil {
		return nil, fmt.Errorf("shardsink: replay dead letter %d of %s: %w", r.ID, r.Message.Partition, err)
	}
	o, ok := s.operable(home)
	if !ok {
		return nil, fmt.Errorf("shardsink: replay dead letter %d of %s: shard %d has no dead letters to replay", r.ID, r.Message.Partition, home)
	}
	return o, nil
}
