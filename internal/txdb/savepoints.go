package txdb

import (
	"crypto/rand"
	"database/sql"
	"errors"
	"slices"
	"strings"
	"sync"
)

// Savepoints are the savepoints that one message has set through handles with a Commit
// and a Rollback, whoever gave it the handles. The zero Savepoints are none. They are
// safe for concurrent use.
//
// A handle decides only its own message. A message whose handle was left open, or
// could not be ended as its user asked, is rolled back as a whole.
type Savepoints struct {
	mu     sync.Mutex
	open   []string // the outermost first
	failed error
}

var (
	// ErrLeft is returned for a message that has left a handle open.
	ErrLeft = errors.New("a transaction begun by Begin was neither committed nor rolled back when the handler returned: " +
		"call its Commit or Rollback, and leave it to no context")

	// ErrLate is returned for a message whose handle was rolled back after the end of
	// the context that it was begun with. Database/sql does that by itself.
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

// Use returns [sql.ErrTxDone] unless the savepoint is open. It ends with each one that it
// was set in.
func (s *Savepoints) Use(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Contains(s.open, name) {
		return sql.ErrTxDone
	}
	return nil
}

// End takes the savepoint away, and those that were set within it.
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

// Failed returns why the message cannot be committed any more, so that the rest of it
// need not run. A savepoint that is open may still be ended.
func (s *Savepoints) Failed() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed
}

// Err returns why the message cannot be committed, once its handler has returned and
// nothing is sent for it any more.
func (s *Savepoints) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed == nil && len(s.open) > 0 {
		return ErrLeft
	}
	return s.failed
}
