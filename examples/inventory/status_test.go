package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/epochfence/epochfence/internal/show"
)

// printed is what a show writes, to be read while it does.
type printed struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (p *printed) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.buf.Write(b)
}

func (p *printed) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.buf.String()
}

// Of a worker that is frozen the page says so, then who took over, and that it was refused.
func TestTheStatusPageShowsAFreezeATakeoverAndARefusal(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it takes seconds")
	}
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	s := short()
	s.Naive, s.HTTP, s.Duration, s.Messages = false, "127.0.0.1:0", 4*time.Second, 1600
	var out printed
	played := make(chan error, 1)
	go func() {
		_, err := play(ctx, s, show.NewBoard(&out))
		played <- err
	}()
	saw, metrics := map[string]bool{}, ""
	address := regexp.MustCompile(`http://127\.0\.0\.1:\d+/`)
	words := []string{">frozen<", ">takeover<", ">refused<", ">worker 2<"}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case err := <-played:
			if err != nil {
				t.Fatal(err, out.String())
			}
			for _, word := range words {
				if !saw[word] {
					t.Errorf("the page never said %q", word)
				}
			}
			if !strings.Contains(metrics, `epochfence_claims_total{worker="2",outcome="claimed"} `) {
				t.Errorf("the metrics:\n%s", metrics)
			}
			return
		case <-tick.C:
		}
		url := address.FindString(out.String())
		if url == "" {
			continue
		}
		page := fetch(ctx, url)
		for _, word := range words {
			saw[word] = saw[word] || strings.Contains(page, word)
		}
		if m := fetch(ctx, url+"metrics"); strings.Contains(m, `worker="2"`) {
			metrics = m
		}
	}
}

// fetch returns what is at an address, or nothing if it does not answer any more.
func fetch(ctx context.Context, url string) string {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return ""
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return ""
	}
	defer func() { _ = answer.Body.Close() }()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		return ""
	}
	return string(body)
}
