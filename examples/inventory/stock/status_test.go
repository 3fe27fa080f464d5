package stock

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/epochfence/epochfence/internal/servers/freeport"
	"github.com/epochfence/epochfence/internal/show"
)

// The page says who took over from a worker that is frozen, and that the frozen one was refused.
func TestTheStatusPageShowsATakeoverAndARefusal(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it takes seconds")
	}
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	s := short()
	base := portsInARow(t, 1+s.Workers+1) // one worker is replaced
	s.Naive, s.HTTP, s.Duration, s.Messages = false, fmt.Sprintf("127.0.0.1:%d", base), 4*time.Second, 1600
	var out bytes.Buffer
	played := make(chan error, 1)
	go func() {
		_, _, err := show.Play(ctx, s, &out)
		played <- err
	}()
	saw, metrics := map[string]bool{}, ""
	words := []string{">takeover<", ">refused<"}
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
			if !strings.Contains(metrics, `epochfence_claims_total{outcome="claimed"} `) {
				t.Errorf("the metrics:\n%s", metrics)
			}
			return
		case <-tick.C:
		}
		page := fetch("http://" + s.HTTP)
		for _, word := range words {
			saw[word] = saw[word] || strings.Contains(page, word)
		}
		if m := fetch(fmt.Sprintf("http://127.0.0.1:%d/metrics", base+2)); m != "" { // of one of the workers
			metrics = m
		}
	}
}

// portsInARow returns the first of n ports that nobody else takes until the test ends, as package freeport does it.
func portsInARow(t *testing.T, n int) int {
	t.Helper()
	for {
		ports, err := freeport.Take(1)
		if err != nil {
			t.Fatal(err)
		}
		free := true
		for i := 1; i < n && free; i++ {
			at := fmt.Sprintf("127.0.0.1:%d", ports[0]+i)
			mark, err := net.ListenPacket("udp", at)
			if free = err == nil; !free {
				break
			}
			t.Cleanup(func() { _ = mark.Close() })
			l, err := net.Listen("tcp", at)
			if free = err == nil; free {
				_ = l.Close()
			}
		}
		if free {
			return ports[0]
		}
	}
}

// client does not wait until a worker that is frozen continues.
var client = &http.Client{Timeout: 10 * time.Second}

// fetch returns what is at an address, or nothing if it does not answer any more.
func fetch(url string) string {
	answer, err := client.Get(url)
	if err != nil {
		return ""
	}
	defer func() { _ = answer.Body.Close() }()
	body, _ := io.ReadAll(answer.Body)
	return string(body)
}
