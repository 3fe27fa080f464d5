package sqltx

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/epochfence/epochfence/epoch"
)

// This file decides whether the transaction is still the one that was begun, after each statement of a
// handler and each error, and finds the codes of databases' errors for the stores. call.go lends it to one
// call after the other, effect.go decides which texts are sent, and Classify what a code means.

// GuardConfig configures a [Guard].
type GuardConfig struct {
	// Package is the store's name, with which errors begin.
	Package string

	// Begin begins the transaction, at its first use. If it fails, nothing more is sent.
	Begin func(ctx context.Context) (*Tx, error)

	// Explain returns what the handler sees of a statement's error.
	Explain func(err error) error

	// Stop is called before each statement, if it is not nil. After an error the statement is not sent.
	Stop func() error

	// Alone means that the transaction has a single call.
	Alone bool
}

// Guard lends one transaction to calls of handlers, in order, and keeps their writes inside. Once
// the database has rolled back by itself, it sends nothing more, because the next statement would
// be committed on its own.
type Guard struct {
	b *DB
	c GuardConfig

	mu   mutex       // held while the connection is in use
	tx   *Tx         // nil before the first use
	gone error       // why there is no transaction
	left atomic.Bool // abandoned
	told []error     // the last few errors of statements, as the database gave them

	effects map[string]Effect    // by text; of some texts of this transaction
	call    atomic.Pointer[Call] // the latest
}

// mutex has an element while it is locked, so that one can wait for it until a context ends.
type mutex chan struct{}

func (m mutex) lock()   { m <- struct{}{} }
func (m mutex) unlock() { <-m }

func (m mutex) tryLock() bool {
	select {
	case m <- struct{}{}:
		return true
	default:
		return false
	}
}

// Abandon ends the transaction while a call of a handler, which may never return, is using it. It
// cancels a statement under way and waits for its end.
func (g *Guard) Abandon() {
	g.left.Store(true) // before anything fails because of it
	c := g.call.Load()
	if c != nil {
		c.cancel()
	}
	g.mu.lock()
	tx := g.tx
	g.mu.unlock()
	if c != nil {
		c.close(false)
	}
	if tx != nil {
		tx.End()
	}
}

// Abandoned reports whether the transaction was abandoned.
func (g *Guard) Abandoned() bool { return g.left.Load() }

// Guard returns a Guard of one transaction.
func (b *DB) Guard(c GuardConfig) *Guard { return &Guard{b: b, c: c, mu: make(mutex, 1)} }

// Tx returns the transaction, or nil if no call has used it. No call may be running.
func (g *Guard) Tx() *Tx { return g.tx }

// Gone returns why there is no transaction any more, or nil if there is one, or if none has begun.
func (g *Guard) Gone() error {
	g.mu.lock()
	defer g.mu.unlock()
	return g.gone
}

// Told returns the error of a statement of this transaction that err is or wraps, as the database gave
// it, or nil.
func (g *Guard) Told(err error) error {
	if i := slices.IndexFunc(g.told, func(e error) bool { return errors.Is(err, e) }); i >= 0 {
		return g.told[i]
	}
	return nil
}

const maxTold = 16

func (g *Guard) tell(err error) {
	if g.told = append(g.told, err); len(g.told) > maxTold {
		g.told = slices.Delete(g.told, 0, 1)
	}
}

const maxEffects = 64

// effect remembers texts, because the messages of a transaction mostly send the same ones.
func (g *Guard) effect(text string) Effect {
	e, known := g.effects[text]
	if known {
		return e
	}
	if g.effects == nil || len(g.effects) >= maxEffects {
		g.effects = map[string]Effect{}
	}
	e = g.b.d.Effect(text)
	g.effects[text] = e
	return e
}

func (g *Guard) begun(ctx context.Context) error {
	if g.tx != nil {
		return nil
	}
	tx, err := g.c.Begin(ctx)
	if err != nil {
		g.tell(err)
		g.gone = err // for good: a handler must not continue as if nothing had happened
		return fmt.Errorf("%s: %w", g.c.Package, err)
	}
	g.tx = tx
	return nil
}

// judge returns what the handler sees of a statement's error. It checks whether the transaction is
// still there: if not, the handler's next statement would be committed at once.
func (g *Guard) judge(text string, err error) error {
	if err == nil {
		return nil
	}
	g.tell(err)
	seen := g.c.Explain(err)
	if g.gone != nil {
		return seen
	}
	in, probeErr := g.b.d.InTransaction(context.Background(), g.tx.Conn, err)
	if !in || probeErr != nil {
		g.gone = fmt.Errorf("the database has rolled the transaction back after %q: %w", excerpt(text), seen)
	}
	return seen
}

// prove checks, after a text with an unknown effect, that the transaction is still the one in which
// the savepoint was set.
func (g *Guard) prove(savepoint, text string) {
	if _, err := g.tx.Conn.ExecContext(context.Background(), `RELEASE SAVEPOINT `+savepoint); err != nil {
		g.gone = fmt.Errorf("%w, or it is not known whether it did: after %q, its savepoint could not be released: %w", epoch.ErrTxEndedByHandler, excerpt(text), err)
	}
}

// SQLState returns the SQLSTATE of PostgreSQL's error in err, or "" if there is none.
func SQLState(err error) string {
	if err == nil {
		return ""
	}
	return sqlState(err)
}

const sqliteConstraintTrigger = 1811

// IsRaisedBySQLiteTrigger reports whether a trigger has raised err, through any driver that
// [SQLite] knows.
func IsRaisedBySQLiteTrigger(err error) bool {
	if err == nil {
		return false
	}
	code, of := resultCode(err)
	return of != nil && code == sqliteConstraintTrigger
}
