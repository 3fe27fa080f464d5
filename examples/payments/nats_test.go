package main

import (
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/show"
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

// startBroker starts a nats-server, and a client of it.
func startBroker(t *testing.T) *broker {
	t.Helper()
	url, stop, err := embeddedServer(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	b, err := connectBroker(t.Context(), url, 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.conn.Close)
	return b
}

func TestMessagesAreWhereTheSenderSaysInThePartitionsOfTheServer(t *testing.T) {
	const stream, partitions, messages = "some-payments", 7, 1500
	b := startBroker(t)
	if err := b.createStream(t.Context(), stream, partitions); err != nil {
		t.Fatal(err)
	}
	sent, err := b.send(t.Context(), stream, testSeed, 50, partitions, messages, show.NewPace(messages, 0, 0))
	if err != nil || len(sent) != messages {
		t.Fatal(len(sent), err)
	}
	s, err := b.js.Stream(t.Context(), stream)
	if err != nil {
		t.Fatal(err)
	}
	for i, at := range sent {
		m, err := s.GetMsg(t.Context(), uint64(at.Offset))
		if err != nil {
			t.Fatal(err)
		}
		p, err := parse(m.Data)
		if err != nil || p != payment(testSeed, i, 50) || partitionIn(m.Subject) != strconv.Itoa(int(at.Partition)) {
			t.Fatalf("message %d is %s on %s, %v; sent as %+v", i, m.Data, m.Subject, err, at)
		}
	}
}

func TestAMessageThatIsSentAgainIsStoredOnce(t *testing.T) {
	const stream = "some-payments"
	b := startBroker(t)
	if err := b.createStream(t.Context(), stream, 2); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		at, err := b.sendSome(t.Context(), stream, []Payment{testPayment(1), testPayment(2)})
		if err != nil || at[0] != 1 || at[1] != 2 {
			t.Errorf("at %v, %v", at, err)
		}
	}
}

func TestWhatIsToBeAppliedIsCountedByPartition(t *testing.T) {
	const stream, partitions, messages = "counted-payments", 5, 700
	b := startBroker(t)
	if err := b.createStream(t.Context(), stream, partitions); err != nil {
		t.Fatal(err)
	}
	sent, err := b.send(t.Context(), stream, testSeed, 50, partitions, messages, show.NewPace(messages, 0, 0))
	if err != nil {
		t.Fatal(err)
	}
	fences := make([]epoch.Fence, partitions)
	want := map[epoch.Partition]int64{}
	for n := range fences {
		fences[n].Partition = epoch.Partition{Group: stream, Topic: stream, Number: int32(n)}
		fences[n].Next = epoch.Offset(n * messages / (partitions - 1)) // from the start, and so on to the end
		for _, at := range sent {
			if at.Partition == int32(n) && at.Offset >= int64(fences[n].Next) {
				want[fences[n].Partition]++
			}
		}
	}
	logs, err := b.logs(t.Context(), stream, fences)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range fences {
		if log := logs[f.Partition]; log.Begin != 1 || log.End != messages+1 || log.Lag != want[f.Partition] {
			t.Errorf("from %d on: %+v, want a lag of %d", f.Next, log, want[f.Partition])
		}
	}
}
