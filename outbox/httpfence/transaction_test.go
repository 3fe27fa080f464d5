package httpfence_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/outbox/httpfence"
)

func TestAHandlerThatFailsIsUndoneItsAnswerNotKeptAndItsEpochCounts(t *testing.T) {
	for name, fail := range map[string]func(http.ResponseWriter){
		"500":      func(w http.ResponseWriter) { w.WriteHeader(500) },
		"429":      func(w http.ResponseWriter) { w.WriteHeader(429) },
		"too long": func(w http.ResponseWriter) { _, _ = w.Write(make([]byte, 2<<20)) },
		"panic":    func(http.ResponseWriter) { panic("oh") },
		"goexit":   func(http.ResponseWriter) { panic(http.ErrAbortHandler) },
	} {
		t.Run(name, func(t *testing.T) {
			eachStore(t, func(t *testing.T, r *rig) {
				failing := true
				h := httpfence.Handler(r.open(), http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
					if !failing {
						r.apply(w, req)
						return
					}
					if r.undoes {
						r.apply(httptest.NewRecorder(), req)
					}
					fail(w)
				}), quiet)
				func() {
					defer func() {
						if v := recover(); (v != nil) != (name == "panic" || name == "goexit") {
							t.Errorf("recovered %v", v)
						}
					}()
					if got := send(t, h, call("a", 9, "k"), "x"); !httpfence.Retryable(got.StatusCode) {
						t.Errorf("answer %d", got.StatusCode)
					}
				}()
				r.wantLog(t)
				send(t, h, call("a", 8, "k"), "x").wantProblem(412, httpfence.TypeStale)
				failing = false
				send(t, h, call("a", 9, "k"), "x").want(201, "done under epoch 9", false)
				r.wantLog(t, effect{"a", "k", 9})
			})
		})
	}
}

func TestAHandlerThatOverrunsItsTimeIsUndone(t *testing.T) {
	overruns(t, func(_ *testing.T, r *rig, req *http.Request) {
		r.apply(httptest.NewRecorder(), req)
		<-req.Context().Done()
	})
}

// A handler that has to give up because a statement takes too long says so, and is
// believed: what it wrote is gone.
func TestAHandlerWhoseStatementOverrunsItsTimeIsUndone(t *testing.T) {
	overruns(t, func(t *testing.T, r *rig, req *http.Request) {
		if _, err := httpfence.Tx(req.Context()).ExecContext(req.Context(), endless(t, r)); err == nil {
			t.Error("the endless statement ended")
		}
	})
}

func overruns(t *testing.T, slow func(*testing.T, *rig, *http.Request)) {
	eachDatabase(t, func(t *testing.T, r *rig) {
		o := quiet
		o.HandlerTimeout = 50 * time.Millisecond
		s := r.open()
		hurried := httpfence.Handler(s, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			slow(t, r, req)
			c, _ := httpfence.CallOf(req.Context())
			if err := r.write(req.Context(), effect{c.Scope, "more", c.Epoch}); err == nil {
				t.Error("written after the deadline")
			}
			http.Error(w, "too late", http.StatusServiceUnavailable)
		}), o)
		send(t, hurried, call("a", 5, "k"), "x").want(503, "too late\n", false)
		r.wantLog(t)
		h := httpfence.Handler(s, http.HandlerFunc(r.apply), quiet)
		send(t, h, call("a", 4, "k"), "x").wantProblem(412, httpfence.TypeStale)
		send(t, h, call("a", 5, "k"), "x").want(201, "done under epoch 5", false)
		r.wantLog(t, effect{"a", "k", 5})
	})
}

// endless is a statement that does not end by itself.
func endless(t *testing.T, r *rig) string {
	if _, err := r.db.ExecContext(t.Context(), `SELECT sqlite_version()`); err == nil {
		return `INSERT INTO effects (scope, key) WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n+1 FROM c) SELECT 'endless', n FROM c`
	}
	return `SELECT pg_sleep(60)`
}

func TestAHandlerWhoseStatementIsInterruptedCanWriteNothingMore(t *testing.T) {
	eachDatabase(t, func(t *testing.T, r *rig) {
		interrupted, forever := true, endless(t, r)
		h := httpfence.Handler(r.open(), http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if interrupted {
				ctx, cancel := context.WithTimeout(req.Context(), 2*time.Second)
				defer cancel()
				if _, err := httpfence.Tx(ctx).ExecContext(ctx, forever); err == nil {
					t.Error("the endless statement ended")
				}
				if err := r.write(req.Context(), effect{"a", "escaped", 1}); err == nil {
					t.Error("written although the transaction is gone")
				}
				w.WriteHeader(200) // as if all was well
				return
			}
			r.apply(w, req)
		}), quiet)
		send(t, h, call("a", 5, "k"), "x").wantProblem(500, httpfence.TypeFailed)
		r.wantLog(t)
		send(t, h, call("a", 4, "k"), "x").wantProblem(412, httpfence.TypeStale)
		interrupted = false
		send(t, h, call("a", 5, "k"), "x").want(201, "done under epoch 5", false)
	})
}

// A COMMIT or ROLLBACK of the handler's own is not sent: what it wrote is undone.
func TestAHandlerThatEndsTheTransactionByItselfHasFailedAndItsAnswerIsNotKept(t *testing.T) {
	for _, text := range []string{`COMMIT`, `ROLLBACK`, `COMMIT; BEGIN`, `/* all is well */ END`} {
		for _, status := range []int{http.StatusCreated, http.StatusInternalServerError} {
			eachDatabase(t, func(t *testing.T, r *rig) {
				var outcomes []httpfence.Outcome
				o := quiet
				o.Observe = func(e httpfence.Event) { outcomes = append(outcomes, e.Outcome) }
				clumsy := true
				h := httpfence.Handler(r.open(), http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
					if !clumsy {
						r.apply(w, req)
						return
					}
					r.apply(httptest.NewRecorder(), req)
					if _, err := httpfence.Tx(req.Context()).ExecContext(req.Context(), text); !errors.Is(err, epoch.ErrTxControl) {
						t.Errorf("%s: err = %v", text, err)
					}
					if err := r.write(req.Context(), effect{"a", "escaped", 1}); err == nil {
						t.Errorf("written after %s", text)
					}
					w.WriteHeader(status)
				}), o)
				send(t, h, call("a", 5, "k"), "x").wantProblem(500, httpfence.TypeFailed)
				if !slices.Equal(outcomes, []httpfence.Outcome{httpfence.Failed}) {
					t.Errorf("outcomes %v", outcomes)
				}
				r.wantLog(t)
				send(t, h, call("a", 4, "older"), "x").wantProblem(412, httpfence.TypeStale)
				clumsy = false
				send(t, h, call("a", 5, "k"), "x").want(201, "done under epoch 5", false)
				r.wantLog(t, effect{"a", "k", 5})
			})
		}
	}
}

// The histories below are of a COMMIT or ROLLBACK that is hidden in a text so well that
// it is sent.

func TestAHandlerThatCommitsByItselfHasFailed(t *testing.T) {
	eachDatabase(t, func(t *testing.T, r *rig) {
		var outcomes []httpfence.Outcome
		o := quiet
		o.Observe = func(e httpfence.Event) { outcomes = append(outcomes, e.Outcome) }
		h := httpfence.Handler(r.open(), http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			r.apply(w, req)
			if err := r.hidden(req.Context(), `COMMIT`); err != nil {
				t.Error(err)
			}
		}), o)
		send(t, h, call("a", 5, "k"), "x").wantProblem(500, httpfence.TypeFailed)
		if !slices.Equal(outcomes, []httpfence.Outcome{httpfence.Failed}) {
			t.Errorf("outcomes %v", outcomes)
		}
		r.wantLog(t, effect{"a", "k", 5}) // it did commit; but once, and whether that is all is not known:
		send(t, h, call("a", 5, "k"), "x").wantProblem(500, httpfence.TypeFailed)
		r.wantLog(t, effect{"a", "k", 5})
	})
}

func TestAHandlerThatRollsBackByItselfHasFailedAndItsAnswerIsNotKept(t *testing.T) {
	eachDatabase(t, func(t *testing.T, r *rig) {
		clumsy := true
		h := httpfence.Handler(r.open(), http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			r.apply(w, req)
			if clumsy {
				if err := r.hidden(req.Context(), `ROLLBACK`); err != nil {
					t.Error(err)
				}
			}
		}), quiet)
		send(t, h, call("a", 5, "k"), "x").wantProblem(500, httpfence.TypeFailed)
		r.wantLog(t) // and the answer says so
		send(t, h, call("a", 4, "older"), "x").wantProblem(412, httpfence.TypeStale)
		clumsy = false
		send(t, h, call("a", 5, "k"), "x").want(201, "done under epoch 5", false)
		r.wantLog(t, effect{"a", "k", 5})
	})
}

func TestAnAnswerThatACommitOfTheHandlersLeftOutIsNotMadeUp(t *testing.T) {
	eachDatabase(t, func(t *testing.T, r *rig) {
		s := r.open()
		h := httpfence.Handler(s, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			r.apply(w, req)
			if err := r.hidden(req.Context(), `COMMIT`); err != nil {
				t.Error(err)
			}
			w.WriteHeader(500) // as if the process had died here
			panic(http.ErrAbortHandler)
		}), quiet)
		func() {
			defer func() { _ = recover() }()
			send(t, h, call("a", 5, "k"), "x")
		}()
		r.wantLog(t, effect{"a", "k", 5})
		send(t, h, call("a", 5, "k"), "x").wantProblem(500, httpfence.TypeFailed)
		r.wantLog(t, effect{"a", "k", 5})
	})
}

func TestATransactionIsOfNoUseOnceItsHandlerHasReturned(t *testing.T) {
	eachDatabase(t, func(t *testing.T, r *rig) {
		var last *http.Request
		h := httpfence.Handler(r.open(), http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) { last = req }), quiet)
		send(t, h, call("a", 5, "k"), "x").want(200, "", false)
		kept := context.WithoutCancel(last.Context())
		if err := r.write(kept, effect{"a", "late", 5}); err == nil {
			t.Error("written after the handler returned")
		}
		var one int
		if err := httpfence.Tx(kept).QueryRowContext(kept, `SELECT 1`).Scan(&one); err == nil {
			t.Error("read after the handler returned")
		}
		r.wantLog(t)
	})
}

func TestTxPanicsWhereThereIsNone(t *testing.T) {
	defer func() {
		if v := recover(); !strings.Contains(fmt.Sprint(v), "no transaction in this context") {
			t.Errorf("recovered %v", v)
		}
	}()
	httpfence.Tx(t.Context())
}
