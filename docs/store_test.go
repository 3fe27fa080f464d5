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

const itemTable = `create table if not exists item (key blob primary key, value blob, note blob, version text)`

// Facts: versions are random, so that a restored copy of the file repeats none.
func (s *Items) Facts(context.Context) (cas.Facts, error) {
	return cas.Facts{Source: "the file", ListsWhole: true, MaxKey: 1024, MaxValue: 1 << 20, MaxNote: 64 << 10}, nil
}

func (s *Items) Get(ctx context.Context, key string) (cas.Item, error) {
	item := cas.Item{Key: key, Live: true}
	err := s.check(ctx, key, nil, nil)
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
	err := s.check(ctx, seen.Key, value, note)
	if err == nil && seen.Version == "" {
		err = s.writes(ctx, `insert into item values (?, ?, ?, ?) on conflict do nothing`, []byte(seen.Key), value, note, version)
	} else if err == nil {
		err = s.writes(ctx, `update item set value = ?, note = ?, version = ? where key = ? and version = ?`, value, note, version, []byte(seen.Key), seen.Version)
	}
	if err != nil {
		return cas.Item{}, named("swap", seen.Key, err)
	}
	return cas.Item{Key: seen.Key, Live: true, Value: value, Note: note, Version: version}, nil
}

func (s *Items) Delete(ctx context.Context, seen cas.Item) error {
	err := s.check(ctx, seen.Key, nil, nil)
	if err == nil {
		err = s.writes(ctx, `delete from item where key = ? and version = ?`, []byte(seen.Key), seen.Version)
	}
	return named("delete", seen.Key, err)
}

func (s *Items) List(ctx context.Context, prefix string) iter.Seq2[cas.Item, error] {
	return func(yield func(cas.Item, error) bool) {
		rows, err := s.db.QueryContext(ctx, `select key, value, note, version from item where substr(key, 1, ?) = ?`, len(prefix), []byte(prefix))
		if err != nil {
			yield(cas.Item{}, named("list", prefix, err))
			return
		}
		defer func() { _ = rows.Close() }()
		for rows.Next() {
			var key []byte
			item := cas.Item{Live: true}
			err := rows.Scan(&key, &item.Value, &item.Note, &item.Version)
			item.Key = string(key)
			if !yield(item, named("list", prefix, err)) || err != nil {
				return
			}
		}
		if err := rows.Err(); err != nil {
			yield(cas.Item{}, named("list", prefix, err))
		}
	}
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

// check refuses what the store cannot have, before anything is sent.
func (s *Items) check(ctx context.Context, key string, value, note []byte) error {
	facts, err := s.Facts(ctx)
	if err != nil {
		return err
	}
	return facts.Check(key, value, note)
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
		return castest.Rig{Open: func(t testing.TB, _ func(string) string) cas.Store {
			db, err := sql.Open("sqlite", file+"?_pragma=journal_mode(wal)&_pragma=busy_timeout(10000)")
			if err == nil {
				_, err = db.ExecContext(t.Context(), itemTable)
			}
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = db.Close() })
			return &Items{db}
		}}
	})
}
