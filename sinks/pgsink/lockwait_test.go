package pgsink_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/memsource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

// TestAWaitForALockThatIsNotTheFirstIsTransientToo: what is left of the time is
// less than lock_timeout, which the transaction got at its beginning.
func TestAWaitForALockThatIsNotTheFirstIsTransientToo(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.open()
	seed(t, s, orders)
	f := claim(t, s, orders, 5)
	r.sql("begin; update stock set left_over = left_over - 1 where item = 1")
	const slow, locked = "select pg_sleep(0.5)", "update stock set left_over = left_over - 1 where item = 1"
	for name, commit := range map[string]func(context.Context) error{
		"handler": func(ctx context.Context) error {
			return s.Commit(ctx, advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) error {
				_, err := tx.Exec(ctx, slow)
				if err == nil {
					_, err = tx.Exec(ctx, locked)
				}
				return err
			})
		},
		"a timeout of the handler's": func(ctx context.Context) error {
			return s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(_ context.Context, tx pgsink.Tx) error {
				_, err := tx.Exec(ctx, locked)
				return err
			})
		},
		"queue": func(ctx context.Context) error {
			return s.Queued().Commit(ctx, advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, q *pgsink.Queue) error {
				_, err := q.Exec(ctx, slow)
				if err == nil {
					_, err = q.Exec(ctx, locked)
				}
				return err
			})
		},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second) // below slow and lock_timeout, which is 9/10 of it
		err := commit(ctx)
		cancel()
		if !errors.Is(err, epoch.ErrTransient) || errors.Is(err, epoch.ErrInDoubt) && name != "queue" { // whose COMMIT was sent with the rest
			t.Errorf("%s: err = %v; want a transient one", name, err)
		}
	}
	var err error
	for range 10 { // a machine that stalls keeps the server from answering
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		err = s.Commit(ctx, advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) error {
			_, err := tx.Exec(ctx, "select pg_sleep(300)")
			return err
		})
		cancel()
		if err == nil || !strings.Contains(err.Error(), "the server did not answer") {
			break
		}
	}
	if err == nil || errors.Is(err, epoch.ErrTransient) || errors.Is(err, epoch.ErrInDoubt) {
		t.Errorf("a slow statement that waits for nobody: err = %v; want one that is its message's", err)
	}
	if again, err := epoch.FenceOf(t.Context(), s, orders); err != nil || again != f {
		t.Errorf("the fence is %+v, %v; want %+v", again, err, f)
	}
}

// TestAWaitIsFoundByAServerThatAnswersLateToo: later than the looks follow each
// other, of which a short transaction has many.
func TestAWaitIsFoundByAServerThatAnswersLateToo(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var late atomic.Bool
	s := r.openOn(r.pool(func(c *pgxpool.Config) {
		c.PrepareConn = func(ctx context.Context, _ *pgx.Conn) (bool, error) {
			if late.Load() {
				select {
				case <-time.After(500 * time.Millisecond):
				case <-ctx.Done():
				}
			}
			return true, nil
		}
	}))
	seed(t, s, orders)
	f := claim(t, s, orders, 5)
	r.sql("begin; update stock set left_over = left_over - 1 where item = 1")
	late.Store(true)
	ctx, cancel := context.WithTimeout(t.Context(), 12*time.Second)
	defer cancel()
	err := s.Commit(ctx, advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) error {
		_, err := tx.Exec(ctx, "select pg_sleep(5)") // with lock_timeout, much more than the time there is
		if err == nil {
			_, err = tx.Exec(ctx, "update stock set left_over = left_over - 1 where item = 1")
		}
		return err
	})
	if !errors.Is(err, epoch.ErrTransient) || !strings.Contains(err.Error(), "after a wait for locks") {
		t.Errorf("err = %v; want a transient one", err)
	}
}

// TestATimeoutOnAServerThatDoesNotAnswerIsTransient: whether the message is to blame, or
// a lock, or the server, is not known then.
func TestATimeoutOnAServerThatDoesNotAnswerIsTransient(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for name, c := range map[string]struct {
		number      int32 // of its partition
		connections int32
		answers     time.Duration // for so long
		transient   bool
	}{
		"the server does not answer":    {0, 8, 0, true},
		"the server answers no more":    {1, 8, 2 * time.Second, true},
		"the server has answered since": {2, 8, 8500 * time.Millisecond, false},
		"the pool has no connection":    {3, 1, 0, false}, // and never will: a slow message must come to an end
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var begun atomic.Pointer[time.Time]
			s := r.openOn(r.pool(func(p *pgxpool.Config) {
				p.MaxConns = c.connections
				p.PrepareConn = func(ctx context.Context, _ *pgx.Conn) (bool, error) {
					if at := begun.Load(); at != nil && time.Since(*at) >= c.answers {
						<-ctx.Done()
					}
					return true, nil
				}
			}))
			at := epoch.Partition{Group: orders.Group, Topic: orders.Topic, Number: c.number}
			seed(t, s, at)
			f := claim(t, s, at, 5)
			var err error
			for tries := 0; tries == 0 || !c.transient && tries < 5 && errors.Is(err, epoch.ErrTransient); tries++ { // a stall keeps the server from answering
				begun.Store(nil)
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				err = s.Commit(ctx, advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) error {
					now := time.Now()
					begun.Store(&now)
					_, err := tx.Exec(ctx, "select pg_sleep(300)")
					return err
				})
				cancel()
			}
			if err == nil || errors.Is(err, epoch.ErrTransient) != c.transient || errors.Is(err, epoch.ErrInDoubt) {
				t.Errorf("err = %v; transient: want %v", err, c.transient)
			}
		})
	}
}

// TestATableThatIsLockedForManyTermsCostsNoMessage: BatchTimeout, half of the
// term, is shorter than LockTimeout.
func TestATableThatIsLockedForManyTermsCostsNoMessage(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.open()
	log := memsource.New("orders", 2)
	log.Group(memsource.DefaultGroup).SetTerm(4 * time.Second)
	for n := range int32(2) {
		log.Append(n, "1", "2", "3")
	}
	r.sql("begin; lock table effects in exclusive mode")
	var tries, given atomic.Int32
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err := consumer.Run(log.UntilApplied(ctx), log.Member("a"), s,
		consumer.Each(func(ctx context.Context, tx pgsink.Tx, m consumer.Message, _ epoch.Epoch) error {
			if tries.Add(1) == 5 {
				r.sql("commit")
			}
			return put(ctx, tx, m.Partition.Topic, string(m.Value))
		}).OnFailure(func(_ context.Context, _ pgsink.Tx, m consumer.Message, _ epoch.Epoch, cause error) error {
			given.Add(1)
			t.Logf("given up on %d/%d: %v", m.Partition.Number, m.Offset, cause)
			return nil
		}), consumer.Options{
			MaxAttempts: 2, RetryMin: time.Millisecond, RetryMax: 10 * time.Millisecond, HaltMin: time.Millisecond, HaltMax: 10 * time.Millisecond,
			Logger: slog.New(slog.DiscardHandler),
		})
	if err != nil || given.Load() > 0 {
		t.Errorf("%d messages given up on; err = %v", given.Load(), err)
	}
	if all, err := r.list(t.Context(), "orders"); err != nil || len(all) != 6 {
		t.Errorf("%d effects, %v; want 6", len(all), err)
	}
}
