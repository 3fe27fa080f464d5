package httpfence_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/outbox/httpfence"
)

// A sender takes 400 for a refusal for good. What only came too slowly, or broke
// off, is none.
func TestABodyThatDoesNotArriveWholeIsNotRefusedForGood(t *testing.T) {
	srv := httptest.NewUnstartedServer(httpfence.Handler(httpfence.NewMemory(), http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		t.Error("the handler was called")
	}), quiet))
	srv.Config.ReadTimeout = 200 * time.Millisecond
	srv.Start()
	defer srv.Close()
	for name, end := range map[string]func(*net.TCPConn) error{
		"too slow":   func(*net.TCPConn) error { return nil },
		"broken off": (*net.TCPConn).CloseWrite,
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := net.Dial("tcp", srv.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			head := http.Header{}
			if err := call("a", 1, "k").SetHeaders(head); err != nil {
				t.Fatal(err)
			}
			var text bytes.Buffer
			_ = head.Write(&text)
			if _, err := fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n%s\r\nhalf", text.String()); err != nil {
				t.Fatal(err)
			}
			if err := end(conn.(*net.TCPConn)); err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(conn)
			if len(got) == 0 {
				return // no answer is a try again as well
			}
			if !bytes.HasPrefix(got, []byte("HTTP/1.1 408 ")) {
				t.Errorf("answered %q, %v", got, err)
			}
		})
	}
	body := request(t.Context(), call("a", 1, "k"), "x")
	body.Body = io.NopCloser(brokenReader{})
	h := httpfence.Handler(httpfence.NewMemory(), http.NotFoundHandler(), quiet)
	serve(t, h, body).wantProblem(http.StatusRequestTimeout, httpfence.TypeIncomplete)
}

type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// What a handler has prepared ends the transaction as what it sends does.
func TestATransactionThatEndedUnderAPreparedStatementIsNotWrittenAround(t *testing.T) {
	for status, goesOn := range map[int]bool{http.StatusInternalServerError: true, http.StatusOK: false} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			r := sqliteRig(t)
			interrupted := true
			h := httpfence.Handler(r.open(), http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				if !interrupted {
					r.apply(w, req)
					return
				}
				endless, err := httpfence.Tx(req.Context()).PrepareContext(req.Context(),
					`INSERT INTO effects (scope, key) WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n+1 FROM c) SELECT 'endless', n FROM c`)
				if err != nil {
					t.Error(err)
					return
				}
				defer func() { _ = endless.Close() }()
				ctx, cancel := context.WithTimeout(req.Context(), 2*time.Second)
				defer cancel()
				if _, err := endless.ExecContext(ctx); err == nil {
					t.Error("the endless statement ended")
				}
				if goesOn && r.write(req.Context(), effect{"a", "escaped", 1}) == nil {
					t.Error("written although the transaction is gone")
				}
				w.WriteHeader(status)
			}), quiet)
			if a := send(t, h, call("a", 5, "k"), "x"); goesOn {
				a.want(500, "", false) // nothing was written, as it says
			} else {
				a.wantProblem(500, httpfence.TypeFailed)
			}
			r.wantLog(t)
			send(t, h, call("a", 4, "k"), "x").wantProblem(412, httpfence.TypeStale)
			interrupted = false
			send(t, h, call("a", 5, "k"), "x").want(201, "done under epoch 5", false)
			r.wantLog(t, effect{"a", "k", 5})
		})
	}
}

// The connection of a handler is lost: what it wrote is undone, and its epoch counts.
func TestAHandlerWhoseConnectionIsLostIsUndoneAndItsEpochCounts(t *testing.T) {
	r := postgresRig(t)
	lost := true
	h := httpfence.Handler(r.open(), http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if !lost {
			r.apply(w, req)
			return
		}
		r.apply(httptest.NewRecorder(), req)
		var pid int
		if err := httpfence.Tx(req.Context()).QueryRowContext(req.Context(), `SELECT pg_backend_pid()`).Scan(&pid); err != nil {
			t.Error(err)
		}
		if _, err := r.db.ExecContext(req.Context(), `SELECT pg_terminate_backend($1, 5000)`, pid); err != nil {
			t.Error(err)
		}
		_, _ = fmt.Fprint(w, "all is well")
	}), quiet)
	send(t, h, call("a", 5, "k"), "x").wantProblem(500, httpfence.TypeFailed)
	r.wantLog(t)
	send(t, h, call("a", 4, "other"), "x").wantProblem(412, httpfence.TypeStale)
	lost = false
	send(t, h, call("a", 5, "k"), "x").want(201, "done under epoch 5", false)
	r.wantLog(t, effect{"a", "k", 5})
}

// wire loses the connection at the next COMMIT of an effect: before the server has it, or
// after it has answered.
type wire struct {
	net.Conn
	cut   *atomic.Int32 // 1: before, 2: after
	armed atomic.Bool
}

func (w *wire) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte("; COMMIT")) {
		switch w.cut.Swap(0) {
		case 1:
			_ = w.Close()
			return 0, net.ErrClosed
		case 2:
			w.armed.Store(true)
		}
	}
	return w.Conn.Write(p)
}

func (w *wire) Read(p []byte) (int, error) {
	n, err := w.Conn.Read(p)
	if w.armed.Load() {
		_ = w.Close()
		return 0, net.ErrClosed
	}
	return n, err
}

func TestACommitWhoseAcknowledgementIsLostIsSettledByTheSameKey(t *testing.T) {
	for name, c := range map[string]struct {
		cut      int32
		replayed bool
		epoch    epoch.Epoch // the effect's
	}{"it did not land": {1, false, 6}, "it landed": {2, true, 5}} {
		t.Run(name, func(t *testing.T) {
			r := postgresRig(t)
			var cut atomic.Int32
			h := httpfence.Handler(r.openThrough(t, &cut), http.HandlerFunc(r.apply), quiet)
			send(t, h, call("b", 1, "k"), "x").want(201, "done under epoch 1", false)
			cut.Store(c.cut)
			send(t, h, call("a", 5, "k"), "x").wantProblem(500, httpfence.TypeFailed)
			send(t, h, call("a", 6, "k"), "x").want(201, fmt.Sprintf("done under epoch %d", c.epoch), c.replayed)
			r.wantLog(t, effect{"b", "k", 1}, effect{"a", "k", c.epoch})
		})
	}
}

// openThrough is open over connections that cut can lose.
func (r *rig) openThrough(t *testing.T, cut *atomic.Int32) httpfence.Store {
	t.Helper()
	config, err := pgx.ParseConfig(r.url)
	if err != nil {
		t.Fatal(err)
	}
	config.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		return &wire{Conn: conn, cut: cut}, err
	}
	s, err := httpfence.OpenSQL(t.Context(), opened(t, stdlib.OpenDB(*config), nil), httpfence.PostgreSQL, httpfence.SQLOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestScopesAndKeysAreTakenLiterally(t *testing.T) {
	eachStore(t, func(t *testing.T, r *rig) {
		h := httpfence.Handler(r.open(), http.HandlerFunc(r.apply), quiet)
		nasty := []string{`'`, `''`, `"`, `\`, `a' OR '1'='1`, `'; DROP TABLE httpfence_scope; --`, `?`, `$1`, `%`, `_`, `a`, `A`, `a%`, `{{prefix}}`, `a: b`, `/*`, `0`, `00`, `NULL`}
		for i, s := range nasty {
			send(t, h, call(s, epoch.Epoch(10+i), s), "x").want(201, fmt.Sprintf("done under epoch %d", 10+i), false)
		}
		for i, s := range nasty {
			if p := send(t, h, call(s, epoch.Epoch(9+i), s), "x").wantProblem(412, httpfence.TypeStale); p.Highest != epoch.Epoch(10+i) || p.Scope != s {
				t.Errorf("scope %s: %+v", s, p)
			}
			send(t, h, call(s, epoch.Epoch(10+i), s), "x").want(201, fmt.Sprintf("done under epoch %d", 10+i), true)
		}
	})
}

// Others of the file hold its write lock for as long as they like.
func TestARequestWaitsForTheWriteLockOfOthersAndNoLongerThanItMay(t *testing.T) {
	r := sqliteRig(t)
	conn, err := r.db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	lock := func(statement string) {
		t.Helper()
		if _, err := conn.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	store := r.open()
	o := quiet
	o.Wait = 50 * time.Millisecond
	h := httpfence.Handler(store, http.HandlerFunc(r.apply), o)
	lock(`BEGIN IMMEDIATE`)
	send(t, h, call("a", 5, "k"), "x").wantProblem(503, httpfence.TypeBusy)
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan *answer, 1)
	go func() {
		left <- serve(t, httpfence.Handler(store, http.HandlerFunc(r.apply), quiet), request(ctx, call("a", 9, "k"), "x"))
	}()
	leave()
	(<-left).wantProblem(503, httpfence.TypeBusy)
	patient := make(chan *answer, 1)
	go func() {
		patient <- send(t, httpfence.Handler(store, http.HandlerFunc(r.apply), quiet), call("a", 5, "k"), "x")
	}()
	lock(`ROLLBACK`)
	(<-patient).want(201, "done under epoch 5", false)
	r.wantLog(t, effect{"a", "k", 5})
}

// A client that leaves while another process serves the scope has no effect.
func TestAClientThatLeavesWhileAnotherProcessServesTheScopeHasNoEffect(t *testing.T) {
	eachDatabase(t, func(t *testing.T, r *rig) {
		begun, goOn := make(chan struct{}), make(chan struct{})
		here := httpfence.Handler(r.open(), http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			close(begun)
			<-goOn
			r.apply(w, req)
		}), quiet)
		there := httpfence.Handler(r.open(), http.HandlerFunc(r.apply), quiet)
		first, left := make(chan *answer, 1), make(chan *answer, 1)
		go func() { first <- send(t, here, call("a", 5, "k"), "x") }()
		<-begun
		ctx, leave := context.WithCancel(t.Context())
		go func() { left <- serve(t, there, request(ctx, call("a", 9, "left"), "x")) }()
		if r.driver == "pgx" { // it is in line for the row, where nobody is told of it
			await(t, func() (waits bool) {
				err := r.db.QueryRowContext(t.Context(), `SELECT count(*) > 0 FROM pg_locks WHERE NOT granted`).Scan(&waits)
				return err == nil && waits
			})
		}
		leave()
		close(goOn)
		(<-first).want(201, "done under epoch 5", false)
		(<-left).wantProblem(503, httpfence.TypeBusy)
		send(t, there, call("a", 6, "next"), "x").want(201, "done under epoch 6", false)
		r.wantLog(t, effect{"a", "k", 5}, effect{"a", "next", 6})
	})
}

func TestNothingIsLeftBehindOfRequestsThatFailed(t *testing.T) {
	eachStore(t, func(t *testing.T, r *rig) {
		store := r.open()
		o := quiet
		o.Wait = 5 * time.Millisecond
		h := httpfence.Handler(store, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			c, _ := httpfence.CallOf(req.Context())
			switch c.Epoch % 3 {
			case 0:
				panic(http.ErrAbortHandler)
			case 1:
				w.WriteHeader(http.StatusInternalServerError)
			}
		}), o)
		round := func() {
			var all sync.WaitGroup
			for i := range 60 {
				all.Go(func() {
					defer func() { _ = recover() }()
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i%7)*time.Millisecond)
					defer cancel()
					h.ServeHTTP(httptest.NewRecorder(), request(ctx, call(fmt.Sprint("s", i%4), epoch.Epoch(1+i/4), fmt.Sprint("k", i)), "x"))
				})
			}
			all.Wait()
		}
		round()
		before := runtime.NumGoroutine()
		for range 10 {
			round()
		}
		await(t, func() bool { return runtime.NumGoroutine() <= before+8 })
	})
}

// Whoever has left does not get the turn that is free.
func TestARequestWhoseClientHasLeftIsNotBegun(t *testing.T) {
	eachStore(t, func(t *testing.T, r *rig) {
		h := httpfence.Handler(r.open(), http.HandlerFunc(r.apply), quiet)
		ctx, leave := context.WithCancel(t.Context())
		leave()
		for i := range 20 { // a select would choose at random
			serve(t, h, request(ctx, call("a", 5, fmt.Sprint(i)), "x")).wantProblem(503, httpfence.TypeBusy)
		}
		r.wantLog(t)
	})
}

// A process that is frozen in a handler loses its transaction, not the others
// theirs.
func TestAFrozenHandlerLosesItsScopeAfterTheIdleTimeout(t *testing.T) {
	r := postgresRig(t)
	begun, goOn := make(chan struct{}), make(chan struct{})
	impatient, err := httpfence.OpenSQL(t.Context(), r.connect(), httpfence.PostgreSQL, httpfence.SQLOptions{IdleTimeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	frozen := httpfence.Handler(impatient, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r.apply(httptest.NewRecorder(), req)
		close(begun)
		<-goOn
		w.WriteHeader(http.StatusCreated)
	}), quiet)
	first := make(chan *answer, 1)
	go func() { first <- send(t, frozen, call("a", 5, "k5"), "x") }()
	select {
	case <-begun:
	case a := <-first:
		t.Fatalf("answered %d, %q, before the handler was frozen", a.StatusCode, a.text)
	}
	o := quiet
	o.Wait = time.Minute
	send(t, httpfence.Handler(r.open(), http.HandlerFunc(r.apply), o), call("a", 6, "k6"), "x").want(201, "done under epoch 6", false)
	close(goOn)
	(<-first).wantProblem(500, httpfence.TypeFailed)
	r.wantLog(t, effect{"a", "k6", 6})
}

func TestEveryOutcomeIsTold(t *testing.T) {
	eachStore(t, func(t *testing.T, r *rig) {
		var observed []httpfence.Outcome
		o := quiet
		o.Observe = func(e httpfence.Event) {
			observed = append(observed, e.Outcome)
			if refused := e.Outcome == httpfence.Stale || e.Outcome == httpfence.KeyReused; e.Scope != "a" || (e.Err != nil) != refused {
				t.Errorf("%v of scope %q: err = %v", e.Outcome, e.Scope, e.Err)
			}
		}
		h := httpfence.Handler(r.open(), http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			switch c, _ := httpfence.CallOf(req.Context()); c.Key {
			case "panics":
				panic(http.ErrAbortHandler)
			case "fails":
				w.WriteHeader(http.StatusInternalServerError)
			}
		}), o)
		do := func(c httpfence.Call, body string) {
			defer func() { _ = recover() }()
			h.ServeHTTP(httptest.NewRecorder(), request(t.Context(), c, body))
		}
		do(call("a", 5, "k"), "x")
		do(call("a", 5, "k"), "x")
		do(call("a", 5, "panics"), "x")
		do(call("a", 5, "fails"), "x")
		do(call("a", 4, "k"), "x")
		do(call("a", 5, "k"), "y")
		want := []httpfence.Outcome{httpfence.Applied, httpfence.Replayed, httpfence.Undone, httpfence.Undone, httpfence.Stale, httpfence.KeyReused}
		if !slices.Equal(observed, want) {
			t.Errorf("told %v, want %v", observed, want)
		}
	})
}
