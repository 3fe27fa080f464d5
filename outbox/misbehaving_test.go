package outbox_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/epochfence/epochfence/outbox"
)

// rawReceiver answers each connection's request by hand: reply writes what it
// likes, and hangs with the connection open until the test is over.
func rawReceiver(t *testing.T, reply func(w io.Writer)) (url string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, over := context.WithCancel(context.Background())
	var all sync.WaitGroup
	all.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				context.AfterFunc(ctx, func() { _ = conn.Close() })
				req, err := http.ReadRequest(bufio.NewReader(conn))
				if err != nil {
					return
				}
				_, _ = io.Copy(io.Discard, req.Body)
				reply(conn)
				<-ctx.Done()
			})
		}
	})
	t.Cleanup(func() {
		over()
		_ = l.Close()
		all.Wait()
	})
	return "http://" + l.Addr().String()
}

// A receiver that answers as no one should costs its own entry a try, after
// RequestTimeout at the latest, and nobody else anything.
func TestAReceiverThatMisbehavesHoldsUpOnlyItsOwnEntries(t *testing.T) {
	for name, reply := range map[string]func(w io.Writer){
		"says nothing":            func(io.Writer) {},
		"stops in the status":     func(w io.Writer) { _, _ = io.WriteString(w, "HTTP/1.1 2") },
		"stops in the headers":    func(w io.Writer) { _, _ = io.WriteString(w, "HTTP/1.1 200 OK\r\nA: b\r\n") },
		"stops in the body":       func(w io.Writer) { _, _ = io.WriteString(w, "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf") },
		"stops in a refusal":      func(w io.Writer) { _, _ = io.WriteString(w, "HTTP/1.1 400 No\r\nContent-Length: 9\r\n\r\nhalf") },
		"is no HTTP":              func(w io.Writer) { _, _ = io.WriteString(w, "SSH-2.0-x\r\n\r\n") },
		"says 102 and no more":    func(w io.Writer) { _, _ = io.WriteString(w, "HTTP/1.1 102 Processing\r\n\r\n") },
		"switches protocols":      func(w io.Writer) { _, _ = io.WriteString(w, switching) },
		"says 103 without end":    func(w io.Writer) { repeat(w, "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n") },
		"has headers without end": func(w io.Writer) { _, _ = io.WriteString(w, "HTTP/1.1 200 OK\r\n"); repeat(w, "A: b\r\n") },
		"has a chunk without end": func(w io.Writer) {
			_, _ = io.WriteString(w, "HTTP/1.1 400 No\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n")
			_, _ = io.WriteString(w, "slow")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := fast
			o.RequestTimeout = 100 * time.Millisecond
			o.OnAnswer = func(context.Context, *tx, outbox.Sent, outbox.Answer) error { return nil }
			r := newRig(t, o, ok)
			good := r.url
			r.url = rawReceiver(t, reply)
			r.add("bad 1", "bad 2")
			r.url = good
			r.add("good 3")
			run := r.relay(1)
			r.await("the good one delivered and the bad one tried twice", func() bool {
				tries := slices.DeleteFunc(r.observed(), func(e outbox.Event) bool { return e.Key != "bad" })
				return len(r.db.left()) == 2 && len(tries) >= 2
			})
			r.stop(run)
			for _, e := range r.observed() {
				if e.Key == "bad" && (e.Kind == outbox.Delivered || e.Err == nil || string(e.Body) != "1") {
					t.Errorf("observed %v %v of %s", e.Kind, e.Err, e.Body)
				}
			}
		})
	}
}

const switching = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n"

// repeat writes until nobody reads any more.
func repeat(w io.Writer, text string) {
	all := bytes.Repeat([]byte(text), 1000)
	for {
		if _, err := w.Write(all); err != nil {
			return
		}
	}
}

// The body of a switched protocol is the connection itself, which no context
// ends.
func TestAReceiverThatSwitchesProtocolsDoesNotHoldUpTheEndOfAClaim(t *testing.T) {
	answered := make(chan struct{}, 1)
	o := fast
	o.RequestTimeout = time.Hour
	r := newRig(t, o, ok)
	r.url = rawReceiver(t, func(w io.Writer) {
		_, _ = io.WriteString(w, switching)
		answered <- struct{}{}
	})
	r.add("a 1")
	run := r.relay(1)
	<-answered
	r.await("a report", func() bool { return len(r.observed()) > 0 })
	r.stop(run)
	if e := r.observed()[0]; e.Kind != outbox.Refused || e.Status != http.StatusSwitchingProtocols {
		t.Errorf("observed %+v", e)
	}
}

func TestNoMoreOfAnAnswerIsKeptThanMaxAnswer(t *testing.T) {
	o := fast
	o.MaxAnswer = 8
	o.OnAnswer = func(_ context.Context, t *tx, _ outbox.Sent, a outbox.Answer) error {
		t.note(fmt.Sprintf("%s %v", a.Body, a.Truncated))
		return nil
	}
	r := newRig(t, o, ok)
	r.add("a 1", "a 2")
	r.url = newServer(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusOK)
		repeat(w, "endless ")
	}))
	r.add("a 3")
	r.url = newServer(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "eight by") }))
	r.add("a 4")
	r.relay(1)
	r.awaitEmpty()
	want := []string{"answer t true", "answer t true", "endless  true", "eight by false"}
	if got := r.db.notes(); !slices.Equal(got, want) {
		t.Errorf("noted %q, want %q", got, want)
	}
}

func TestTheHeadersOfAnAnswerAreBounded(t *testing.T) {
	r := newRig(t, fast, ok)
	o := fast
	o.Logger = slog.New(slog.DiscardHandler)
	events := make(chan outbox.Event, 100)
	o.Observe = func(e outbox.Event) {
		select {
		case events <- e:
		default:
		}
	}
	box, err := outbox.New(table{}, o) // with a client of its own
	if err != nil {
		t.Fatal(err)
	}
	r.box = box
	r.url = newServer(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Large", strings.Repeat("x", 256<<10))
	}))
	r.add("a 1")
	r.stop(r.relay(1).after(events))
	if len(r.db.left()) != 1 {
		t.Error("an answer with headers of 256 KiB was taken")
	}
}

func TestAReceiverCannotPutATryOffForLongerThanRetryMax(t *testing.T) {
	var n atomic.Int64
	r := newRig(t, fast, ok)
	r.url = newServer(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if n.Add(1) < 3 {
			w.Header().Set("Retry-After", "3600")
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	r.add("a 1")
	r.relay(1)
	r.awaitEmpty()
}

// An entry goes where it was meant to go, with its epoch and key, and nowhere else.
func TestARedirectIsNotFollowed(t *testing.T) {
	for _, status := range []int{301, 302, 307, 308} {
		var elsewhere atomic.Int64
		other := newServer(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere.Add(1) }))
		o := fast
		o.OnRefused = func(_ context.Context, t *tx, _ outbox.Sent, a outbox.Answer) error {
			t.note(fmt.Sprint(a.Status))
			return nil
		}
		r := newRig(t, o, ok)
		r.url = newServer(t, http.RedirectHandler(other, status))
		r.add("a 1")
		r.relay(1)
		r.awaitEmpty()
		if got := r.db.notes(); elsewhere.Load() > 0 || !slices.Equal(got, []string{fmt.Sprint(status)}) {
			t.Errorf("%d: %d requests elsewhere, noted %q", status, elsewhere.Load(), got)
		}
	}
}
