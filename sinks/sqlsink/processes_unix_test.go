//go:build unix

package sqlsink_test

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/servers/servertest"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

// The test binary starts itself again as a worker, which is told by its
// environment what to do and on which file.
const (
	roleVar = "SQLSINK_TEST_ROLE"
	fileVar = "SQLSINK_TEST_FILE"

	numberVar = "SQLSINK_TEST_NUMBER" // of a partition
)

func TestMain(m *testing.M) {
	if role := os.Getenv(roleVar); role != "" {
		if err := work(role, os.Getenv(fileVar)); err != nil {
			fmt.Println("failed:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if os.Getenv("EPOCHFENCE_LONG") == "" {
		_ = flag.Set("rapid.checks", "30")
	}
	os.Exit(m.Run())
}

const (
	partitions = 4
	messages   = 60 // of each
)

func partition(n int) epoch.Origin {
	return epoch.Origin{Partition: epoch.Partition{Group: "billing", Topic: "orders", Number: int32(n)}, Log: "log", Source: "broker"}
}

// work is a worker's main. It says on its standard output what it has come to,
// and continues when it reads a line.
func work(role, file string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	db, err := sql.Open("sqlite", dsn(file))
	if err != nil {
		return err
	}
	s, err := sqlsink.Open(ctx, db, sqlsink.SQLite, sqlsink.Options{})
	if err != nil {
		return err
	}
	switch role {
	case "consume":
		return consume(ctx, s)
	case "share":
		return share(ctx, s)
	}

	seen, err := epoch.FenceOf(ctx, s, orders0)
	if err != nil {
		return err
	}
	f, err := s.Claim(ctx, seen, epoch.NewClaim(epoch.Lease{Origin: partition(0), Generation: 5, Owner: "worker"}))
	if err != nil {
		return err
	}
	pause := func(where string) {
		fmt.Println(where)
		_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	}
	err = s.Commit(ctx, advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx *sqlsink.Tx) error {
		if role == "pause before writes" {
			pause("paused")
		}
		if err := appendEffect(ctx, tx, orders0.String(), "worker"); err != nil {
			return err
		}
		if role == "pause after writes" {
			pause("paused")
		}
		return nil
	})
	switch {
	case errors.Is(err, epoch.ErrStale):
		fmt.Println("stale")
	default:
		fmt.Println("result:", err)
	}
	return nil
}

// consume claims partitions from whoever has them and commits messages until
// all are through.
func consume(ctx context.Context, s *sqlsink.Sink) error {
	held := map[int]epoch.Fence{}
	for {
		through := 0
		for n := range partitions {
			seen, err := epoch.FenceOf(ctx, s, partition(n).Partition)
			if err != nil {
				return err
			}
			if seen.Next == messages {
				through++
				delete(held, n)
				continue
			}
			// Often enough to be in each other's way, seldom enough to get on.
			if _, ok := held[n]; ok || rand.IntN(50) > 0 {
				continue
			}
			f, err := s.Claim(ctx, seen, epoch.NewClaim(epoch.Lease{Origin: partition(n), Generation: rand.Int64N(20) + 1, Owner: fmt.Sprint(os.Getpid())}))
			if err == nil && f.Next < messages { // it may have got there since it was read
				held[n] = f
			} else if err != nil && !errors.Is(err, epoch.ErrStale) {
				return err
			}
		}
		if through == partitions {
			return nil
		}
		var as []epoch.Advance
		for _, f := range held {
			as = append(as, advance(f, 1)...)
		}
		if len(as) == 0 {
			continue
		}
		err := s.Commit(ctx, as, epoch.TxOptions{}, func(ctx context.Context, tx *sqlsink.Tx) error {
			for n, f := range held {
				if err := appendEffect(ctx, tx, partition(n).Partition.String(), fmt.Sprintf("%d@%d", f.Next, f.Epoch)); err != nil {
					return err
				}
			}
			return nil
		})
		var stale *epoch.StaleError
		switch {
		case err == nil:
			for n, f := range held {
				f.Next++
				held[n] = f
			}
			fmt.Println("committed")
		case errors.As(err, &stale):
			delete(held, int(stale.Partition.Number))
		default:
			return err
		}
	}
}

// worker is one that was started.
type worker struct {
	*servertest.Self
	t testing.TB
}

func startWorker(t testing.TB, role, file string) *worker {
	t.Helper()
	return &worker{servertest.StartSelf(t, roleVar+"="+role, fileVar+"="+file), t}
}

// says waits for the next line, which must be this one.
func (w *worker) says(want string) {
	w.t.Helper()
	select {
	case got := <-w.Lines:
		if got != want {
			w.t.Fatalf("the worker says %q, want %q", got, want)
		}
	case <-time.After(time.Minute):
		w.t.Fatalf("the worker says nothing, want %q", want)
	}
}

func (w *worker) resume() {
	w.t.Helper()
	if _, err := io.WriteString(w.Input, "\n"); err != nil {
		w.t.Fatal(err)
	}
}

func wantEffects(t testing.TB, db *sql.DB, want ...string) {
	t.Helper()
	got, err := effects(t.Context(), db, orders0.String())
	if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("effects %q, want %q; %v", got, want, err)
	}
}

func takeOver(t testing.TB, s *sqlsink.Sink) {
	t.Helper()
	f := claim(t, s, 6)
	if f.Next != 0 {
		t.Errorf("the next owner continues at offset %d, want 0", f.Next)
	}
	err := s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx *sqlsink.Tx) error {
		return appendEffect(ctx, tx, orders0.String(), "next owner")
	})
	if err != nil {
		t.Fatal(err)
	}
}

func seeded(t testing.TB) (file string, db *sql.DB, s *sqlsink.Sink) {
	t.Helper()
	file = newFile(t)
	db = open(t, file)
	s = newSink(t, db, sqlsink.Options{})
	var starts []epoch.Start
	for n := range partitions {
		starts = append(starts, epoch.Start{Origin: partition(n)})
	}
	if err := s.Seed(t.Context(), starts); err != nil {
		t.Fatal(err)
	}
	return file, db, s
}

func TestAProcessKilledInItsTransactionLeavesNeitherEffectNorLock(t *testing.T) {
	file, db, s := seeded(t)
	w := startWorker(t, "pause after writes", file)
	w.says("paused")
	w.Signal(syscall.SIGKILL)
	<-w.Ended
	takeOver(t, s)
	wantEffects(t, db, "next owner")
}

func TestAProcessFrozenBeforeItsFirstWriteHoldsNobodyUpAndIsRefused(t *testing.T) {
	file, db, s := seeded(t)
	w := startWorker(t, "pause before writes", file)
	w.says("paused")
	w.Freeze()
	takeOver(t, s)
	w.Signal(syscall.SIGCONT)
	w.resume()
	w.says("stale")
	wantEffects(t, db, "next owner")
}

// What SQLite cannot do, so that nobody thinks it can.
func TestAProcessFrozenWithTheWriteLockHoldsAllUpUntilItGoesOn(t *testing.T) {
	file, db, s := seeded(t)
	w := startWorker(t, "pause after writes", file)
	w.says("paused")
	w.Freeze()
	impatient := newSink(t, db, sqlsink.Options{LockTimeout: 50 * time.Millisecond})
	seen, err := epoch.FenceOf(t.Context(), impatient, orders0)
	if err != nil {
		t.Fatalf("reading a fence: %v", err)
	}
	_, err = impatient.Claim(t.Context(), seen, epoch.NewClaim(epoch.Lease{Origin: partition(0), Generation: 6}))
	wantError(t, err, "write lock was not free for 50ms", "frozen process")
	w.Signal(syscall.SIGCONT)
	w.resume()
	w.says("result: <nil>")
	f := claim(t, s, 6)
	if f.Next != 1 || f.Epoch != 6 {
		t.Errorf("the next owner continues at offset %d under epoch %d, want 1 and 6", f.Next, f.Epoch)
	}
	wantEffects(t, db, "worker")
}

func TestSeveralProcessesOnOneFileFrozenAndKilledApplyEachMessageOnce(t *testing.T) {
	file, db, s := seeded(t)
	workers := make([]*worker, 4)
	for i := range workers {
		workers[i] = startWorker(t, "consume", file)
	}
	// Every few commits of a worker, it is killed and another started, or
	// frozen until the others have gone on, or a while if it holds the lock.
	heard := func(w *worker, commits int) bool {
		for range commits {
			select {
			case line, ok := <-w.Lines:
				if !ok {
					return false
				}
				if line != "committed" {
					t.Fatal(line)
				}
			case <-time.After(200 * time.Millisecond):
				return true
			}
		}
		return true
	}
	for round := range 12 {
		i := round % len(workers)
		heard(workers[i], 3)
		if round%2 == 0 {
			workers[i].Signal(syscall.SIGKILL)
			workers[i] = startWorker(t, "consume", file)
		} else {
			workers[i].Freeze()
			heard(workers[(i+1)%len(workers)], 3)
			workers[i].Signal(syscall.SIGCONT)
		}
	}
	for _, w := range workers {
		for line := range w.Lines {
			if line != "committed" {
				t.Fatal(line)
			}
		}
		<-w.Ended
		if w.Result != nil {
			t.Errorf("a worker ended with %v", w.Result)
		}
	}
	for n := range partitions {
		p := partition(n).Partition
		list, err := effects(t.Context(), db, p.String())
		if err != nil {
			t.Fatal(err)
		}
		last := epoch.Epoch(0)
		for i, e := range list {
			var o epoch.Offset
			var under epoch.Epoch
			if _, err := fmt.Sscanf(e, "%d@%d", &o, &under); err != nil || o != epoch.Offset(i) || under < last {
				t.Fatalf("%s: effect %d is %q, after epoch %d; %v", p, i, e, last, err)
			}
			last = under
		}
		if len(list) != messages {
			t.Errorf("%s: %d effects of %d messages", p, len(list), messages)
		}
		f, err := epoch.FenceOf(t.Context(), s, p)
		if err != nil || f.Next != messages {
			t.Errorf("%s is at offset %d, %v", p, f.Next, err)
		}
	}
}
