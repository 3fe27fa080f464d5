package sinktest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/epochfence/epochfence/epoch"
)

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

// sends returns a handler that writes its effect and then sends texts.
func sends(texts ...string) func(c *Call) error {
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

// hides returns a handler that writes its effect, sends texts, writes again, and ignores all
// errors.
func hides(texts ...string) func(c *Call) error {
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
