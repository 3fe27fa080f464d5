package txdb

import (
	"crypto/rand"
	"database/sql"
	"errors"
	"slices"
	"strings"
	"sync"
)

// Savepoints are the savepoints that one message has set through any handles with a Commit and a
// Rollback. The zero value is empty. They are safe for concurrent use.
//
// A handle decides only about its own message. If a handle was left open, or could not be ended as
// its user asked, the whole message is rolled back.
type Savepoints struct {
	mu     sync.Mutex
	open   []string // the outermost first
	failed error
}

var (
	// ErrLeft is returned if a message has left a handle open.
	ErrLeft = errors.New("a transaction begun by Begin was neither committed nor rolled back when the handler returned: " +
		"call its Commit or Rollback, and leave it to no context")

	// ErrLate is returned if a handle was rolled back after the end of the context that it was
	// begun with. Package database/sql does that by itself.
	ErrLate = errors.New("a transaction begun by BeginTx was rolled back because its context had ended: " +
		"call its Commit or Rollback before the context ends")
)

// Name returns a name for a savepoint that nobody can guess.
func Name() string { return "epochfence_" + strings.ToLower(rand.Text()) }

// Open adds a savepoint, and returns its name.
func (s *Savepoints) Open() (name string) {
	name = Name()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open = append(s.open, name)
	return name
}

// Use returns [sql.ErrTxDone] unless the savepoint is open. A savepoint ends with any savepoint in
// which it was set.
func (s *Savepoints) Use(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Contains(s.open, name) {
		return sql.ErrTxDone
	}
	return nil
}

// End removes the savepoint, and those that were set within it.
func (s *Savepoints) End(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(s.open, name); i >= 0 {
		s.open = s.open[:i]
	}
}

// Fail keeps the message from being committed. The first reason counts.
func (s *Savepoints) Fail(why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed == nil {
		s.failed = why
	}
}

// Failed returns why the message cannot be committed any more, so that the rest of it need not run.
// Open savepoints may still be ended.
func (s *Savepoints) Failed() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed
}

// Err returns why the message cannot be committed. It is for when the handler has returned and
// nothing more is sent.
func (s *Savepoints) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed == nil && len(s.open) > 0 {
		return ErrLeft
	}
	return s.failed
}
