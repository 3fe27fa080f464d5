package httpfence_test

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/servers/pgtest"
	"github.com/epochfence/epochfence/outbox/httpfence"
)

// over serves a handler behind a store over real HTTP, and does the request
// twice: the answers must be the same, but for the header that says so.
func over(t *testing.T, r *rig, method string, handle http.HandlerFunc) (first, again *http.Response, body string) {
	t.Helper()
	srv := httptest.NewServer(httpfence.Handler(r.open(), handle, quiet))
	t.Cleanup(srv.Close)
	return twice(t, srv, method)
}

// twice is over for a server that serves the handler.
func twice(t *testing.T, srv *httptest.Server, method string) (first, again *http.Response, body string) {
	t.Helper()
	do := func() (*http.Response, string) {
		req, err := http.NewRequestWithContext(t.Context(), method, srv.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := call("a", 1, "k").SetHeaders(req.Header); err != nil {
			t.Fatal(err)
		}
		res, err := srv.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = res.Body.Close() }()
		body, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res, string(body)
	}
	first, body = do()
	again, replay := do()
	if replay != body || again.StatusCode != first.StatusCode {
		t.Errorf("first %d %q, again %d %q", first.StatusCode, body, again.StatusCode, replay)
	}
	if first.Header.Get(httpfence.ReplayedHeader) != "" || again.Header.Get(httpfence.ReplayedHeader) != "true" {
		t.Errorf("%s: first %q, again %q", httpfence.ReplayedHeader, first.Header.Get(httpfence.ReplayedHeader), again.Header.Get(httpfence.ReplayedHeader))
	}
	return first, again, body
}

// HTTP/1 and HTTP/2 fix different things in a header that cannot be sent as it is, and
// neither does in one that is stored.
func TestAnAnswerComesAgainWithTheSameHeadersWhateverTheHandlerPutThere(t *testing.T) {
	eachStore(t, func(t *testing.T, r *rig) {
		store := r.open()
		for _, version := range []int{1, 2} {
			n := 0
			srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				req.Header.Set(httpfence.KeyHeader, fmt.Sprintf(`"over HTTP/%d"`, version))
				httpfence.Handler(store, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					n++
					h := w.Header()
					h.Set("Trailer", "X-Sum")
					h["X-Lines"] = []string{"one\r\ntwo", "three\nfour", "\rfive ", "six"}
					h["X-Control"] = []string{"a\x00b\x7fc\td\x1b"}
					h["X Name"] = []string{"of no header"}
					h["X-Name: yes\r\nX-Injected"] = []string{"no"}
					h[""] = []string{"none"}
					h["x-lower"] = []string{" spaces "}
					_, _ = io.WriteString(w, "body")
					h["X-Sum"] = []string{"1\n2"}
				}), quiet).ServeHTTP(w, req)
			}))
			srv.EnableHTTP2 = version == 2
			srv.StartTLS()
			t.Cleanup(srv.Close)
			first, again, _ := twice(t, srv, http.MethodPost)
			if first.ProtoMajor != version || n != 1 {
				t.Fatalf("%s, %d calls of the handler", first.Proto, n)
			}
			for _, h := range []http.Header{first.Header, again.Header} {
				h.Del("Date")
				h.Del(httpfence.ReplayedHeader)
			}
			if !maps.EqualFunc(first.Header, again.Header, slices.Equal) || !maps.EqualFunc(first.Trailer, again.Trailer, slices.Equal) {
				t.Errorf("%s: first %q, trailer %q; again %q, trailer %q", first.Proto, first.Header, first.Trailer, again.Header, again.Trailer)
			}
			if got := first.Header.Values("X-Lines"); !slices.Equal(got, []string{"one  two", "three four", "five", "six"}) || first.Trailer.Get("X-Sum") != "1 2" {
				t.Errorf("%s: X-Lines: %q, the trailer %q", first.Proto, got, first.Trailer)
			}
		}
	})
}

func TestAnAnswerComesAgainWithItsHeadersAndTrailers(t *testing.T) {
	eachStore(t, func(t *testing.T, r *rig) {
		first, again, body := over(t, r, http.MethodPost, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Trailer", "X-Sum, X-Unused")
			w.Header()["X-Many"] = []string{"one", "two: three", "caf\xe9"}
			w.WriteHeader(http.StatusAccepted)
			w.Header().Set("X-Late", "not sent: the status was written")
			_, _ = io.WriteString(w, "hello ")
			_, _ = io.WriteString(w, "world")
			w.Header().Set("X-Sum", "42")
			w.Header().Set(http.TrailerPrefix+"X-Unannounced", "43")
		})
		if body != "hello world" {
			t.Errorf("body %q", body)
		}
		for _, res := range []*http.Response{first, again} {
			if got := res.Header["X-Many"]; len(got) != 3 || got[1] != "two: three" || got[2] != "caf\xe9" {
				t.Errorf("X-Many %q", got)
			}
			if res.Header.Get("X-Late") != "" {
				t.Error("a header that was set too late was sent")
			}
			if res.Trailer.Get("X-Sum") != "42" || res.Trailer.Get("X-Unannounced") != "43" {
				t.Errorf("trailers %v", res.Trailer)
			}
		}
	})
}

func TestAnAnswerWithoutABodyComesAgain(t *testing.T) {
	eachStore(t, func(t *testing.T, r *rig) {
		first, _, _ := over(t, r, http.MethodPost, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusEarlyHints) // dropped
			w.WriteHeader(http.StatusNoContent)
			if _, err := io.WriteString(w, "x"); !errors.Is(err, http.ErrBodyNotAllowed) {
				t.Errorf("write to a 204: %v", err)
			}
		})
		if first.StatusCode != 204 || first.Header.Get("Content-Length") != "" {
			t.Errorf("%d %v", first.StatusCode, first.Header)
		}
	})
}

func TestAnAnswerComesAgainWhateverIsSetForTheRole(t *testing.T) {
	for _, mode := range []string{"cache_statement", "exec", "simple_protocol"} {
		t.Run(mode, func(t *testing.T) {
			d := pgtest.Start(t)
			d.Odd(t)
			_, _, body := over(t, postgresRigAt(t, d.URL+"&default_query_exec_mode="+mode), http.MethodPost, func(w http.ResponseWriter, _ *http.Request) {
				_, _ = w.Write([]byte("\\x00 \\ \x00\xff"))
			})
			if body != "\\x00 \\ \x00\xff" {
				t.Errorf("%q", body)
			}
		})
	}
}

func TestAHandlerThatWritesNothingHasAnswered200(t *testing.T) {
	eachStore(t, func(t *testing.T, r *rig) {
		first, _, _ := over(t, r, http.MethodHead, func(http.ResponseWriter, *http.Request) {})
		if first.StatusCode != 200 {
			t.Errorf("%d", first.StatusCode)
		}
	})
}

func TestAnAnswerCannotBeFlushedHijackedOrSwitchTheProtocol(t *testing.T) {
	h := httpfence.Handler(httpfence.NewMemory(), http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		c := http.NewResponseController(w)
		if err := c.Flush(); !errors.Is(err, http.ErrNotSupported) {
			t.Errorf("flush: %v", err)
		}
		if _, _, err := c.Hijack(); !errors.Is(err, http.ErrNotSupported) {
			t.Errorf("hijack: %v", err)
		}
		w.WriteHeader(http.StatusSwitchingProtocols)
	}), quiet)
	send(t, h, call("a", 1, "k"), "x").wantProblem(500, httpfence.TypeFailed)
}

func TestAnAnswerOverTheBoundIsNotKept(t *testing.T) {
	o := quiet
	o.MaxAnswer = 4
	size := 5
	h := httpfence.Handler(httpfence.NewMemory(), http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, err := w.Write(make([]byte, size))
		if (err != nil) != (size > 4) {
			t.Errorf("write of %d bytes: %v", size, err)
		}
	}), o)
	send(t, h, call("a", 1, "k"), "x").wantProblem(500, httpfence.TypeFailed)
	size = 4
	send(t, h, call("a", 1, "k"), "x").want(200, "\x00\x00\x00\x00", false)
}

func TestTheHandlerSeesTheRequestAsItCame(t *testing.T) {
	h := httpfence.Handler(httpfence.NewMemory(), http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		if string(body) != "a charge" || err != nil || req.ContentLength != 8 {
			t.Errorf("body %q, %v, length %d", body, err, req.ContentLength)
		}
		if c, ok := httpfence.CallOf(req.Context()); !ok || c != call("a", 1, "k") {
			t.Errorf("call %+v, %v", c, ok)
		}
		w.WriteHeader(http.StatusCreated)
	}), quiet)
	send(t, h, call("a", 1, "k"), "a charge").want(201, "", false)
}

func TestCallsComeOutOfHeadersAsTheyWentIn(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`[ -~]{1,255}`)
		c := httpfence.Call{
			Scope: text.Draw(t, "scope"),
			Epoch: epoch.Epoch(rapid.Int64().Draw(t, "epoch")),
			Key:   text.Draw(t, "key"),
		}
		h := http.Header{}
		if err := c.SetHeaders(h); err != nil {
			if !errors.Is(err, httpfence.ErrMalformed) {
				t.Fatal(err)
			}
			if c.Epoch > 0 && httpfence.CheckScope(c.Scope) == nil {
				t.Fatalf("%+v: %v", c, err)
			}
			return
		}
		if got, err := httpfence.ReadCall(h); got != c || err != nil {
			t.Fatalf("%+v came out as %+v, %v", c, got, err)
		}
	})
}

func TestRetryable(t *testing.T) {
	for status, want := range map[int]bool{200: false, 302: false, 400: false, 402: false, 408: true, 409: false,
		412: false, 422: false, 425: true, 429: true, 500: true, 503: true, 599: true} {
		if got := httpfence.Retryable(status); got != want {
			t.Errorf("%d: %v", status, got)
		}
	}
}
