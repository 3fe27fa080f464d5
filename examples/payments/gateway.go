package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/epochfence/epochfence/httpfence"
	"github.com/epochfence/epochfence/internal/show"
)

type gateway struct {
	db     *sql.DB
	fenced bool
	silent int

	mu       sync.Mutex
	unheard  map[int64]bool // payments whose charge once had no answer
	failures error          // of writes to notes
}

func serveGateway(ctx context.Context, c config, stage *show.Stage) error {
	db, err := openGateway(c.Database)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	if _, err := db.ExecContext(ctx, gatewayTables); err != nil {
		return fmt.Errorf("payments: gateway: create the tables: %w", err)
	}
	g := &gateway{db: db, fenced: c.Fenced, silent: c.Silent, unheard: map[int64]bool{}}
	handler, err := g.handler(ctx)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("payments: gateway: %w", err)
	}
	s := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	stage.Ready("http://" + l.Addr().String())
	select {
	case err := <-ended:
		return fmt.Errorf("payments: gateway: %w", err)
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), gatewayGrace)
	defer cancel()
	if err := s.Shutdown(grace); err != nil {
		err = errors.Join(err, s.Close())
		return fmt.Errorf("payments: gateway: %w", err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.failures
}

// gatewayGrace is how long the gateway waits for running requests. It is longer than the clients'
// timeout.
const gatewayGrace = 10 * time.Second

// handler returns the handler for charges. If fenced, it charges each payment once, and never for a
// worker whose epoch is over.
func (g *gateway) handler(ctx context.Context) (http.Handler, error) {
	var h http.Handler = http.HandlerFunc(g.charge)
	if g.fenced {
		if err := httpfence.Migrate(ctx, g.db, httpfence.SQLite, httpfence.SQLOptions{}); err != nil {
			return nil, fmt.Errorf("payments: gateway: %w", err)
		}
		store, err := httpfence.OpenSQL(ctx, g.db, httpfence.SQLite, httpfence.SQLOptions{})
		if err != nil {
			return nil, fmt.Errorf("payments: gateway: %w", err)
		}
		h = httpfence.Handler(store, h, httpfence.Options{Observe: g.observe})
	}
	mux := http.NewServeMux()
	mux.Handle("POST "+chargesPath, g.unreliable(h))
	return mux, nil
}

// charge takes the money. Behind the fence it does so in the transaction that stores the answer.
func (g *gateway) charge(w http.ResponseWriter, r *http.Request) {
	var p Payment
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<10)).Decode(&p); err != nil || p.Cents <= 0 || p.Account == "" {
		http.Error(w, "want a payment: its number, account and cents", http.StatusBadRequest)
		return
	}
	var (
		db    execer = g.db
		epoch any    // NULL without an epoch
	)
	if c, ok := httpfence.CallOf(r.Context()); ok {
		db, epoch = httpfence.Tx(r.Context()), int64(c.Epoch)
	}
	done, err := db.ExecContext(r.Context(),
		`INSERT INTO charges (payment, account, cents, epoch) VALUES (?, ?, ?, ?)`, p.ID, p.Account, p.Cents, epoch)
	if err != nil {
		slog.Error("charge", "payment", p.ID, "err", err)
		http.Error(w, "try again", http.StatusServiceUnavailable)
		return
	}
	charge, err := done.LastInsertId()
	if err != nil {
		slog.Error("charge", "payment", p.ID, "err", err)
		http.Error(w, "try again", http.StatusServiceUnavailable)
		return
	}
	g.mayStaySilent(r.Context(), p)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(Receipt{Charge: charge, Payment: p.ID})
}

// unreliable makes the gateway time out after some charges: it has made the charge, but the client
// does not learn of it.
func (g *gateway) unreliable(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var s silence
		next.ServeHTTP(&silenced{w, &s}, r.WithContext(context.WithValue(r.Context(), silenceKey{}, &s)))
		if s.about == nil {
			return
		}
		g.note(s.about.Account, s.about.name(), 0, notAnswered)
		select {
		case <-r.Context().Done(): // the client has given up
		case <-time.After(gatewayGrace / 2):
		}
		panic(http.ErrAbortHandler)
	})
}

// silence is the payment that gets no answer, or nil.
type silence struct{ about *Payment }

type silenceKey struct{}

// mayStaySilent decides whether a payment gets no answer, at most once for each payment.
func (g *gateway) mayStaySilent(ctx context.Context, p Payment) {
	s, ok := ctx.Value(silenceKey{}).(*silence)
	if !ok || g.silent == 0 || p.ID%int64(g.silent) != int64(g.silent)/2 {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.unheard[p.ID] {
		g.unheard[p.ID] = true
		s.about = &p
	}
}

// silenced drops the answer to a payment that gets none.
type silenced struct {
	http.ResponseWriter
	silence *silence
}

func (w *silenced) WriteHeader(status int) {
	if w.silence.about == nil {
		w.ResponseWriter.WriteHeader(status)
	}
}

func (w *silenced) Write(b []byte) (int, error) {
	if w.silence.about != nil {
		return len(b), nil
	}
	return w.ResponseWriter.Write(b)
}

func (g *gateway) observe(e httpfence.Event) {
	switch e.Outcome {
	case httpfence.Stale, httpfence.Replayed:
		g.note(e.Scope, e.Key, int64(e.Epoch), e.Outcome.String())
	}
}

// notAnswered is the note for a charge without an answer, beside the fence's outcomes.
const notAnswered = "not answered"

func (g *gateway) note(account, key string, epoch int64, what string) {
	_, err := g.db.Exec(`INSERT INTO notes (account, request, epoch, what) VALUES (?, ?, ?, ?)`, account, key, epoch, what)
	if err != nil {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.failures = errors.Join(g.failures, fmt.Errorf("payments: gateway: keep a note: %w", err))
	}
}

// openGateway opens the gateway's database for one process. It uses one connection, because writers
// queue for it better than for SQLite's write lock.
func openGateway(path string) (*sql.DB, error) {
	db, err := show.OpenSQLite(path)
	if err != nil {
		return nil, fmt.Errorf("payments: gateway: %w", err)
	}
	db.SetMaxOpenConns(1)
	if _, err := db.Exec(`PRAGMA wal_autocheckpoint = 16384`); err != nil { // in pages: rarely
		return nil, errors.Join(fmt.Errorf("payments: gateway: %w", err), db.Close())
	}
	return db, nil
}

const gatewayTables = `
CREATE TABLE charges (
	charge  INTEGER PRIMARY KEY,
	payment INTEGER NOT NULL,
	account TEXT    NOT NULL,
	cents   INTEGER NOT NULL,
	epoch   INTEGER -- of who asked for it
);
CREATE TABLE notes (
	seq     INTEGER PRIMARY KEY AUTOINCREMENT,
	account TEXT    NOT NULL,
	request TEXT    NOT NULL,
	epoch   INTEGER NOT NULL,
	what    TEXT    NOT NULL
);`
