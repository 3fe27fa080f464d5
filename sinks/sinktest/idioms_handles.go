package sinktest

import (
	"context"
	"database/sql"
	"errors"
	"time"
)

var handles = []Idiom{
	{Name: "handle: deferred Rollback after Commit", Want: Applied, Places: true, Do: through(func(c *Call, h Handle) error {
		defer func() { _ = h.Rollback(c.Ctx) }()
		return inTurn(c.inserts(h), func() error { return h.Commit(c.Ctx) })
	})},
	{Name: "handle: Commit, whose error is ignored, and nil", Want: Applied, Places: true, Do: through(func(c *Call, h Handle) error {
		err := c.inserts(h)()
		_ = h.Commit(c.Ctx)
		return err
	})},
	{Name: "handle: deferred Rollback without Commit, and nil", Want: Undone, Places: true, Do: through(func(c *Call, h Handle) error {
		defer func() { _ = h.Rollback(c.Ctx) }()
		return c.inserts(h)()
	})},
	{Name: "handle: Rollback before any statement, and nil", Want: Undone, Do: through(func(c *Call, h Handle) error { return h.Rollback(c.Ctx) })},
	{Name: "handle: writes through the message's own transaction, then Rollback, and nil", Want: Undone, Do: func(c *Call) error {
		return inTurn(c.Write, func() error { return c.Handle().Rollback(c.Ctx) })
	}},
	{Name: "handle: Rollback and an error", Want: Costs, Says: []string{errOfHandler.Error()}, Places: true, Do: through(func(c *Call, h Handle) error {
		return errors.Join(c.inserts(h)(), h.Rollback(c.Ctx), errOfHandler)
	})},
	{Name: "handle: Commit and an error", Want: Costs, Says: []string{errOfHandler.Error()}, Do: through(func(c *Call, h Handle) error {
		return errors.Join(c.inserts(h)(), h.Commit(c.Ctx), errOfHandler)
	})},
	{Name: "handle: Commit twice", Want: Applied, Do: through(func(c *Call, h Handle) error {
		err := inTurn(c.inserts(h), func() error { return h.Commit(c.Ctx) })
		if again := h.Commit(c.Ctx); err == nil && again == nil {
			return errors.New("the second Commit returns nil")
		}
		return err
	})},
	{Name: "handle: a statement after Commit, whose error is ignored", Want: Applied, Do: through(func(c *Call, h Handle) error {
		err := inTurn(c.inserts(h), func() error { return h.Commit(c.Ctx) })
		_ = h.Exec(c.Ctx, c.Insert())
		return err
	})},
	{Name: "handle: Rollback after Commit and a write of its own", Want: Applied, Do: through(func(c *Call, h Handle) error {
		err := h.Commit(c.Ctx)
		_ = h.Rollback(c.Ctx)
		return errors.Join(err, c.Write())
	})},
	{Name: "handle: continues after Rollback", Want: Costs, Places: true, Do: through(func(c *Call, h Handle) error {
		_ = h.Rollback(c.Ctx)
		_ = h.Exec(c.Ctx, c.Insert())
		return c.Write()
	})},
	{Name: "handle: continues after Rollback through the message's own transaction, and hides the error", Want: Costs, Do: through(func(c *Call, h Handle) error {
		_ = c.inserts(h)()
		_ = h.Rollback(c.Ctx)
		_ = c.Write()
		return nil
	})},
	{Name: "handle: text COMMIT", Want: Costs, Says: []string{"COMMIT"}, Do: through(func(c *Call, h Handle) error {
		return inTurn(c.inserts(h), func() error { return h.Exec(c.Ctx, "COMMIT") })
	})},
	{Name: "handle: Commit under a context that has ended", Want: Applied, Do: through(func(c *Call, h Handle) error { return c.endsTooLate(h, h.Commit) })},
	{Name: "handle: Rollback under a context that has ended, and nil", Want: Undone, Do: through(func(c *Call, h Handle) error { return c.endsTooLate(h, h.Rollback) })},

	// Savepoints.
	{Name: "nested: Begin, Commit", Want: Applied, Places: true, Do: through(func(c *Call, h Handle) error {
		return nested(c, h, func(in Handle) error { return inTurn(c.inserts(in), func() error { return in.Commit(c.Ctx) }) })
	})},
	{Name: "nested: deferred Rollback after Commit", Want: Applied, Do: through(func(c *Call, h Handle) error {
		return nested(c, h, func(in Handle) error {
			defer func() { _ = in.Rollback(c.Ctx) }()
			return inTurn(c.inserts(in), func() error { return in.Commit(c.Ctx) })
		})
	})},
	{Name: "nested: Rollback, and writes", Want: Applied, Places: true, Do: through(func(c *Call, h Handle) error {
		err := nested(c, h, func(in Handle) error { return inTurn(c.inserts(in), func() error { return in.Rollback(c.Ctx) }) })
		return errors.Join(err, c.Write())
	})},
	{Name: "nested: an error within is undone by Rollback, and writes", Want: Applied, Do: through(func(c *Call, h Handle) error {
		err := nested(c, h, func(in Handle) error {
			_ = in.Exec(c.Ctx, "insert into idiom_keys values ('always there')")
			return in.Rollback(c.Ctx)
		})
		return errors.Join(err, c.Write())
	})},
	{Name: "nested: left open", Want: Costs, Places: true, Do: through(func(c *Call, h Handle) error {
		return nested(c, h, func(in Handle) error { return c.inserts(in)() })
	})},
	{Name: "nested: Commit under a rolled-back outer one, and nil", Want: Undone, Places: true, Do: through(func(c *Call, h Handle) error {
		defer func() { _ = h.Rollback(c.Ctx) }()
		return nested(c, h, func(in Handle) error { return inTurn(c.inserts(in), func() error { return in.Commit(c.Ctx) }) })
	})},
	{Name: "nested twice: inner Commit, outer Rollback, and writes", Want: Applied, Do: through(func(c *Call, h Handle) error {
		err := nested(c, h, func(outer Handle) error {
			err := nested(c, outer, func(in Handle) error { return inTurn(c.inserts(in), func() error { return in.Commit(c.Ctx) }) })
			return errors.Join(err, outer.Rollback(c.Ctx))
		})
		return errors.Join(err, c.Write())
	})},
	{Name: "nested twice: inner Rollback, outer Commit", Want: Applied, Do: through(func(c *Call, h Handle) error {
		return nested(c, h, func(outer Handle) error {
			err := c.inserts(outer)()
			err = errors.Join(err, nested(c, outer, func(in Handle) error { return inTurn(c.inserts(in), func() error { return in.Rollback(c.Ctx) }) }))
			return errors.Join(err, outer.Commit(c.Ctx))
		})
	})},
	{Name: "two handles, each with a savepoint: both rolled back, and writes", Want: Applied, Do: func(c *Call) error {
		return errors.Join(nested(c, c.Handle(), func(outer Handle) error {
			err := c.inserts(outer)()
			err = errors.Join(err, nested(c, c.Handle(), func(in Handle) error { return inTurn(c.inserts(in), func() error { return in.Rollback(c.Ctx) }) }))
			return errors.Join(err, outer.Rollback(c.Ctx))
		}), c.Write())
	}},
	{Name: "nested: Commit under a context that has ended", Want: Costs, Do: through(func(c *Call, h Handle) error {
		return nested(c, h, func(in Handle) error { return c.endsTooLate(in, in.Commit) })
	})},
	{Name: "nested: Rollback under a context that has ended", Want: Costs, Places: true, Do: through(func(c *Call, h Handle) error {
		return nested(c, h, func(in Handle) error { return c.endsTooLate(in, in.Rollback) })
	})},
	{Name: "a handle is used after the return", Want: Applied, Do: through(func(c *Call, h Handle) error {
		return nested(c, h, func(in Handle) error {
			c.Go(func() {
				ctx := context.WithoutCancel(c.Ctx)
				<-c.Returned
				_ = in.Rollback(ctx)
				_ = h.Exec(ctx, c.Insert())
				_ = h.Rollback(ctx)
			})
			return inTurn(c.inserts(in), func() error { return in.Commit(c.Ctx) })
		})
	})},
}

func through(do func(c *Call, h Handle) error) func(c *Call) error {
	return func(c *Call) error { return do(c, c.Handle()) }
}

func (c *Call) inserts(h Handle) func() error {
	return func() error { return h.Exec(c.Ctx, c.Insert()) }
}

func nested(c *Call, h Handle, do func(in Handle) error) error {
	in, err := h.Begin(c.Ctx)
	if err != nil {
		return err
	}
	return do(in)
}

// endsTooLate inserts through a handle, and ends it with a context that has ended.
func (c *Call) endsTooLate(h Handle, end func(context.Context) error) error {
	err := c.inserts(h)()
	ctx, cancel := context.WithCancel(c.Ctx)
	cancel()
	_ = end(ctx)
	return err
}

var dbs = []Idiom{
	{Name: "DB: writes, and Close", Want: Applied, Places: true, Do: onDB(func(c *Call, db *sql.DB) error {
		defer func() { _ = db.Close() }()
		return insertsIn(c, db)
	})},
	{Name: "DB: writes, and never closes it", Want: Applied, Do: onDB(insertsInDB)},
	{Name: "DB: text ROLLBACK, and hides the error", Want: Costs, Says: []string{"ROLLBACK"}, Do: onDB(func(c *Call, db *sql.DB) error {
		err := insertsIn(c, db)
		_, _ = db.ExecContext(c.Ctx, "ROLLBACK")
		return err
	})},
	{Name: "DB: Begin, Commit, and deferred Rollback", Want: Applied, Places: true, Do: inTx(func(c *Call, _ *sql.DB, tx *sql.Tx, _ func()) error {
		defer func() { _ = tx.Rollback() }()
		return errors.Join(insertsIn(c, tx), tx.Commit())
	})},
	{Name: "DB: Begin, Rollback, and writes", Want: Applied, Do: inTx(func(c *Call, db *sql.DB, tx *sql.Tx, _ func()) error {
		return errors.Join(insertsIn(c, tx), tx.Rollback(), insertsIn(c, db))
	})},
	{Name: "DB: Begin, deferred Rollback, and nil", Want: Undone, Do: inTx(func(c *Call, _ *sql.DB, tx *sql.Tx, _ func()) error {
		defer func() { _ = tx.Rollback() }()
		return insertsIn(c, tx)
	})},
	{Name: "DB: Begin, Rollback and an error", Want: Costs, Says: []string{errOfHandler.Error()}, Do: inTx(func(c *Call, _ *sql.DB, tx *sql.Tx, _ func()) error {
		return errors.Join(insertsIn(c, tx), tx.Rollback(), errOfHandler)
	})},
	{Name: "DB: Begin, and left open", Want: Costs, Places: true, Do: inTx(func(c *Call, _ *sql.DB, tx *sql.Tx, _ func()) error { return insertsIn(c, tx) })},
	{Name: "DB: Begin, left open, and deferred Close of the DB", Want: Costs, Do: inTx(func(c *Call, db *sql.DB, tx *sql.Tx, _ func()) error {
		defer func() { _ = db.Close() }()
		return insertsIn(c, tx)
	})},
	{Name: "DB: Begin, left to its context, which ends at the return", Want: Costs, Places: true, Do: inTx(func(c *Call, _ *sql.DB, tx *sql.Tx, cancel func()) error {
		defer cancel()
		return insertsIn(c, tx)
	})},
	{Name: "DB: Begin, left to its context, which ends long before", Want: Costs, Do: inTx(func(c *Call, db *sql.DB, tx *sql.Tx, cancel func()) error {
		err := insertsIn(c, tx)
		cancel()
		awaitEnd(tx)
		return errors.Join(err, c.Write())
	})},
	{Name: "DB: Begin, left to its context, which ends after the return", Want: Costs, Do: inTx(func(c *Call, _ *sql.DB, tx *sql.Tx, cancel func()) error {
		c.Go(func() { <-c.Returned; cancel(); awaitEnd(tx) })
		return insertsIn(c, tx)
	})},
	{Name: "DB: Begin, Commit, and its context ends after that", Want: Applied, Do: inTx(func(c *Call, _ *sql.DB, tx *sql.Tx, cancel func()) error {
		defer cancel()
		return errors.Join(insertsIn(c, tx), tx.Commit())
	})},
	{Name: "DB: Begin, a write of the DB, and deferred Rollback", Want: Costs, Says: shared, Places: true, Do: inTx(func(c *Call, db *sql.DB, tx *sql.Tx, _ func()) error {
		defer func() { _ = tx.Rollback() }()
		return insertsIn(c, db)
	})},
	{Name: "DB: Begin, a write of the DB, and Commit", Want: Applied, Do: inTx(func(c *Call, db *sql.DB, tx *sql.Tx, _ func()) error {
		return errors.Join(insertsIn(c, db), tx.Commit())
	})},
	{Name: "DB: Begin, a write of the message's own transaction, and deferred Rollback", Want: Costs, Says: shared, Do: inTx(func(c *Call, _ *sql.DB, tx *sql.Tx, _ func()) error {
		defer func() { _ = tx.Rollback() }()
		return c.Write()
	})},
	{Name: "DB: Begin, a query of the DB, Rollback, and writes", Want: Applied, Do: inTx(func(c *Call, db *sql.DB, tx *sql.Tx, _ func()) error {
		err := db.QueryRowContext(c.Ctx, "select count(*) from effects").Scan(new(int))
		return errors.Join(err, insertsIn(c, tx), tx.Rollback(), insertsIn(c, db))
	})},
	{Name: "DB: Begin, a write of the DB that fails, Rollback, and writes", Want: Applied, Do: inTx(func(c *Call, db *sql.DB, tx *sql.Tx, _ func()) error {
		_, _ = db.ExecContext(c.Ctx, "insert into idiom_keys values ('always there')")
		return errors.Join(tx.Rollback(), insertsIn(c, db))
	})},
	{Name: "DB: two Begins, inner Commit, outer Rollback, and nil", Want: Costs, Says: shared, Do: inTx(func(c *Call, db *sql.DB, outer *sql.Tx, _ func()) error {
		defer func() { _ = outer.Rollback() }()
		in, err := db.BeginTx(c.Ctx, nil)
		if err != nil {
			return err
		}
		return errors.Join(insertsIn(c, in), in.Commit())
	})},
	{Name: "DB: two Begins, outer Commit before the inner Rollback", Want: Costs, Says: shared, Do: inTx(func(c *Call, db *sql.DB, outer *sql.Tx, _ func()) error {
		in, err := db.BeginTx(c.Ctx, nil)
		if err != nil {
			return err
		}
		return errors.Join(insertsIn(c, outer), insertsIn(c, in), outer.Commit(), in.Rollback())
	})},
	{Name: "DB: a savepoint of its own in a Begin, a write of the DB, and back to the savepoint", Want: Costs, Says: shared, Do: inTx(func(c *Call, db *sql.DB, tx *sql.Tx, _ func()) error {
		_, err := tx.ExecContext(c.Ctx, "savepoint a")
		err = errors.Join(err, insertsIn(c, db))
		_, _ = tx.ExecContext(c.Ctx, "rollback to savepoint a")
		return errors.Join(err, tx.Commit())
	})},
	{Name: "two DBs, each with a Begin: both rolled back, and writes", Want: Applied, Do: inTx(func(c *Call, db *sql.DB, outer *sql.Tx, _ func()) error {
		other := c.DB()
		defer func() { _ = other.Close() }()
		in, err := other.BeginTx(c.Ctx, nil)
		if err != nil {
			return err
		}
		return errors.Join(insertsIn(c, outer), insertsIn(c, in), in.Rollback(), outer.Rollback(), insertsIn(c, db))
	})},
	{Name: "DB: is used after the return", Want: Applied, Do: onDB(func(c *Call, db *sql.DB) error {
		c.Go(func() {
			<-c.Returned
			ctx := context.WithoutCancel(c.Ctx)
			_, _ = db.ExecContext(ctx, c.Insert())
			if tx, err := db.BeginTx(ctx, nil); err == nil {
				_ = tx.Rollback()
			}
		})
		return insertsIn(c, db)
	})},
}

// shared is what is said of handles that share a connection.
var shared = []string{"all handles of a message have one connection"}

func onDB(do func(c *Call, db *sql.DB) error) func(c *Call) error {
	return func(c *Call) error { return do(c, c.DB()) }
}

func inTx(do func(c *Call, db *sql.DB, tx *sql.Tx, cancel func()) error) func(c *Call) error {
	return onDB(func(c *Call, db *sql.DB) error {
		ctx, cancel := context.WithCancel(c.Ctx)
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			cancel()
			return err
		}
		return do(c, db, tx, cancel)
	})
}

// awaitEnd returns when database/sql has ended tx by itself, or when tx sends nothing more.
func awaitEnd(tx *sql.Tx) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for tx.QueryRowContext(context.Background(), "select 1").Scan(new(int)) == nil {
		<-tick.C
	}
}

type execContexter interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

func insertsIn(c *Call, db execContexter) error {
	_, err := db.ExecContext(c.Ctx, c.Insert())
	return err
}

func insertsInDB(c *Call, db *sql.DB) error { return insertsIn(c, db) }
