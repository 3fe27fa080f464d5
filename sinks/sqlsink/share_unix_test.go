//go:build unix

package sqlsink_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

// sharing is how long processes share one file in a measurement.
const sharing = 8 * time.Second

// share commits without a pause for a while, in a partition of its own, and
// says how often and how long it waited for the write lock at most.
func share(ctx context.Context, s *sqlsink.Sink) error {
	n, _ := strconv.Atoi(os.Getenv(numberVar))
	o := partition(n)
	if err := s.Seed(ctx, []epoch.Start{{Origin: o}}); err != nil {
		return err
	}
	seen, err := s.Fence(ctx, o.Partition)
	if err != nil {
		return err
	}
	f, err := s.Claim(ctx, seen, epoch.NewClaim(epoch.Lease{Origin: o, Generation: 1}))
	if err != nil {
		return err
	}
	slow, _ := time.ParseDuration(os.Getenv(slowVar))
	var longest time.Duration
	commits := 0
	for began := time.Now(); time.Since(began) < sharing; commits++ {
		asked := time.Now()
		err := s.Commit(ctx, advance(f, 1), func(ctx context.Context, tx *sqlsink.Tx) error {
			for i := range 20 {
				if err := appendEffect(ctx, tx, o.Partition.String(), "effect"); err != nil {
					return err
				}
				if i == 0 {
					longest = max(longest, time.Since(asked))
					<-time.After(slow) // with the lock: a slow handler
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		f.Next++
	}
	fmt.Println(commits, longest.Milliseconds())
	return nil
}

// Eight busy processes on one file. The measure is printed; that each of them
// gets on, and none waits for as long as all of it takes, is what is wanted.
func TestBusyProcessesShareTheWriteLock(t *testing.T) {
	if os.Getenv("EPOCHFENCE_LONG") == "" {
		t.Skip("takes 10 s; set EPOCHFENCE_LONG=1")
	}
	t.Run("quick handlers", func(t *testing.T) { shareAmong(t, 8, 0) })
	t.Run("slow handlers", func(t *testing.T) { shareAmong(t, 8, 30*time.Millisecond) })
}

func shareAmong(t *testing.T, processes int, slow time.Duration) {
	t.Setenv(slowVar, slow.String())
	file, _, _ := seeded(t)
	var workers []*worker
	for n := range processes {
		t.Setenv(numberVar, strconv.Itoa(100+n))
		workers = append(workers, startWorker(t, "share", file))
	}
	var all, waits []int
	total := 0
	for _, w := range workers {
		var commits, wait int
		line := <-w.said
		if _, err := fmt.Sscan(line, &commits, &wait); err != nil {
			t.Fatalf("a worker says %q", line)
		}
		all, waits, total = append(all, commits), append(waits, wait), total+commits
	}
	t.Logf("%d commits in %v, of each process %v; longest wait for the write lock %d ms, of each %v", total, sharing, all, slices.Max(waits), waits)
	if slices.Max(waits) > int(sharing.Milliseconds())/2 {
		t.Errorf("a process waited for %d ms of %v", slices.Max(waits), sharing)
	}
}
