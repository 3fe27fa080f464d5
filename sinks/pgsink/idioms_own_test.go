package pgsink_test

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/epochfence/epochfence/sinks/pgsink"
	"github.com/epochfence/epochfence/sinks/sinktest"
)

// ofTx are the idioms of a Tx.
var ofTx = []sinktest.Idiom{
	// Values and callbacks of pgx.
	own("CopyFrom", sinktest.Applied, func(c *sinktest.Call, tx pgsink.Tx) error { return copies(c, tx, [][]any{{"x", "y"}}) }),
	own("CopyFrom with a value whose MarshalJSON panics", sinktest.Costs, func(c *sinktest.Call, tx pgsink.Tx) error {
		_, err := tx.CopyFrom(c.Ctx, pgx.Identifier{"idiom_documents"}, []string{"document"}, pgx.CopyFromRows([][]any{{panickingJSON{}}}))
		return errors.Join(err, c.Write())
	}),
	onWire(own("CopyFrom with a value whose TextValue panics", sinktest.Costs, func(c *sinktest.Call, tx pgsink.Tx) error {
		return copies(c, tx, [][]any{{"x", panickingText{}}})
	})),
	own("CopyFrom with a value whose Value panics", sinktest.Costs, func(c *sinktest.Call, tx pgsink.Tx) error {
		return copies(c, tx, [][]any{{"x", panickingValue{}}})
	}),
	own("CopyFrom from rows that panic", sinktest.Costs, func(c *sinktest.Call, tx pgsink.Tx) error {
		_, err := tx.CopyFrom(c.Ctx, pgx.Identifier{"effects"}, []string{"list", "value"}, pgx.CopyFromFunc(func() ([]any, error) { panic("in the rows") }))
		return errors.Join(c.Write(), err)
	}),
	onWire(own("an argument whose TextValue panics", sinktest.Costs, func(c *sinktest.Call, tx pgsink.Tx) error {
		_, err := tx.Exec(c.Ctx, "insert into effects (list, value) values ('x', $1::text)", panickingText{})
		return err
	})),
	own("a QueryRewriter", sinktest.Applied, func(c *sinktest.Call, tx pgsink.Tx) error {
		return rewrites(c, tx, c.Insert())
	}),
	onWire(own("a QueryRewriter that makes it a SET", sinktest.Alone, func(c *sinktest.Call, tx pgsink.Tx) error {
		return errors.Join(c.Write(), rewrites(c, tx, "set search_path = pg_catalog"))
	})),
	own("a QueryRewriter that makes it a COMMIT", sinktest.Costs, func(c *sinktest.Call, tx pgsink.Tx) error {
		return errors.Join(c.Write(), rewrites(c, tx, "commit"))
	}),
	own("a QueryRewriter that panics", sinktest.Costs, func(c *sinktest.Call, tx pgsink.Tx) error {
		_, err := tx.Exec(c.Ctx, "select", rewrite(func(*pgx.Conn) string { panic("in the rewrite") }))
		return err
	}),
	own("a QueryRewriter that sends COMMIT on the connection", sinktest.Applied, func(c *sinktest.Call, tx pgsink.Tx) error {
		_, err := tx.Exec(c.Ctx, "", rewrite(func(conn *pgx.Conn) string {
			if conn != nil {
				_, _ = conn.Exec(c.Ctx, "commit")
			}
			return c.Insert()
		}))
		return err
	}),
	own("a batch", sinktest.Applied, func(c *sinktest.Call, tx pgsink.Tx) error {
		return tx.SendBatch(c.Ctx, queued(c.Insert(), "select 1")).Close()
	}),
	onWire(own("a batch with COMMIT", sinktest.Costs, func(c *sinktest.Call, tx pgsink.Tx) error {
		return tx.SendBatch(c.Ctx, queued(c.Insert(), "commit")).Close()
	})),
	onWire(own("a batch with SET, and hides the error", sinktest.Alone, func(c *sinktest.Call, tx pgsink.Tx) error {
		_ = tx.SendBatch(c.Ctx, queued(c.Insert(), "set search_path = pg_catalog")).Close()
		return nil
	})),
	onWire(own("a batch that is left open", sinktest.Costs, func(c *sinktest.Call, tx pgsink.Tx) error {
		tx.SendBatch(c.Ctx, queued(c.Insert(), "select 1"))
		return nil
	})),
	own("a callback of a batch that panics", sinktest.Costs, func(c *sinktest.Call, tx pgsink.Tx) error {
		b := &pgx.Batch{}
		b.Queue(c.Insert()).Exec(func(pgconn.CommandTag) error { panic("in the callback") })
		return tx.SendBatch(c.Ctx, b).Close()
	}),
	own("a callback of a batch that sends COMMIT on the connection", sinktest.Applied, func(c *sinktest.Call, tx pgsink.Tx) error {
		b := &pgx.Batch{}
		b.Queue("select 1").Query(func(rows pgx.Rows) error {
			rows.Close()
			if conn := rows.Conn(); conn != nil {
				_, _ = conn.Exec(c.Ctx, "commit")
			}
			return nil
		})
		return errors.Join(tx.SendBatch(c.Ctx, b).Close(), c.Write())
	}),
	own("a row that is never scanned", sinktest.Costs, func(c *sinktest.Call, tx pgsink.Tx) error {
		tx.QueryRow(c.Ctx, "select 1")
		return nil
	}),
	own("a row that is scanned", sinktest.Applied, func(c *sinktest.Call, tx pgsink.Tx) error {
		return errors.Join(tx.QueryRow(c.Ctx, "select 1").Scan(new(int)), c.Write())
	}),
	own("a row that is scanned into what panics", sinktest.Costs, func(c *sinktest.Call, tx pgsink.Tx) error {
		return errors.Join(c.Write(), tx.QueryRow(c.Ctx, "select 'x'::text").Scan(panickingScan{}))
	}),
	own("a COMMIT in another query mode", sinktest.Costs, func(c *sinktest.Call, tx pgsink.Tx) error {
		_, err := tx.Exec(c.Ctx, "select 1; commit", pgx.QueryExecModeSimpleProtocol)
		return errors.Join(c.Write(), err)
	}),

	// Its code is called while the connection is in use.
	says("conn busy", own("CopyFrom from rows of the same transaction", sinktest.Costs, func(c *sinktest.Call, tx pgsink.Tx) error {
		err := copies(c, tx, [][]any{{"x", "y"}}) // which makes the types of the columns known
		rows, failed := tx.Query(c.Ctx, "select list, value from effects")
		if failed != nil {
			return failed
		}
		defer rows.Close()
		_, busy := tx.CopyFrom(c.Ctx, pgx.Identifier{"effects"}, []string{"list", "value"}, rows)
		return errors.Join(err, busy)
	})),
	says("conn busy", own("CopyFrom from rows that query the same transaction", sinktest.Costs, func(c *sinktest.Call, tx pgsink.Tx) error {
		_, err := tx.CopyFrom(c.Ctx, pgx.Identifier{"effects"}, []string{"list", "value"}, pgx.CopyFromFunc(func() ([]any, error) {
			var value string
			err := tx.QueryRow(c.Ctx, "select 'y'").Scan(&value)
			return []any{"x", value}, err
		}))
		return errors.Join(err, c.Write())
	})),
	own("a row that is scanned into what closes rows of the same transaction", sinktest.Applied, func(c *sinktest.Call, tx pgsink.Tx) error {
		rows, err := tx.Query(c.Ctx, "select 1")
		if err != nil {
			return err
		}
		rows.Close()
		err = tx.QueryRow(c.Ctx, "select 'x'::text").Scan(scan(func() error { rows.Close(); rows.Next(); return nil }))
		return errors.Join(err, c.Write())
	}),
	says("conn busy", onWire(own("an argument whose Value reads a row of the same transaction", sinktest.Costs, func(c *sinktest.Call, tx pgsink.Tx) error {
		row := tx.QueryRow(c.Ctx, "select 'x'::text")
		_ = row.Scan(new(string))
		_, err := tx.Exec(c.Ctx, "insert into effects (list, value) values ('x', $1::text)", argument(func() error { return row.Scan(new(string)) }))
		return errors.Join(err, c.Write())
	}))),

	// The connection is closed by the message itself.
	own("a context of its own that ends in the middle of a CopyFrom, and hides the error", sinktest.Costs, func(c *sinktest.Call, tx pgsink.Tx) error {
		_ = c.Write()
		ctx, cancel := context.WithCancel(c.Ctx)
		defer cancel()
		rows := 0
		_, _ = tx.CopyFrom(ctx, pgx.Identifier{"effects"}, []string{"list", "value"}, pgx.CopyFromFunc(func() ([]any, error) {
			if rows++; rows > 4 { // more than is kept before it is sent: the COPY is under way
				cancel()
			}
			return []any{"x", strings.Repeat("y", 1<<16)}, ctx.Err()
		}))
		return nil
	}),
}

// ofHandles are those of a pgx.Tx.
var ofHandles = []sinktest.Idiom{
	own("BeginFunc", sinktest.Applied, func(c *sinktest.Call, tx pgsink.Tx) error {
		return pgx.BeginFunc(c.Ctx, pgsink.AsPgxTx(tx), func(in pgx.Tx) error { return inserts(c, in) })
	}),
	own("BeginFunc that returns an error, which is handled", sinktest.Applied, func(c *sinktest.Call, tx pgsink.Tx) error {
		own := errors.New("no")
		err := pgx.BeginFunc(c.Ctx, pgsink.AsPgxTx(tx), func(in pgx.Tx) error { return errors.Join(inserts(c, in), own) })
		if !errors.Is(err, own) {
			return fmt.Errorf("BeginFunc: %w", err)
		}
		return c.Write()
	}),
	own("BeginFunc whose context ends between two statements, and hides the error", sinktest.Costs, func(c *sinktest.Call, tx pgsink.Tx) error {
		ctx, cancel := context.WithCancel(c.Ctx)
		_ = pgx.BeginFunc(ctx, pgsink.AsPgxTx(tx), func(in pgx.Tx) error {
			err := inserts(c, in)
			cancel()
			return errors.Join(err, errors.New("no"))
		})
		return nil
	}),
	own("BeginFunc in which it panics, which is recovered", sinktest.Applied, func(c *sinktest.Call, tx pgsink.Tx) error {
		func() {
			defer func() { _ = recover() }()
			_ = pgx.BeginFunc(c.Ctx, pgsink.AsPgxTx(tx), func(in pgx.Tx) error { _ = inserts(c, in); panic("no") })
		}()
		return c.Write()
	}),
	own("a handle within a Tx of OpenDB: both rolled back, and writes", sinktest.Applied, func(c *sinktest.Call, tx pgsink.Tx) error {
		db := pgsink.OpenDB(tx)
		defer func() { _ = db.Close() }()
		outer, err := db.BeginTx(c.Ctx, nil)
		if err != nil {
			return err
		}
		_, err = outer.ExecContext(c.Ctx, c.Insert())
		in, err2 := pgsink.AsPgxTx(tx).Begin(c.Ctx)
		if err2 != nil {
			return err2
		}
		return errors.Join(err, inserts(c, in), in.Rollback(c.Ctx), outer.Rollback(), c.Write())
	}),
	own("Conn, Prepare and LargeObjects of a handle", sinktest.Costs, func(c *sinktest.Call, tx pgsink.Tx) error {
		h := pgsink.AsPgxTx(tx)
		if h.Conn() != nil {
			_, _ = h.Conn().Exec(c.Ctx, "commit")
		}
		_, _ = h.Prepare(c.Ctx, "mine", "select 1")
		h.LargeObjects()
		return nil
	}),
}

// onWire says that it matters to i how pgx sends a statement.
func onWire(i sinktest.Idiom) sinktest.Idiom { i.Wire = true; return i }

func own(name string, want sinktest.Outcome, do func(c *sinktest.Call, tx pgsink.Tx) error) sinktest.Idiom {
	return sinktest.Idiom{Name: name, Want: want, Do: func(c *sinktest.Call) error { return do(c, c.TX.(pgsink.Tx)) }}
}

func says(what string, i sinktest.Idiom) sinktest.Idiom { i.Says = []string{what}; return i }

func inserts(c *sinktest.Call, tx execer) error {
	_, err := tx.Exec(c.Ctx, c.Insert())
	return err
}

func queued(texts ...string) *pgx.Batch {
	b := &pgx.Batch{}
	for _, text := range texts {
		b.Queue(text)
	}
	return b
}

func copies(c *sinktest.Call, tx pgsink.Tx, rows [][]any) error {
	_, err := tx.CopyFrom(c.Ctx, pgx.Identifier{"effects"}, []string{"list", "value"}, pgx.CopyFromRows(rows))
	return errors.Join(err, c.Write())
}

// rewrite is a QueryRewriter.
type rewrite func(conn *pgx.Conn) string

func (r rewrite) RewriteQuery(_ context.Context, conn *pgx.Conn, _ string, _ []any) (string, []any, error) {
	return r(conn), nil, nil
}

func rewrites(c *sinktest.Call, tx execer, into string) error {
	_, err := tx.Exec(c.Ctx, "select 1", rewrite(func(*pgx.Conn) string { return into }))
	return err
}

type panickingJSON struct{}

func (panickingJSON) MarshalJSON() ([]byte, error) { panic("in MarshalJSON") }

type panickingText struct{}

func (panickingText) TextValue() (pgtype.Text, error) { panic("in TextValue") }

type panickingValue struct{}

func (panickingValue) Value() (driver.Value, error) { panic("in Value") }

type panickingScan struct{}

func (panickingScan) Scan(any) error { panic("in Scan") }

type scan func() error

func (s scan) Scan(any) error { return s() }

type argument func() error

func (a argument) Value() (driver.Value, error) { return "y", a() }
