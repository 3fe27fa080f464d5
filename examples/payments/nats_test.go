package main

import (
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// startPlainServer starts a nats-server without JetStream.
func startPlainServer(t *testing.T) (url string) {
	t.Helper()
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(20 * time.Second) {
		t.Fatal("the server is not ready")
	}
	return s.ClientURL()
}

// startBroker starts a nats-server, and returns a client of it.
func startBroker(t *testing.T) *payments {
	t.Helper()
	p := newPayments()
	p.Dir = t.TempDir()
	closer, err := p.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(closer)
	return p
}

func TestMessagesAreWhereTheSenderSaysAndStoredOnceWhenSentAgain(t *testing.T) {
	const stream, messages = "some-payments", 500
	p := startBroker(t)
	if err := createStream(t.Context(), p.js, stream, 7, 1); err != nil {
		t.Fatal(err)
	}
	sent := make([]int64, messages)
	for range 2 {
		if err := send(t.Context(), p.js, stream, sent, testPayment); err != nil {
			t.Fatal(err)
		}
	}
	s, err := p.js.Stream(t.Context(), stream)
	if err != nil {
		t.Fatal(err)
	}
	if n := s.CachedInfo().State.Msgs; n != messages {
		t.Errorf("%d messages are stored", n)
	}
	for i, at := range sent {
		m, err := s.GetMsg(t.Context(), uint64(at))
		if err != nil {
			t.Fatal(err)
		}
		if p, err := parse(m.Data); err != nil || p != testPayment(i) {
			t.Fatalf("message %d is %s on %s, %v; sent as %d", i, m.Data, m.Subject, err, at)
		}
	}
}
