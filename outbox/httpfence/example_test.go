package httpfence_test

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/outbox/httpfence"
)

// charge is a handler that is called once for each charge, by nobody who has
// been superseded. What it writes commits with its answer.
func charge(w http.ResponseWriter, r *http.Request) {
	amount, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	c, _ := httpfence.CallOf(r.Context())
	_, err = httpfence.Tx(r.Context()).ExecContext(r.Context(),
		`INSERT INTO charges (account, amount) VALUES (?, ?)`, c.Scope, string(amount))
	if err != nil {
		http.Error(w, "try again", http.StatusServiceUnavailable)
		return
	}
	w.WriteHeader(http.StatusCreated)
	_, _ = fmt.Fprintf(w, "charged %s to %s", amount, c.Scope)
}

// A server with the middleware, and what it answers to an owner, to a repetition
// and to a zombie.
func Example() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "httpfence")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	db, err := sql.Open("sqlite", "file:"+filepath.Join(dir, "gateway.db")+"?_pragma=journal_mode(WAL)")
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	if _, err := db.ExecContext(ctx, `CREATE TABLE charges (account TEXT, amount TEXT)`); err != nil {
		log.Fatal(err)
	}
	if err := httpfence.Migrate(ctx, db, httpfence.SQLite, httpfence.SQLOptions{}); err != nil {
		log.Fatal(err)
	}
	store, err := httpfence.OpenSQL(ctx, db, httpfence.SQLite, httpfence.SQLOptions{})
	if err != nil {
		log.Fatal(err)
	}

	mux := http.NewServeMux()
	mux.Handle("POST /charges", httpfence.Handler(store, http.HandlerFunc(charge), httpfence.Options{}))
	srv := httptest.NewServer(mux)
	defer srv.Close()

	// Package outbox sends such requests. By hand:
	post := func(e epoch.Epoch, key, amount string) {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, srv.URL+"/charges", strings.NewReader(amount))
		if err != nil {
			log.Fatal(err)
		}
		if err := (httpfence.Call{Scope: "account/17", Epoch: e, Key: key}).SetHeaders(req.Header); err != nil {
			log.Fatal(err)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			log.Fatal(err)
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		if err != nil {
			log.Fatal(err)
		}
		if p, ok := httpfence.ReadProblem(res.Header, body); ok {
			fmt.Printf("%d %s: %d is below %d\n", res.StatusCode, p.Title, p.Epoch, p.Highest)
			return
		}
		fmt.Printf("%d %s, replayed: %t\n", res.StatusCode, body, res.Header.Get(httpfence.ReplayedHeader) == "true")
	}
	post(7, "charge-1", "12.50")
	post(8, "charge-1", "12.50") // the next owner, who does not know whether the first one's request arrived
	post(8, "charge-2", "3.00")
	post(7, "charge-3", "99.00") // the first one, waking up
	// Output:
	// 201 charged 12.50 to account/17, replayed: false
	// 201 charged 12.50 to account/17, replayed: true
	// 201 charged 3.00 to account/17, replayed: false
	// 412 Stale epoch: 7 is below 8
}
