package sinktest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"runtime"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

// This file has what an idiom may do in a call, and the idioms that need no SQL.

// Call is one call of a handler that runs an [Idiom].
type Call struct {
	Ctx      context.Context
	TX       any // the sink's transaction
	Message  epoch.Message
	Try      int           // the number of this call for the message, from 1
	Returned chan struct{} // closed when the sink knows that the call has returned

	play *play
}

// Write writes the message's effect.
func (c *Call) Write() error { return c.WriteThrough(c.Ctx) }

// WriteThrough is Write with another context.
func (c *Call) WriteThrough(ctx context.Context) error {
	return c.play.db.Append(ctx, c.TX, c.Message.Partition.String(), value(c.Message.Offset))
}

// Insert returns a statement that writes the message's effect.
func (c *Call) Insert() string {
	return fmt.Sprintf("insert into effects (list, value) values ('%s', '%d')", c.Message.Partition, c.Message.Offset)
}

// Exec sends a statement in the way of the mode.
func (c *Call) Exec(query string, args ...any) error { return c.ExecThrough(c.Ctx, query, args...) }

// ExecThrough is Exec with another context.
func (c *Call) ExecThrough(ctx context.Context, query string, args ...any) error {
	return c.play.mode.Exec(ctx, c.TX, query, args...)
}

// Query sends a query in the way of the mode.
func (c *Call) Query(query string) (Rows, error) { return c.play.mode.Query(c.Ctx, c.TX, query) }

// Handle returns the transaction as a [Handle].
func (c *Call) Handle() Handle { return c.play.mode.Handle(c.TX) }

// DB returns the transaction as a DB.
func (c *Call) DB() *sql.DB { return c.play.mode.DB(c.TX) }

// Aside runs a statement on a connection of the handler's own.
func (c *Call) Aside(query string) error { return c.play.db.Aside(c.Ctx, query) }

// Key returns a text that is unique among the messages of all plays.
func (c *Call) Key() string { return fmt.Sprintf("%s %d", c.Message.Partition, c.Message.Offset) }

// Go runs f concurrently with the handler. The play waits for its end.
func (c *Call) Go(f func()) { c.play.stray(f) }

func inTurn(steps ...func() error) error {
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func (c *Call) exec(query string, args ...any) func() error {
	return func() error { return c.Exec(query, args...) }
}

// Sends returns a handler that writes its effect and then sends texts.
func Sends(texts ...string) func(c *Call) error {
	return func(c *Call) error {
		err := c.Write()
		for _, text := range texts {
			if err == nil {
				err = c.Exec(text)
			}
		}
		return err
	}
}

// SendsWith is [Sends] for one text with arguments.
func SendsWith(query string, args ...any) func(c *Call) error {
	return func(c *Call) error { return inTurn(c.Write, c.exec(query, args...)) }
}

// Hides returns a handler that writes its effect, sends texts, writes again, and ignores all
// errors.
func Hides(texts ...string) func(c *Call) error {
	return func(c *Call) error {
		_ = c.Write()
		for _, text := range texts {
			_ = c.Exec(text)
		}
		_ = c.Write()
		return nil
	}
}

var errOfHandler = errors.New("the handler's own error")

// anybody are the idioms that need no SQL.
var anybody = []Idiom{
	{Name: "writes and returns nil", Want: Applied, Places: true, Do: func(c *Call) error { return c.Write() }},
	{Name: "does nothing", Want: Undone, Do: func(*Call) error { return nil }},
	{Name: "everybody does nothing", Everybody: true, Want: Undone, Do: func(*Call) error { return nil }},
	{Name: "writes and returns an error", Want: Costs, Says: []string{"the handler's own error"}, Do: writesAnd(func() error { return errOfHandler })},
	{Name: "writes and returns a permanent error", Want: Costs, Says: []string{"the handler's own error"}, Do: writesAnd(func() error { return consumer.Permanent(errOfHandler) })},
	{Name: "fails once and then writes", Want: Alone, Do: func(c *Call) error {
		if c.Try == 1 {
			return errOfHandler
		}
		return c.Write()
	}},
	{Name: "panics", Want: Costs, Says: []string{"panic: on purpose"}, Places: true, Do: writesAnd(func() error { panic("on purpose") })},
	{Name: "panics with nil", Want: Costs, Says: []string{"panic"}, Do: writesAnd(func() error { panic(nil) })},
	{Name: "ends its goroutine", Want: Costs, Says: []string{"runtime.Goexit"}, Places: true, Do: writesAnd(func() error { runtime.Goexit(); return nil })},

	// Errors with deceptive values.
	{Name: "returns a typed nil", Want: Costs, Says: []string{"PathError"}, Do: writesAnd(func() error { return (*fs.PathError)(nil) })},
	{Name: "returns a typed nil in %w", Want: Costs, Says: []string{"read it"}, Do: writesAnd(func() error { return fmt.Errorf("read it: %w", error((*fs.PathError)(nil))) })},
	{Name: "returns a typed nil in Join", Want: Costs, Do: writesAnd(func() error { return errors.Join(errOfHandler, (*fs.PathError)(nil)) })},
	{Name: "returns a typed nil in Permanent", Want: Costs, Do: writesAnd(func() error { return consumer.Permanent((*fs.PathError)(nil)) })},
	{Name: "panics with a typed nil", Want: Costs, Says: []string{"panic"}, Do: writesAnd(func() error { panic(error((*fs.PathError)(nil))) })},
	{Name: "returns an error whose Is panics", Want: Costs, Do: writesAnd(func() error { return panickingError{} })},
	{Name: "returns an error whose Error panics", Want: Costs, Do: writesAnd(func() error { return speechlessError{} })},
	{Name: "returns ErrUnhealthy", Want: Halts, Says: []string{"no disk"}, Do: writesAnd(func() error { return fmt.Errorf("no disk: %w", epoch.ErrUnhealthy) })},
	{Name: "returns an error whose Is ends the goroutine", Want: Costs, Do: writesAnd(func() error { return endingError{} })},

	// Forged errors of the protocol.
	forged("ErrStale", epoch.ErrStale), forged("ErrMoved", epoch.ErrMoved), forged("ErrMissing", epoch.ErrMissing),
	forged("ErrInDoubt", epoch.ErrInDoubt), forged("ErrTxEndedByHandler", epoch.ErrTxEndedByHandler),
	forged("ErrOwnTransaction", epoch.ErrOwnTransaction), forged("ErrNotRequested", operate.ErrRowChanged),
	{Name: "returns a StaleError of the other partition", Want: Costs, Do: func(c *Call) error {
		_ = c.Write()
		return &epoch.StaleError{Partition: c.play.partition(innocent)}
	}},
	{Name: "returns a CallError of another call", Want: Costs, Do: writesAnd(func() error { return &epoch.CallError{Call: 1, Err: errOfHandler} })},

	// The context.
	{Name: "returns the error of a context of its own", Want: Costs, Says: []string{"context canceled"}, Do: func(c *Call) error {
		ctx, cancel := context.WithCancel(c.Ctx)
		cancel()
		_ = c.Write()
		return ctx.Err()
	}},
	{Name: "outlives the time of its transaction, writes and returns nil", Impatient: true, Want: Costs, Says: []string{"BatchTimeout"}, Do: func(c *Call) error {
		c.outlives()
		_ = c.WriteThrough(context.WithoutCancel(c.Ctx))
		return nil
	}},
	{Name: "outlives the time of its transaction and returns nil", Impatient: true, Want: Costs, Says: []string{"BatchTimeout"}, Do: func(c *Call) error {
		err := c.Write()
		c.outlives()
		return err
	}},
	{Name: "writes after it has returned", Want: Applied, Places: true, Do: func(c *Call) error {
		c.writesLater()
		return c.Write()
	}},
	{Name: "writes after it has returned an error", Want: Costs, Do: func(c *Call) error {
		c.writesLater()
		return errOfHandler
	}},
}

func (c *Call) writesLater() {
	c.Go(func() {
		defer func() { _ = recover() }() // a sink may report it by a panic
		<-c.Returned
		_ = c.WriteThrough(context.WithoutCancel(c.Ctx))
	})
}

func writesAnd(f func() error) func(c *Call) error {
	return func(c *Call) error {
		if err := c.Write(); err != nil {
			return err
		}
		return f()
	}
}

// outlives returns some time after the transaction's context has ended.
func (c *Call) outlives() {
	<-c.Ctx.Done()
	<-time.After(50 * time.Millisecond)
}

// forged is a handler that returns an error of the sink. It counts as the handler's own failure.
func forged(name string, err error) Idiom {
	return Idiom{Name: "returns " + name, Want: Costs, Says: []string{err.Error()}, Do: writesAnd(func() error { return fmt.Errorf("another store: %w", err) })}
}

type panickingError struct{}

func (panickingError) Error() string   { return "a hostile error" }
func (panickingError) Is(error) bool   { panic("in Is") }
func (panickingError) As(any) bool     { panic("in As") }
func (panickingError) Unwrap() []error { panic("in Unwrap") }

type speechlessError struct{}

func (speechlessError) Error() string { panic("in Error") }

// endingError ends the goroutine that calls its Is method.
type endingError struct{}

func (endingError) Error() string { return "an error that ends goroutines" }
func (endingError) Is(error) bool { runtime.Goexit(); return false }
