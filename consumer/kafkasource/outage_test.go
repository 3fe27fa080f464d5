package kafkasource

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// wire is the way to the brokers, which can be cut.
type wire struct {
	dial func(ctx context.Context, network, addr string) (net.Conn, error)

	mu    sync.Mutex
	down  bool
	conns []net.Conn
}

func (w *wire) connect(ctx context.Context, network, addr string) (net.Conn, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.down {
		return nil, errors.New("connection refused")
	}
	conn, err := w.dial(ctx, network, addr)
	if err == nil {
		w.conns = append(w.conns, conn)
	}
	return conn, err
}

func (w *wire) cut(down bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.down = down
	for _, c := range w.conns {
		_ = c.Close()
	}
	w.conns = nil
}

// said keeps what is logged.
type said struct {
	mu    sync.Mutex
	lines []string
}

func (s *said) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lines = append(s.lines, string(p))
	return len(p), nil
}

// with lists the lines that hold a word.
func (s *said) with(word string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []string
	for _, line := range s.lines {
		if strings.Contains(line, word) {
			found = append(found, line)
		}
	}
	return found
}

func TestAnOutageOfTheBrokersIsSaidWhenItBeginsNowAndThenAndWhenItIsOver(t *testing.T) {
	for name, opts := range map[string]func(*Options){
		"classic": with(),
		"KIP-848": with(kgo.WithContext(context.WithValue(context.Background(), optIn, true))),
	} {
		t.Run(name, func(t *testing.T) {
			virtually(t, 8, func(r *rig) {
				w := &wire{dial: r.net.DialContext}
				var log said
				s := r.source(opts, with(kgo.Dialer(w.connect)), func(o *Options) { o.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
				work := &worker{sink: r.sink, name: "a"}
				r.run(s, work.own)
				r.until("all are claimed", func() bool { return len(r.sink.claims) == 8 })
				before := len(log.with("level="))
				w.cut(true)
				<-time.After(10 * time.Minute)
				during := log.with("level=")[before:]
				if wrong := len(during); wrong < 2 || wrong > 12 {
					t.Errorf("%d lines in ten minutes:\n%s", wrong, strings.Join(during, ""))
				}
				w.cut(false)
				<-time.After(2 * time.Minute)
				synctest.Wait()
				after := log.with("level=")[before+len(during):]
				if len(after) != 1 || !strings.Contains(after[0], "over: not in the group") {
					t.Errorf("%d lines when it was over:\n%s", len(after), strings.Join(after, ""))
				}
			})
		})
	}
}
