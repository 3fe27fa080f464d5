package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/epochfence/epochfence/internal/show"
	"github.com/epochfence/epochfence/outbox/httpfence"
)

// gatewayGrace is longer than the clients' timeout.
const gatewayGrace = 10 * time.Second

// gateway returns the handler for charges. If fenced, it charges each payment once, and never for a
// worker whose epoch is over.
func gateway(ctx context.Context, db *show.Database, fenced bool, silent int) (http.Handler, error) {
	db.SetMaxOpenConns(1) // writers queue for it better than for SQLite's write lock
	if _, err := db.ExecContext(ctx, gatewayTables); err != nil {
		return nil, fmt.Errorf("create the tables: %w", err)
	}
	var h http.Handler = charging{db}
	if fenced {
		if err := httpfence.Migrate(ctx, db.DB, httpfence.SQLite, httpfence.SQLOptions{}); err != nil {
			return nil, err
		}
		store, err := httpfence.OpenSQL(ctx, db.DB, httpfence.SQLite, httpfence.SQLOptions{})
		if err != nil {
			return nil, err
		}
		h = httpfence.Handler(store, h, httpfence.Options{Logger: slog.New(slog.DiscardHandler)}) // the workers retry
	}
	mux := http.NewServeMux()
	mux.Handle("POST "+chargesPath, unreliable(h, silent))
	return mux, nil
}

type charging struct{ db *show.Database }

// ServeHTTP takes the money. Behind the fence it does so in the transaction that stores the answer.
func (g charging) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var p Payment
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<10)).Decode(&p); err != nil || p.Cents <= 0 || p.Account == "" {
		http.Error(w, "want a payment: its number, account and cents", http.StatusBadRequest)
		return
	}
	var (
		db    httpfence.DBTX = g.db
		epoch any            // NULL without an epoch
	)
	if c, ok := httpfence.CallOf(r.Context()); ok {
		db, epoch = httpfence.Tx(r.Context()), int64(c.Epoch)
	}
	done, err := db.ExecContext(r.Context(),
		`INSERT INTO charges (payment, account, cents, epoch) VALUES (?, ?, ?, ?)`, p.ID, p.Account, p.Cents, epoch)
	var number int64
	if err == nil {
		number, err = done.LastInsertId()
	}
	if err != nil {
		http.Error(w, "try again", http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(Receipt{Charge: number, Payment: p.ID})
}

// unreliable makes one of so many requests time out: the gateway has made the charge, but the client
// does not learn of it.
func unreliable(next http.Handler, silent int) http.Handler {
	var requests atomic.Int64
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if silent > 0 && requests.Add(1)%int64(silent) == 0 {
			w = unheard{w, r.Context()}
		}
		next.ServeHTTP(w, r)
	})
}

// unheard drops the answer that a charge was made. By then the charge is committed: behind the fence, too,
// the answer is written after that. A refusal is heard.
type unheard struct {
	http.ResponseWriter
	request context.Context // ends when the client has given up
}

func (w unheard) WriteHeader(status int) {
	if status == http.StatusCreated {
		select {
		case <-w.request.Done():
		case <-time.After(gatewayGrace / 2):
		}
		panic(http.ErrAbortHandler)
	}
	w.ResponseWriter.WriteHeader(status)
}

const gatewayTables = `
CREATE TABLE charges (
	charge  INTEGER PRIMARY KEY,
	payment INTEGER NOT NULL,
	account TEXT    NOT NULL,
	cents   INTEGER NOT NULL,
	epoch   INTEGER -- of who asked for it
);`
