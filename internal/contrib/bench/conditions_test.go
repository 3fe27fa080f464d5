package main

import (
	"io"
	"net"
	"testing"
	"time"
)

func TestARoundTripOverANetworkTakesAsLongAsItIsSaidTo(t *testing.T) {
	t.Parallel()
	echo, front := listen(t), listen(t)
	go func() {
		c, err := echo.Accept()
		if err == nil {
			_, _ = io.Copy(c, c)
		}
	}()
	const trip = time.Millisecond
	go relay(front, echo.Addr().String(), trip)
	c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", front.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	least := time.Hour // other work on the machine only makes it longer
	buf := make([]byte, 1)
	for range 300 {
		began := time.Now()
		if _, err := c.Write(buf); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c, buf); err != nil {
			t.Fatal(err)
		}
		least = min(least, time.Since(began))
	}
	if least < trip || least > trip*3/2 {
		t.Errorf("a round trip takes %v, want %v", least, trip)
	}
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}
