package docs

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"iter"
	"path/filepath"
	"testing"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/castest"
)

// Items is a store in a table of SQLite.
type Items struct{ db *sql.DB }

const itemTables = `
create table if not exists item (key blob primary key, value blob, note blob, version text);
create table if not exists source (name text);
insert into source select hex(randomblob(16)) where not exists (select * from source);`

var itemFacts = cas.Facts{ListsWhole: true, MaxKey: 1024, MaxValue: 1 << 20, MaxNote: 64 << 10}

// Facts: versions are random, so that a restored copy of the file repeats none.
func (s *Items) Facts(ctx context.Context) (f cas.Facts, err error) {
	f = itemFacts
	err = s.db.QueryRowContext(ctx, `select name from source`).Scan(&f.Source)
	return f, named("facts", "", err)
}

func (s *Items) Get(ctx context.Context, key string) (cas.Item, error) {
	item := cas.Item{Key: key, Live: true}
	err := itemFacts.Check(key, nil, nil)
	if err == nil {
		err = s.db.QueryRowContext(ctx, `select value, note, version from item where key = ?`, []byte(key)).Scan(&item.Value, &item.Note, &item.Version)
	}
	if errors.Is(err, sql.ErrNoRows) {
		return cas.Item{Key: key}, nil
	}
	return item, named("get", key, err)
}

func (s *Items) Swap(ctx context.Context, seen cas.Item, value, note []byte) (cas.Item, error) {
	version := rand.Text()
	err := itemFacts.Check(seen.Key, value, note)
	if err == nil && seen.Version == "" {
		err = s.writes(ctx, `insert into item values (?, ?, ?, ?) on conflict do nothing`, []byte(seen.Key), value, note, version)
	} else if err == nil {
		err = s.writes(ctx, `update item set value = ?, note = ?, version = ? where key = ? and version = ?`, value, note, version, []byte(seen.Key), seen.Version)
	}
	if err != nil {
		return cas.Item{}, named("swap", seen.Key, err)
	}
	item := cas.NewItem(seen.Key, value, note)
	item.Version = version
	return item, nil
}

func (s *Items) Delete(ctx context.Context, seen cas.Item) error {
	err := itemFacts.Check(seen.Key, nil, nil)
	if err == nil {
		err = s.writes(ctx, `delete from item where key = ? and version = ?`, []byte(seen.Key), seen.Version)
	}
	return named("delete", seen.Key, err)
}

// List reads a page at a time: a query that is open would be in the way of the caller's writes.
func (s *Items) List(ctx context.Context, prefix string) iter.Seq2[cas.Item, error] {
	return func(yield func(cas.Item, error) bool) {
		const size = 100
		for after, more := []byte{}, true; more; {
			page, err := s.page(ctx, prefix, after, size)
			if err != nil {
				yield(cas.Item{}, named("list", prefix, err))
				return
			}
			for _, item := range page {
				if after = []byte(item.Key); !yield(item, nil) {
					return
				}
			}
			more = len(page) == size
		}
	}
}

func (s *Items) page(ctx context.Context, prefix string, after []byte, size int) (page []cas.Item, err error) {
	rows, err := s.db.QueryContext(ctx, `select key, value, note, version from item where key > ? and substr(key, 1, ?) = ? order by key limit ?`,
		after, len(prefix), []byte(prefix), size)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var key []byte
		item := cas.Item{Live: true}
		if err := rows.Scan(&key, &item.Value, &item.Note, &item.Version); err != nil {
			return nil, err
		}
		item.Key = string(key)
		page = append(page, item)
	}
	return page, rows.Err()
}

// writes runs a statement that changes one row, or none if the item has changed.
func (s *Items) writes(ctx context.Context, statement string, args ...any) error {
	result, err := s.db.ExecContext(ctx, statement, args...)
	if err != nil {
		return err
	}
	if n, err := result.RowsAffected(); err != nil || n == 1 {
		return err
	}
	return cas.ErrConflict
}

func named(what, key string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("items: %s %q: %w", what, key, err)
}

func TestItems(t *testing.T) {
	castest.Run(t, func(t testing.TB) castest.Rig {
		file := filepath.Join(t.TempDir(), "items.db")
		open := func(t testing.TB) *sql.DB {
			db, err := sql.Open("sqlite", file+"?_pragma=journal_mode(wal)&_pragma=busy_timeout(10000)")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = db.Close() })
			return db
		}
		exec := func(t testing.TB, script string) {
			if _, err := open(t).ExecContext(t.Context(), script); err != nil {
				t.Fatal(err)
			}
		}
		exec(t, itemTables)
		return castest.Rig{
			Open:  func(t testing.TB, _ func(string) string) cas.Store { return &Items{open(t)} },
			Empty: func(t testing.TB) { exec(t, `drop table item; drop table source; `+itemTables) },
			Backup: func(t testing.TB) func() {
				exec(t, `create table saved as select * from item`)
				return func() { exec(t, `delete from item; insert into item select * from saved`) }
			},
		}
	})
}
