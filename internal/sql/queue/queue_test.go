//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package queue_test

import (
	"database/sql"
	"os"
	"path/filepath"
	"testing"
	"time"

	_ "modernc.org/sqlite"

	"github.com/epochfence/epochfence/internal/sql/queue"
	"github.com/epochfence/epochfence/internal/suites/bubble"
)

func open(t *testing.T, name string) *queue.Queue {
	t.Helper()
	db, err := sql.Open("sqlite", name)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	if _, err := db.ExecContext(t.Context(), `CREATE TABLE IF NOT EXISTS t (n)`); err != nil {
		t.Fatal(err)
	}
	q, err := queue.Open(t.Context(), db)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// rests is how long the next turn is put off.
func rests(t *testing.T, q *queue.Queue) time.Duration {
	t.Helper()
	began := time.Now()
	q.Turn(t.Context())
	return time.Since(began)
}

func TestWhoHasHadTheLockForAWhileRestsIfOthersWait(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "a b.db")
		a, b := open(t, file), open(t, file)
		a.Held(time.Hour)
		if d := rests(t, a); d != 0 {
			t.Errorf("rests for %v though nobody waits", d)
		}
		done := b.Wait()
		a.Held(40 * time.Millisecond)
		if d := rests(t, a); d != 0 {
			t.Errorf("rests for %v after a short time", d)
		}
		a.Held(10 * time.Millisecond)
		if d := rests(t, a); d < queue.Poll*3/2 {
			t.Errorf("rests for %v, in which who waits may not ask", d)
		}
		if d := rests(t, a); d != 0 {
			t.Errorf("rests again, for %v", d)
		}
		done()
		a.Held(time.Hour)
		if d := rests(t, a); d != 0 {
			t.Errorf("rests for %v though nobody waits any more", d)
		}
	})
}

func TestWithoutAFileToLockNobodyRests(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "a.db")
	unwritable := open(t, file)
	if err := os.Mkdir(file+"-queue", 0o700); err != nil { // as good as a directory without rights, to root too
		t.Fatal(err)
	}
	for name, q := range map[string]*queue.Queue{
		"in memory": open(t, ":memory:"), "no place for the file": unwritable, "no database": {},
	} {
		done := q.Wait()
		q.Held(time.Hour)
		if d := rests(t, q); d > time.Second {
			t.Errorf("%s: rests for %v", name, d)
		}
		done()
	}
}
