package main

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/internal/servers/localnats"
	"github.com/epochfence/epochfence/internal/servers/pgtest"
	"github.com/epochfence/epochfence/internal/suites/showtest"
)

func startNATS(t *testing.T) (url string, js jetstream.JetStream) {
	t.Helper()
	url, stop, err := localnats.Start(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	js, err = connect(url, "test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(js.Conn().Close)
	return url, js
}

// The long form of this, on a cluster, is `make demo WHICH=payments ON=real`.
func TestAServerAndAPostgresOfOthersEndExactAndAreLeftAsTheyWere(t *testing.T) {
	t.Parallel()
	db := pgtest.Start(t)
	url, js := startNATS(t)
	showtest.Exact(t, newPayments(), "-nats", url, "-database", db.URL, "-messages", "1500", "-partitions", "8", "-duration", "12s")
	for name := range js.StreamNames(t.Context()).Name() {
		t.Errorf("left in JetStream: %s", name)
	}
	rows, _ := db.Superuser(t).Query(t.Context(), `SELECT nspname::text FROM pg_namespace WHERE nspname LIKE 'payments%'`)
	if schemas, err := pgx.CollectRows(rows, pgx.RowTo[string]); err != nil || len(schemas) > 0 {
		t.Errorf("left in PostgreSQL: %v, %v", schemas, err)
	}
}

func TestMessagesAreWhereTheSenderSaysAndStoredOnceWhenSentAgain(t *testing.T) {
	const stream, messages = "some-payments", 500
	_, js := startNATS(t)
	if err := createStream(t.Context(), js, stream, 7, 1); err != nil {
		t.Fatal(err)
	}
	sent := make([]int64, messages)
	for range 2 {
		if err := send(t.Context(), js, stream, sent, testPayment); err != nil {
			t.Fatal(err)
		}
	}
	s, err := js.Stream(t.Context(), stream)
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
