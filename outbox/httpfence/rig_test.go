package httpfence_test

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/servers/pgtest"
	"github.com/epochfence/epochfence/outbox/httpfence"
)

// effect is one line of the log that a handler writes inside its effect.
type effect struct {
	Scope, Key string
	Epoch      epoch.Epoch
}

// rig is a store, and a log beside it that handlers write their effects to.
type rig struct {
	// open gives one more process's store of the same data.
	open func() httpfence.Store

	// write is what a handler does; log is what it has done, in commit order.
	write func(ctx context.Context, e effect) error
	log   func() []effect

	// undoes: what a failed handler wrote is gone. forgets: so is everything when
	// the process ends.
	undoes, forgets bool

	db *sql.DB // nil in memory

	// hidden runs a text in the transaction, within another one that hides it from
	// whoever reads it.
	hidden func(ctx context.Context, text string) error

	driver, url string // for other processes
	connect     func() *sql.DB
}

// eachStore runs the test with each kind of store.
func eachStore(t *testing.T, test func(t *testing.T, r *rig)) {
	for _, kind := range []struct {
		name string
		rig  func(t *testing.T) *rig
	}{
		{"memory", memoryRig},
		{"SQLite", sqliteRig},
		{"PostgreSQL", postgresRig},
	} {
		t.Run(kind.name, func(t *testing.T) { test(t, kind.rig(t)) })
	}
}

// eachDatabase leaves the one in memory out.
func eachDatabase(t *testing.T, test func(t *testing.T, r *rig)) {
	t.Run("SQLite", func(t *testing.T) { test(t, sqliteRig(t)) })
	t.Run("PostgreSQL", func(t *testing.T) { test(t, postgresRig(t)) })
}

func memoryRig(*testing.T) *rig {
	store := httpfence.NewMemory()
	var mu sync.Mutex
	var done []effect
	return &rig{
		open: func() httpfence.Store { return store },
		write: func(_ context.Context, e effect) error {
			mu.Lock()
			defer mu.Unlock()
			done = append(done, e)
			return nil
		},
		log: func() []effect {
			mu.Lock()
			defer mu.Unlock()
			return append([]effect(nil), done...)
		},
		forgets: true,
	}
}

func sqliteRig(t *testing.T) *rig {
	t.Helper()
	source := "file:" + filepath.Join(t.TempDir(), "receiver.db") + "?_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)"
	connect := func() *sql.DB {
		db, err := sql.Open("sqlite", source)
		return opened(t, db, err)
	}
	r := databaseRig(t, httpfence.SQLite, connect,
		`CREATE TABLE effects (n INTEGER PRIMARY KEY AUTOINCREMENT, scope TEXT, key TEXT, epoch INTEGER, UNIQUE (scope, key))`,
		`INSERT INTO effects (scope, key, epoch) VALUES (?, ?, ?)`)
	r.driver, r.url = "sqlite", source
	r.hidden = func(ctx context.Context, text string) error { // behind a parameter named $x(')
		_, err := httpfence.Tx(ctx).ExecContext(ctx, `SELECT $x('); `+text+`; --'`, sql.Named("x(')", 1))
		return err
	}
	return r
}

func postgresRig(t *testing.T) *rig {
	t.Helper()
	return postgresRigAt(t, pgtest.Start(t).URL)
}

func postgresRigAt(t *testing.T, url string) *rig {
	t.Helper()
	connect := func() *sql.DB {
		db, err := sql.Open("pgx", url)
		db = opened(t, db, err)
		db.SetMaxOpenConns(8)
		return db
	}
	r := databaseRig(t, httpfence.PostgreSQL, connect,
		`CREATE TABLE effects (n bigint GENERATED ALWAYS AS IDENTITY, scope text, key text, epoch bigint, UNIQUE (scope, key))`,
		`INSERT INTO effects (scope, key, epoch) VALUES ($1, $2, $3)`)
	r.driver, r.url = "pgx", url
	r.hidden = func(ctx context.Context, text string) error { // behind a quote that a setting makes one
		_, err := httpfence.Tx(ctx).ExecContext(ctx, `SET standard_conforming_strings = off`)
		if err == nil {
			_, err = httpfence.Tx(ctx).ExecContext(ctx, `SELECT '\''; `+text+`; --'`)
		}
		return err
	}
	return r
}

func opened(t *testing.T, db *sql.DB, err error) *sql.DB {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func databaseRig(t *testing.T, d httpfence.Dialect, connect func() *sql.DB, table, insert string) *rig {
	t.Helper()
	db := connect()
	if _, err := db.ExecContext(t.Context(), table); err != nil {
		t.Fatal(err)
	}
	if err := httpfence.Migrate(t.Context(), db, d, httpfence.SQLOptions{}); err != nil {
		t.Fatal(err)
	}
	return &rig{
		open: func() httpfence.Store {
			t.Helper()
			s, err := httpfence.OpenSQL(t.Context(), connect(), d, httpfence.SQLOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return s
		},
		write: func(ctx context.Context, e effect) error {
			_, err := httpfence.Tx(ctx).ExecContext(ctx, insert, e.Scope, e.Key, int64(e.Epoch))
			return err
		},
		log: func() []effect {
			t.Helper()
			rows, err := db.QueryContext(t.Context(), `SELECT scope, key, epoch FROM effects ORDER BY n`)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = rows.Close() }()
			var done []effect
			for rows.Next() {
				var e effect
				if err := rows.Scan(&e.Scope, &e.Key, &e.Epoch); err != nil {
					t.Fatal(err)
				}
				done = append(done, e)
			}
			if err := rows.Err(); err != nil {
				t.Fatal(err)
			}
			return done
		},
		undoes:  true,
		db:      db,
		connect: connect,
	}
}

// apply is the handler of most tests: it writes its effect and answers.
func (r *rig) apply(w http.ResponseWriter, req *http.Request) {
	c, _ := httpfence.CallOf(req.Context())
	if err := r.write(req.Context(), effect{c.Scope, c.Key, c.Epoch}); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/plain")
	w.WriteHeader(http.StatusCreated)
	_, _ = fmt.Fprintf(w, "done under epoch %d", c.Epoch)
}

func (r *rig) wantLog(t *testing.T, want ...effect) {
	t.Helper()
	if got := r.log(); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("the log of effects\n%v, want\n%v", got, want)
	}
}

var quiet = httpfence.Options{Logger: slog.New(slog.DiscardHandler), Wait: time.Minute}

func request(ctx context.Context, c httpfence.Call, body string) *http.Request {
	req := httptest.NewRequestWithContext(ctx, http.MethodPost, "/charges", bytes.NewReader([]byte(body)))
	if err := c.SetHeaders(req.Header); err != nil {
		panic(err)
	}
	return req
}

// send serves one request and returns the answer.
func send(t testing.TB, h http.Handler, c httpfence.Call, body string) *answer {
	t.Helper()
	return serve(t, h, request(t.Context(), c, body))
}

func serve(t testing.TB, h http.Handler, req *http.Request) *answer {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, req)
	res := w.Result()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return &answer{t, res, string(text)}
}

type answer struct {
	testing.TB
	*http.Response
	text string
}

func (a *answer) want(status int, text string, replayed bool) {
	a.Helper()
	if a.StatusCode != status || a.text != text || (a.Header.Get(httpfence.ReplayedHeader) == "true") != replayed {
		a.Errorf("answer %d %q, replayed %q; want %d %q, %v", a.StatusCode, a.text, a.Header.Get(httpfence.ReplayedHeader), status, text, replayed)
	}
}

func (a *answer) wantProblem(status int, kind string) httpfence.Problem {
	a.Helper()
	p, ok := httpfence.ReadProblem(a.Header, []byte(a.text))
	if !ok || a.StatusCode != status || p.Status != status || p.Type != kind {
		a.Errorf("answer %d %s; want a problem %d %s", a.StatusCode, a.text, status, kind)
	}
	return p
}
