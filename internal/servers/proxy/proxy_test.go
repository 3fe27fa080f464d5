package proxy_test

import (
	"bufio"
	"errors"
	"net"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/epochfence/epochfence/internal/servers/proxy"
)

// echo is a server that answers each line with itself and counts them.
func echo(t *testing.T) (address string, lines *atomic.Int64) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	lines = &atomic.Int64{}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = c.Close() }()
				for r := bufio.NewReader(c); ; {
					line, err := r.ReadString('\n')
					if err != nil {
						return
					}
					lines.Add(1)
					_, _ = c.Write([]byte(line))
				}
			}()
		}
	}()
	return l.Addr().String(), lines
}

func TestAProxyLosesWhatItIsToldTo(t *testing.T) {
	address, lines := echo(t)
	p, err := proxy.New(func() (string, bool) { return address, true })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	dial := func() net.Conn {
		c, err := net.Dial("tcp", p.Address())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	ask := func(c net.Conn, patience time.Duration) error {
		_ = c.SetDeadline(time.Now().Add(patience))
		if _, err := c.Write([]byte("hello\n")); err != nil {
			return err
		}
		_, err := bufio.NewReader(c).ReadString('\n')
		return err
	}
	want := func(arrived int64, struck int) {
		t.Helper()
		if got := lines.Load(); got != arrived || p.Struck() != struck {
			t.Fatalf("%d lines arrived and %d connections were struck; want %d and %d", got, p.Struck(), arrived, struck)
		}
	}
	c := dial()
	if err := ask(c, time.Minute); err != nil {
		t.Fatal(err)
	}
	want(1, 0)
	p.LoseAnswer()
	if err := ask(c, time.Minute); err == nil {
		t.Fatal("the answer came")
	}
	want(2, 1)
	c = dial()
	p.LoseRequest()
	if err := ask(c, time.Minute); err == nil {
		t.Fatal("an answer came to a lost request")
	}
	want(2, 2)
	c = dial()
	p.Freeze()
	if err := ask(c, 50*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("through a frozen proxy: %v", err)
	}
	want(2, 2)
	p.Pass()
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	if _, err := bufio.NewReader(c).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	want(3, 2)
	p.Cut()
	if err := ask(c, time.Minute); err == nil {
		t.Fatal("an answer came through a cut")
	}
	p.Pass()
	if err := ask(dial(), time.Minute); err != nil {
		t.Fatal(err)
	}
	want(4, 2)
	p.Slow(30 * time.Millisecond)
	c, began := dial(), time.Now()
	if err := ask(c, time.Minute); err != nil || time.Since(began) < 60*time.Millisecond {
		t.Fatalf("through a slow proxy: %v after %v", err, time.Since(began))
	}
	p.Slow(0)
	want(5, 2)
}
