// Package queue lets the processes that write to one SQLite file share its write
// lock. SQLite has no queue for it: who waits polls, and next to a process that
// takes the lock again as soon as it has let go, hardly ever meets it free.
//
// Who waits says so, by a shared lock on a file beside the database, and who has
// had the write lock for a while and is told that others wait lets them go first.
// It is a courtesy among processes and nothing rests on it: where the file
// cannot be made or locked, they compete as before, and one that is frozen while it
// waits costs the others a short rest now and then.
package queue

import (
	"context"
	"database/sql"
	"math/rand/v2"
	"sync"
	"time"
)

const (
	// Poll is how often who waits asks for the write lock.
	Poll = 4 * time.Millisecond

	// hold is how long a process may continue while others wait.
	hold = 50 * time.Millisecond

	// rest is how long it then leaves the lock to them: longer than a poll.
	rest = 2 * Poll
)

// Queue is one process's place among those that write to a file. The zero Queue
// is that of a database without one. It is safe for concurrent use, and meant
// for those who take turns by themselves within the process.
type Queue struct {
	path string // of the file to lock; empty for none

	mu    sync.Mutex
	held  time.Duration
	rests <-chan time.Time // ends the rest that is due, if one is
}

// Open returns the queue of a database, which is asked for the name of its file.
func Open(ctx context.Context, db interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}) (*Queue, error) {
	var file string
	if err := db.QueryRowContext(ctx, `SELECT file FROM pragma_database_list WHERE name = 'main'`).Scan(&file); err != nil {
		return nil, err
	}
	if file == "" { // in memory
		return &Queue{}, nil
	}
	return &Queue{path: file + "-queue"}, nil
}

// Pause is how long to wait before asking for the lock again. Jitter keeps two
// who wait from meeting again and again.
func Pause() time.Duration { return Poll/2 + rand.N(Poll) }

// Wait says that this process waits for the write lock, until done is called.
func (q *Queue) Wait() (done func()) {
	if q.path == "" {
		return func() {}
	}
	return share(q.path)
}

// Turn returns after the rest that is due, if one is, or when ctx ends.
func (q *Queue) Turn(ctx context.Context) {
	q.mu.Lock()
	rests := q.rests
	q.rests = nil
	q.mu.Unlock()
	if rests == nil {
		return
	}
	select {
	case <-rests:
	case <-ctx.Done():
	}
}

// Held notes for how long the write lock was held, and has the process rest before
// it takes it again if it has had it for a while and others wait.
func (q *Queue) Held(d time.Duration) {
	if q.path == "" {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.held += d; q.held < hold {
		return
	}
	q.held = 0
	if shared(q.path) {
		q.rests = time.After(rest)
	}
}
