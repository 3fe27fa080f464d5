package outbox_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/outbox"
)

// roundTripper is a network that a test makes up.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// What is in a URL beside its scheme and host may be a secret, as in a webhook.
func TestNoSecretOfAnEntryIsInALogOrAnError(t *testing.T) {
	const secret = "TOPSECRET"
	target := "http://user-" + secret + ":pass-" + secret + "@example.com/services/" + secret + "/a%20" + secret + "?token=" + secret + "%21&" + secret
	answer := func(status int, kind, body string) roundTripper {
		return func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: status, Header: http.Header{"Content-Type": {kind}}, Body: io.NopCloser(strings.NewReader(body))}, nil
		}
	}
	for name, network := range map[string]roundTripper{
		"nobody there": func(*http.Request) (*http.Response, error) { return nil, &net.OpError{Op: "dial", Err: errTest} },
		"a talkative one": func(r *http.Request) (*http.Response, error) {
			return nil, fmt.Errorf("giving up: %s %s", r.Method, r.URL)
		},
		"a nested client": func(r *http.Request) (*http.Response, error) {
			return nil, &url.Error{Op: "Post", URL: r.URL.String(), Err: errTest}
		},
		"503":              answer(503, "text/plain", ""),
		"400 that repeats": answer(400, "application/problem+json", `{"detail":"nothing at /services/`+secret+`/, token `+secret+`!"}`),
		"401":              answer(401, "", ""),
	} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			r := &rig{T: t, db: newDatabase()}
			failed := make(chan error, 1000)
			box, err := outbox.New(table{}, outbox.Options[*tx]{
				Client: &http.Client{Transport: network}, RetryMin: time.Millisecond, RetryMax: time.Millisecond,
				Logger:  slog.New(slog.NewTextHandler(&log, nil)),
				Observe: func(e outbox.Event) { failed <- e.Err },
			})
			if err != nil {
				t.Fatal(err)
			}
			r.box, r.url = box, target
			r.add("a 1")
			run := r.relay(1)
			for range 3 {
				err := <-failed
				var whole *url.Error
				if errors.As(err, &whole) || strings.Contains(err.Error(), secret) || !strings.Contains(err.Error(), "http://example.com") {
					t.Errorf("observed of %v", err)
				}
			}
			r.stop(run)
			if strings.Contains(log.String(), secret) || !strings.Contains(log.String(), "http://example.com") {
				t.Errorf("logged %s", log.String())
			}
		})
	}
	box, err := outbox.New(table{}, outbox.Options[*tx]{})
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{target + "&a b", strings.Replace(target, "http", "ftp", 1), target + "%zz\x7f", strings.Replace(target, "@", "#", 1), strings.Replace(target, "@", " @", 1), "/" + secret} {
		err := newDatabase().do(func(tx *tx) error {
			return box.Add(t.Context(), tx, epoch.Message{}, outbox.Entry{Scope: "s", URL: bad})
		})
		if !errors.Is(err, outbox.ErrEntry) || strings.Contains(err.Error(), secret) {
			t.Errorf("adding %q: %v", bad, err)
		}
	}
	err = newDatabase().do(func(tx *tx) error {
		return box.Add(t.Context(), tx, epoch.Message{}, outbox.Entry{Scope: "s", URL: "http://host/", Header: http.Header{"Authorization": {secret + "\n"}}})
	})
	if !errors.Is(err, outbox.ErrEntry) || strings.Contains(err.Error(), secret) {
		t.Errorf("adding a secret header: %v", err)
	}
}
