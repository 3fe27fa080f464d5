package outbox_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/outbox"
)

func newServer(t *testing.T, h http.Handler) string {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return srv.URL
}

func TestAnEntryThatCanNeverBeSentIsRefusedWhenItIsAdded(t *testing.T) {
	good := outbox.Entry{Key: "a", Scope: "account/1", URL: "http://localhost/charges", Header: http.Header{"Content-Type": {"application/json"}}}
	for name, change := range map[string]func(*outbox.Entry){
		"no scope":           func(e *outbox.Entry) { e.Scope = "" },
		"a scope not ASCII":  func(e *outbox.Entry) { e.Scope = "ä" },
		"a long scope":       func(e *outbox.Entry) { e.Scope = strings.Repeat("x", 256) },
		"a key not UTF-8":    func(e *outbox.Entry) { e.Key = "\xff" },
		"a key with NUL":     func(e *outbox.Entry) { e.Key = "a\x00" },
		"a long key":         func(e *outbox.Entry) { e.Key = strings.Repeat("x", 256) },
		"a key of a record":  func(e *outbox.Entry) { e.Key = "kafka:=a" },
		"a key of a message": func(e *outbox.Entry) { e.Key = "nats:=a" },
		"an idempotency key": func(e *outbox.Entry) { e.IdempotencyKey = "a\nb" },
		"no URL":             func(e *outbox.Entry) { e.URL = "" },
		"a relative URL":     func(e *outbox.Entry) { e.URL = "/charges" },
		"another scheme":     func(e *outbox.Entry) { e.URL = "ftp://localhost/" },
		"an unparsable URL":  func(e *outbox.Entry) { e.URL = "http://local host/" },
		"a method":           func(e *outbox.Entry) { e.Method = "PO ST" },
		"CONNECT":            func(e *outbox.Entry) { e.Method = "CONNECT" },
		"a header name":      func(e *outbox.Entry) { e.Header = http.Header{"a b": {"c"}} },
		"a header value":     func(e *outbox.Entry) { e.Header = http.Header{"A": {"b\r\nc: d"}} },
		"a fence's header":   func(e *outbox.Entry) { e.Header = http.Header{"epochfence-epoch": {"1"}} },
		"the key's header":   func(e *outbox.Entry) { e.Header = http.Header{"Idempotency-Key": {"1"}} },
		"the version header": func(e *outbox.Entry) { e.Header = http.Header{"Epochfence-Version": {"2"}} },
		"a long header":      func(e *outbox.Entry) { e.Header = http.Header{"A": {strings.Repeat("x", 40<<10)}} },
		"a body of 300 KiB":  func(e *outbox.Entry) { e.Body = make([]byte, 300<<10) },
	} {
		t.Run(name, func(t *testing.T) {
			box, err := outbox.New(table{}, outbox.Options[*tx]{})
			if err != nil {
				t.Fatal(err)
			}
			bad := good
			bad.Header = good.Header.Clone()
			change(&bad)
			db := newDatabase()
			add := func(e outbox.Entry) error {
				return db.do(func(tx *tx) error { return box.Add(t.Context(), tx, epoch.Message{}, e) })
			}
			if err := add(bad); !errors.Is(err, outbox.ErrEntry) {
				t.Errorf("added: %v", err)
			}
			if err := add(good); err != nil {
				t.Error(err)
			}
			if got := db.left(); len(got) != 1 || got[0].Method != http.MethodPost || len(got[0].IdempotencyKey) < 20 {
				t.Errorf("stored %+v", got)
			}
		})
	}
}

func TestAnEntryIsSentAsItWasAdded(t *testing.T) {
	got := make(chan *http.Request, 1)
	r := newRig(t, fast, func(req *http.Request, _ string) int {
		got <- req.Clone(t.Context())
		return http.StatusOK
	})
	err := r.db.do(func(tx *tx) error {
		return r.box.Add(t.Context(), tx, epoch.Message{}, outbox.Entry{
			Scope: "account/17", IdempotencyKey: `charge "4711"`, Method: http.MethodPut, URL: r.url + "/charges/4711?now=1",
			Header: http.Header{"Content-Type": {"application/json"}, "X-Many": {"a", "b"}},
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	r.relay(3)
	r.awaitEmpty()
	req := <-got
	for header, want := range map[string]string{
		"Content-Type": "application/json", "Epochfence-Epoch": "3", "Epochfence-Scope": "account/17",
		"Idempotency-Key": `"charge \"4711\""`,
	} {
		if v := req.Header.Get(header); v != want {
			t.Errorf("%s: %s, want %s", header, v, want)
		}
	}
	if req.Method != http.MethodPut || req.URL.String() != "/charges/4711?now=1" || len(req.Header["X-Many"]) != 2 {
		t.Errorf("%s %s %v", req.Method, req.URL, req.Header)
	}
}
