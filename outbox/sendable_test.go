package outbox_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/textproto"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/outbox"
	"github.com/epochfence/epochfence/outbox/httpfence"
)

// FuzzAnEntryThatIsAddedArrives adds entries, and sends those that Add takes to a
// real server, whatever host they name. They come as they are.
func FuzzAnEntryThatIsAddedArrives(f *testing.F) {
	add := func(e outbox.Entry, name, value string) {
		f.Add(e.Method, e.URL, name, value, e.Scope, e.IdempotencyKey, e.Key, e.Body)
	}
	for _, url := range []string{
		"http://host/charges", "https://host/charges?a=b&c=d#e", "http://host?q", "http://user:secret@host/", "http://host:8080",
		"http://host/charges?name=a b", "http://host/a b/c", "http://host/?ä", "http://host/ä", "http://ä.example/", "http://:8080/",
		"http://host:99999/", "http://host:0/", "http://host:/", "http://[::1]:80/", "http://[::1%25eth0]/", "http://a<b/", "http://host/%zz",
		"http://host//other/path", "http:opaque", "http://host/*", "http://host/?%00", "http://host/\x7f", "http://host/?a\tb", "HTTP://HOST/",
		"http://a_b/", "http://a..b/", "http://host/?{}|\\^`\"<>", "//host/", "http://user@/", "http://%41/", "http://xn--/", "http://[/",
	} {
		add(outbox.Entry{URL: url, Scope: "account/1", IdempotencyKey: "k"}, "Content-Type", "application/json")
	}
	for _, h := range [][2]string{
		{"Expect", "100-continue"}, {"Expect", "much"}, {"Authorization", "secret"}, {"x-lower", " a "}, {"Proxy-Connection", "close"}, {"Http2-Settings", "AAMAAABkAAQAAP__"},
		{"X", ""}, {"Content-Encoding", "gzip"}, {"X", "\x00"}, {"User-Agent", ""}, {"If-Match", "*"}, {"Range", "bytes=0-1"}, {"Host", "x"}, {"TE", "x"},
	} {
		add(outbox.Entry{URL: "http://host/", Scope: `a "b" c`, IdempotencyKey: ` \"\\ `, Body: []byte("body")}, h[0], h[1])
	}
	for _, method := range []string{"GET", "HEAD", "PRI", "post", "OPTIONS", "TRACE", "CONNECT", "!#$%&'*+-.^_`|~", "A B"} {
		add(outbox.Entry{Method: method, URL: "http://host/", Scope: "s", IdempotencyKey: "k", Body: []byte("body")}, "A", "b")
	}

	got := make(chan *http.Request, 1)
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		req.Body = io.NopCloser(strings.NewReader(string(body)))
		got <- req
	}))
	f.Cleanup(srv.Close)
	dial := func(ctx context.Context, _, addr string) (net.Conn, error) {
		host, port, err := net.SplitHostPort(addr)
		if n, _ := strconv.ParseUint(port, 10, 16); err != nil || host == "" || n == 0 {
			return nil, fmt.Errorf("nobody listens at %q", addr)
		}
		return new(net.Dialer).DialContext(ctx, "tcp", srv.Listener.Addr().String())
	}
	client := &http.Client{Transport: &http.Transport{DialContext: dial, DialTLSContext: dial}} // without TLS, whatever the scheme
	f.Cleanup(client.CloseIdleConnections)

	f.Fuzz(func(t *testing.T, method, rawURL, name, value, scope, idempotencyKey, key string, body []byte) {
		r := &rig{T: t, db: newDatabase()}
		fails := make(chan error, 100)
		box, err := outbox.New(table{}, outbox.Options[*tx]{
			Client: client, Logger: slog.New(slog.DiscardHandler), RetryMax: time.Second,
			Observe: func(e outbox.Event) {
				if e.Kind != outbox.Delivered {
					fails <- e.Err
				}
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		r.box = box
		e := outbox.Entry{Method: method, URL: rawURL, Scope: scope, IdempotencyKey: idempotencyKey, Key: key, Body: body, Header: http.Header{name: {value}}}
		err = r.db.do(func(tx *tx) error {
			return box.Add(t.Context(), tx, epoch.Message{Partition: orders}, e)
		})
		if err != nil {
			return
		}
		row := r.db.left()[0]
		run := r.relay(7)
		defer r.stop(run)
		select {
		case req := <-got:
			c, err := httpfence.ReadCall(req.Header)
			if err != nil || c.Scope != row.Scope || c.Key != row.IdempotencyKey || c.Epoch != 7 {
				t.Errorf("it came as the call %+v: %v", c, err)
			}
			u, err := url.Parse(rawURL)
			if err != nil {
				t.Fatal(err)
			}
			if req.Method != row.Method || req.RequestURI != u.RequestURI() || req.Host == "" {
				t.Errorf("it came as %s %s to %q, want %s %s", req.Method, req.RequestURI, req.Host, row.Method, u.RequestURI())
			}
			if came, _ := io.ReadAll(req.Body); string(came) != string(body) {
				t.Errorf("its body came as %q", came)
			}
			if textproto.CanonicalMIMEHeaderKey(name) != "User-Agent" && !slices.Equal(req.Header.Values(name), []string{textproto.TrimString(value)}) {
				t.Errorf("header %s came as %q", name, req.Header.Values(name))
			}
		case err := <-fails:
			t.Fatalf("%+v was added, and cannot be sent: %v", e, err)
		case <-time.After(patience):
			t.Fatalf("%+v was added, and not sent", e)
		}
		r.awaitEmpty()
	})
}
