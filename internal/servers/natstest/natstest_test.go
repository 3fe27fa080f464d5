package natstest

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

func TestAServerKeepsItsDataAndItsAddressAcrossARestart(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s := Start(t)
	js := s.JetStream(t)
	url := s.URL()
	if _, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(ctx, "s", nil); err != nil {
		t.Fatal(err)
	}
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	if s.Embedded() != nil {
		t.Error("the server is stopped and still there")
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	if s.URL() != url {
		t.Errorf("the server is now at %s, was at %s", s.URL(), url)
	}
	stream, err := s.JetStream(t).Stream(ctx, "S")
	if err != nil {
		t.Fatal(err)
	}
	if got := stream.CachedInfo().State.LastSeq; got != 1 {
		t.Errorf("last sequence %d, want 1", got)
	}
}

func TestAStreamIsRestoredAsItWas(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	js := Start(t).JetStream(t)
	s, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}})
	if err != nil {
		t.Fatal(err)
	}
	publish := func() {
		t.Helper()
		if _, err := js.Publish(ctx, "s", make([]byte, 1000)); err != nil {
			t.Fatal(err)
		}
	}
	for range 1000 {
		publish()
	}
	was, err := s.Info(ctx)
	if err != nil {
		t.Fatal(err)
	}
	b, err := TakeBackup(ctx, js.Conn(), "S")
	if err != nil {
		t.Fatal(err)
	}
	publish()
	if err := b.Restore(ctx, js.Conn()); err == nil {
		t.Error("a stream was restored over one that is there")
	}
	if err := js.DeleteStream(ctx, "S"); err != nil {
		t.Fatal(err)
	}
	if err := b.Restore(ctx, js.Conn()); err != nil {
		t.Fatal(err)
	}
	is, err := s.Info(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if is.State.LastSeq != 1000 || !is.Created.After(was.Created) || !is.State.LastTime.Equal(was.State.LastTime) {
		t.Errorf("the stream is %+v, was %+v", is, was)
	}
}

// A server removes the directory of an account's streams behind the answer to
// the deletion of the last one, also under the next that is being created.
func TestAStreamCanBeCreatedRightAfterTheLastWasDeleted(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	js := Start(t).JetStream(t)
	rounds := 100
	if os.Getenv("EPOCHFENCE_LONG") != "" {
		rounds = 500
	}
	for round := range rounds {
		if _, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}}); err != nil {
			t.Fatalf("create it the %dth time: %v", round, err)
		}
		if err := js.DeleteStream(ctx, "S"); err != nil {
			t.Fatal(err)
		}
	}
}
