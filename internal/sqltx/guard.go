package sqltx

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/epochfence/epochfence/epoch"
)

// GuardConfig says what a [Guard] lends.
type GuardConfig struct {
	// Package is the store's name, which begins the errors.
	Package string

	// Begin begins the transaction, at the first use. Its error is the end of it.
	Begin func(ctx context.Context) (*Tx, error)

	// Explain is what the handler sees of the error of a statement.
	Explain func(err error) error

	// Alone says that the transaction is that of a single call.
	Alone bool
}

// Guard lends one transaction to calls of handlers, one after the other, and keeps what
// they write inside: nothing is sent any more once the database has rolled back by itself,
// where the next statement would be committed on its own.
type Guard struct {
	b *DB
	c GuardConfig

	mu   sync.Mutex  // held while the connection is in use
	tx   *Tx         // nil before the first use
	gone error       // why there is no transaction
	left atomic.Bool // abandoned
	told []error     // of statements, as the database gave them, the last few

	effects map[string]Effect    // of the texts of this transaction, some of them
	call    atomic.Pointer[Call] // the last one
}

// Abandon ends the transaction while a call of a handler, which may never return, has it.
// It waits for a statement that is under way, which it cancels.
func (g *Guard) Abandon() {
	g.left.Store(true) // before anything fails for it
	c := g.call.Load()
	if c != nil {
		c.cancel()
	}
	g.mu.Lock()
	tx := g.tx
	g.mu.Unlock()
	if c != nil {
		c.close(false)
	}
	if tx != nil {
		tx.End()
	}
}

// Abandoned reports whether the transaction was abandoned.
func (g *Guard) Abandoned() bool { return g.left.Load() }

// Guard lends a transaction.
func (b *DB) Guard(c GuardConfig) *Guard { return &Guard{b: b, c: c} }

// Tx is the transaction, or nil if no call has used it. It is for when none runs.
func (g *Guard) Tx() *Tx { return g.tx }

// Gone returns why there is no transaction any more. It is nil while there is one, and
// before the first use.
func (g *Guard) Gone() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.gone
}

// Told reports whether err is, or wraps, the error of a statement of this transaction.
func (g *Guard) Told(err error) bool {
	return slices.ContainsFunc(g.told, func(e error) bool { return errors.Is(err, e) })
}

// maxTold is how many are remembered.
const maxTold = 16

func (g *Guard) tell(err error) {
	if g.told = append(g.told, err); len(g.told) > maxTold {
		g.told = slices.Delete(g.told, 0, 1)
	}
}

// maxEffects is how many are remembered.
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

// begun begins the transaction if this is its first use.
func (g *Guard) begun(ctx context.Context) error {
	if g.tx != nil {
		return nil
	}
	tx, err := g.c.Begin(ctx)
	if err != nil {
		g.tell(err)
		g.gone = err // for good: a handler must not continue as if nothing was
		return fmt.Errorf("%s: %w", g.c.Package, err)
	}
	g.tx = tx
	return nil
}

// judge looks, after the error of a statement, whether the transaction is still there,
// and returns what the handler sees of the error. The handler's next statement would be
// committed at once if it is not.
func (g *Guard) judge(text string, err error) error {
	if err == nil {
		return nil
	}
	g.tell(err)
	seen := g.c.Explain(err)
	if g.gone != nil {
		return seen
	}
	in, probeErr := g.b.d.InTransaction(context.Background(), g.tx.Conn)
	if !in || probeErr != nil {
		g.gone = fmt.Errorf("the database has rolled the transaction back after %q: %w", excerpt(text), seen)
	}
	return seen
}

// prove looks whether the transaction is the one in which the savepoint was set, after a
// text of which it is not known what it does.
func (g *Guard) prove(savepoint, text string) {
	if _, err := g.tx.Conn.ExecContext(context.Background(), `RELEASE SAVEPOINT `+savepoint); err != nil {
		g.gone = fmt.Errorf("%w, or it cannot be told, by %q: %w", epoch.ErrTxEndedByHandler, excerpt(text), err)
	}
}
