package consumertest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
)

// SQLite returns the database of a sqlsink on SQLite.
func SQLite(db *sql.DB) Tables { return sqlite{db} }

type sqlite struct{ db *sql.DB }

// queries is what a *sql.DB and a transaction of sqlsink have.
type queries interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

func (s sqlite) Dialect() Dialect {
	return Dialect{Quote: "quote(%s)", Separator: "char(31)", Columns: `
		WITH t AS (SELECT name, rtrim(name, 'abcdefghijklmnopqrstuvwxyz') AS prefix, NOT wr AND (SELECT max(pk) = 1 FROM pragma_table_xinfo(l.name)) AS alone FROM pragma_table_list l
			WHERE schema = 'main' AND type IN ('table', 'virtual') AND (name NOT LIKE 'sqlite\_%' ESCAPE '\' OR name = 'sqlite_sequence'))
		SELECT t.name, '"' || replace(t.name, '"', '""') || '"', c.name,
			CASE WHEN c.pk = 1 AND upper(c.type) = 'INTEGER' AND t.alone THEN 'k' ELSE '' END
				|| CASE WHEN t.name = 'sqlite_sequence' OR t.name IN (t.prefix || 'fence', t.prefix || 'ledger', t.prefix || 'migration', t.prefix || 'observed')
					AND (SELECT count(*) FROM t AS o WHERE o.name IN (t.prefix || 'fence', t.prefix || 'ledger')) = 2 THEN 'o' ELSE '' END,
			coalesce(f."table" || '.' || f."to", ''), coalesce(c.dflt_value, '')
		FROM t JOIN pragma_table_xinfo(t.name) c LEFT JOIN pragma_foreign_key_list(t.name) f ON f."from" = c.name
		WHERE c.hidden = 0 GROUP BY t.name, c.cid ORDER BY t.name, c.cid`}
}

func (s sqlite) Query(ctx context.Context, tx any, text string) (all [][]string, err error) {
	through := queries(s.db)
	if tx != nil {
		var is bool
		if through, is = tx.(queries); !is {
			return nil, fmt.Errorf("consumertest.SQLite cannot read through a %T", tx)
		}
	}
	rows, err := through.QueryContext(ctx, text)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	columns, err := rows.Columns()
	for err == nil && rows.Next() {
		r, into := make([]string, len(columns)), make([]any, len(columns))
		for i := range r {
			into[i] = &r[i]
		}
		err = rows.Scan(into...)
		all = append(all, r)
	}
	return all, errors.Join(err, rows.Err())
}

// Lock locks nothing: a database of SQLite is a file, mostly of one test.
func (s sqlite) Lock(context.Context) (func(), error) { return func() {}, nil }

// Restore drops the triggers and creates them again.
func (s sqlite) Restore(ctx context.Context, texts []string) (err error) {
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	var keys int
	if err := conn.QueryRowContext(ctx, `PRAGMA foreign_keys`).Scan(&keys); err != nil {
		return err
	}
	triggers, err := sqlite{nil}.Query(ctx, conn, `SELECT 'DROP TRIGGER "' || replace(name, '"', '""') || '"', sql FROM sqlite_master WHERE type = 'trigger'`)
	if err != nil {
		return err
	}
	defer func() { // a pooled connection keeps the setting
		_, again := conn.ExecContext(context.WithoutCancel(ctx), fmt.Sprintf(`PRAGMA foreign_keys = %d`, keys))
		err = errors.Join(err, again)
	}()
	all := []string{`PRAGMA foreign_keys = OFF`, `BEGIN IMMEDIATE`}
	for _, t := range triggers {
		all = append(all, t[0])
		texts = append(texts, t[1])
	}
	for _, text := range append(append(all, texts...), `COMMIT`) {
		if _, err := conn.ExecContext(ctx, text); err != nil {
			_, _ = conn.ExecContext(context.WithoutCancel(ctx), `ROLLBACK`)
			return fmt.Errorf("%.100s: %w", text, err)
		}
	}
	return nil
}
