//go:build unix

package sqlsink_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

// What eight processes have of the write lock is counted in turns, one process's
// commits until another's, and not in seconds: a disk that takes seconds for one
// commit, or a machine that has no time for a process, holds up all alike. With
// equal chances each has 30 of 240 turns, and fewer than 5 once in millions.
const (
	sharers   = 8
	turnsEach = 5
	turnsAll  = 240

	// slow is how long a handler has the lock for: two in a row, and its
	// process lets those who wait go first.
	slow = 30 * time.Millisecond
)

// share commits without a pause, in a partition of its own, until every process
// has had its turns or all have had more than enough, and says how often.
func share(ctx context.Context, s *sqlsink.Sink) error {
	n, _ := strconv.Atoi(os.Getenv(numberVar))
	o := partition(n)
	if err := s.Seed(ctx, []epoch.Start{{Origin: o}}); err != nil {
		return err
	}
	seen, err := epoch.FenceOf(ctx, s, o.Partition)
	if err != nil {
		return err
	}
	f, err := s.Claim(ctx, seen, epoch.NewClaim(epoch.Lease{Origin: o, Generation: 1}))
	if err != nil {
		return err
	}
	fmt.Println("ready")
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')

	for enough := false; !enough; f.Next++ {
		err := s.Commit(ctx, advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx *sqlsink.Tx) error {
			_, err := tx.ExecContext(ctx, `INSERT INTO turns (process)
				SELECT ? WHERE ? IS NOT (SELECT process FROM turns ORDER BY n DESC LIMIT 1)`, n, n)
			if err != nil {
				return err
			}
			<-time.After(slow)
			var had, processes, least int
			err = tx.QueryRowContext(ctx, `SELECT total(had), count(*), coalesce(min(had), 0)
				FROM (SELECT count(*) AS had FROM turns GROUP BY process)`).Scan(&had, &processes, &least)
			enough = processes == sharers && least >= turnsEach || had >= turnsAll
			return err
		})
		if err != nil {
			return err
		}
	}
	fmt.Println(f.Next)
	return nil
}

func TestBusyProcessesShareTheWriteLock(t *testing.T) {
	if os.Getenv("EPOCHFENCE_LONG") == "" {
		t.Skip("takes 10 s; set EPOCHFENCE_LONG=1")
	}
	file, db, _ := seeded(t)
	if _, err := db.ExecContext(t.Context(), `CREATE TABLE turns (n INTEGER PRIMARY KEY, process INTEGER NOT NULL)`); err != nil {
		t.Fatal(err)
	}
	workers := make([]*worker, sharers)
	for n := range workers {
		t.Setenv(numberVar, strconv.Itoa(100+n))
		workers[n] = startWorker(t, "share", file)
	}
	for _, w := range workers {
		w.says("ready")
	}
	for _, w := range workers {
		w.resume()
	}
	allCommits, allTurns := 0, 0
	for n, w := range workers {
		line := <-w.Lines
		<-w.Ended
		var commits, turns int
		if _, err := fmt.Sscan(line, &commits); err != nil || w.Result != nil {
			t.Fatalf("process %d says %q and ends with %v", n, line, w.Result)
		}
		if err := db.QueryRowContext(t.Context(), `SELECT count(*) FROM turns WHERE process = ?`, 100+n).Scan(&turns); err != nil {
			t.Fatal(err)
		}
		if turns < turnsEach {
			t.Errorf("process %d had %d turns while all together had %d", n, turns, turnsAll)
		}
		allCommits, allTurns = allCommits+commits, allTurns+turns
	}
	t.Logf("%d commits in %d turns", allCommits, allTurns)
	if allCommits > 3*allTurns { // without the queue 4 to 7
		t.Errorf("%d commits in a row on average, want 2 at most where others wait", allCommits/allTurns)
	}
}
