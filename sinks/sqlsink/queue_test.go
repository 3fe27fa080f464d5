package sqlsink_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/sql/queue"
	"github.com/epochfence/epochfence/internal/suites/bubble"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

// busy commits again and again on a sink of its own, as another process would,
// until stop is called: each transaction has the write lock for a while and the
// next one asks for it at once. Time is virtual, so that nobody who polls ever
// meets the lock free by luck.
func busy(t *testing.T, file string, held time.Duration) (stop func()) {
	s := newSink(t, open(t, file), sqlsink.Options{})
	f := claim(t, s, 1)
	ctx, cancel := context.WithCancel(t.Context())
	has := make(chan struct{})
	var once sync.Once
	var running sync.WaitGroup
	running.Go(func() {
		for next := epoch.Offset(1); ctx.Err() == nil; next++ {
			err := s.Commit(t.Context(), []epoch.Advance{{Partition: f.Partition, Claim: f.Claim, From: next - 1, To: next}}, epoch.TxOptions{}, func(ctx context.Context, tx *sqlsink.Tx) error {
				if err := run(ctx, tx, insert); err != nil {
					return err
				}
				once.Do(func() { close(has) })
				<-time.After(held)
				return nil
			})
			if err != nil {
				t.Error(err)
				return
			}
		}
	})
	<-has
	return func() {
		cancel()
		running.Wait()
	}
}

func TestABusyProcessLetsThoseWhoWaitForTheWriteLockGoFirst(t *testing.T) {
	if !queue.Shared {
		t.Skip("processes do not know of each other here")
	}
	for _, patience := range []string{"0", "30000"} { // of the driver's own
		t.Run("busy_timeout="+patience, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				file := newFile(t)
				defer busy(t, file, 30*time.Millisecond)()
				db := open(t, file)
				db.SetMaxOpenConns(1)
				mustExec(t, db, `PRAGMA busy_timeout = `+patience)
				s := newSink(t, db, sqlsink.Options{})
				other := orders0
				var f epoch.Fence
				for range 20 {
					other.Number++
					began := time.Now()
					f = claimOf(t, s, other, 1)
					if waited := time.Since(began); waited > time.Second {
						t.Errorf("waited for %v while another had the lock for 30 ms at a time", waited)
					}
				}
				var within, after string
				err := s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx *sqlsink.Tx) error {
					return tx.QueryRowContext(ctx, `SELECT timeout FROM pragma_busy_timeout`).Scan(&within)
				})
				if err == nil {
					err = db.QueryRowContext(t.Context(), `PRAGMA busy_timeout`).Scan(&after)
				}
				if err != nil || within != patience || after != patience {
					t.Errorf("busy_timeout is %q for a handler, and %q afterwards: %v", within, after, err)
				}
			})
		})
	}
}

// A transaction that has the lock for longer than others may wait for it.
func TestAQueueForTheWriteLockIsToldFromAFrozenProcess(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		file := newFile(t)
		s := newSink(t, open(t, file), sqlsink.Options{LockTimeout: 40 * time.Millisecond})
		mine := orders0
		mine.Number++
		f := claimOf(t, s, mine, 1)
		stop := busy(t, file, 30*time.Millisecond)
		var err error
		for tries := 0; err == nil && tries < 20; tries++ { // now and then it is its turn
			err = s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx *sqlsink.Tx) error { return run(ctx, tx, insert) })
			f.Next++
		}
		stop()
		wantError(t, err, "write lock was not free for 40ms", "other processes write in turn")
		wantTransient(t, err)
	})
}
