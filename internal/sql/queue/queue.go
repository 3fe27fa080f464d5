// Package queue lets the processes that write to one SQLite file share its write lock. SQLite has
// no queue for it: a waiting process polls. If another process takes the lock again as soon as it
// has released it, a poll hardly ever finds the lock free.
//
// A waiting process takes a shared lock on a file next to the database. A process that has had the
// write lock for a while pauses if another process has that shared lock. Correctness does not
// depend on it: if the file cannot be created or locked, the processes compete as without a queue.
// A process that is frozen while it waits only makes the others pause now and then.
package queue

import (
	"context"
	"database/sql"
	"math/rand/v2"
	"sync"
	"time"
)

const (
	// Poll is the average wait between two tries for the write lock.
	Poll = 4 * time.Millisecond

	// hold limits the time for which a process has the write lock while others wait.
	hold = 50 * time.Millisecond

	// rest is the pause after that. It is longer than a poll, so that a waiting process gets the
	// lock.
	rest = 2 * Poll
)

// Queue is one process's place among the processes that write to a file. The zero Queue is for a
// database without a file. It is safe for concurrent use. It does not order the goroutines of the
// process.
type Queue struct {
	path string // of the file to lock; empty for none

	mu    sync.Mutex
	held  time.Duration
	rests <-chan time.Time // ends the rest that is due; nil if none is due
}

// Open returns the queue of a database. It queries the name of the database's file.
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

// Pause returns the time to wait before the next try for the lock. Its jitter keeps two processes
// from trying in step.
func Pause() time.Duration { return Poll/2 + rand.N(Poll) }

// Wait tells the other processes that this process waits for the write lock, until done is called.
// It returns nil if that was not possible at this moment: call it again with the next try.
func (q *Queue) Wait() (done func()) {
	if q.path == "" {
		return func() {}
	}
	return share(q.path)
}

// Turn waits for the end of the rest that is due, if any, or of ctx.
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

// Held records that the process has had the write lock for d. If it has had the lock for a while
// and others wait, the next Turn rests.
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
