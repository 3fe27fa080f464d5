package kafkatest

import (
	"context"
	"os"
	"sync"
	"testing"
	"time"
)

const (
	libsEnv = "EPOCHFENCE_KAFKA_LIBS"
	addrEnv = "EPOCHFENCE_TEST_KAFKA"

	// startLimit limits one start, which takes about three seconds on an idle machine.
	startLimit = 90 * time.Second
)

// Libs returns the directory of the broker's jars. Without one it skips t, or fails t if CI=true.
func Libs(t testing.TB) string {
	t.Helper()
	notInShort(t)
	libs := os.Getenv(libsEnv)
	if libs == "" {
		absent(t, "set "+libsEnv)
	}
	return libs
}

// Start starts a broker for t alone, and ends it with t. It needs [Libs]. If t has failed by then,
// Start adds the end of the broker's log to t's output.
func Start(t testing.TB, c Config) *Broker {
	t.Helper()
	libs := Libs(t)
	ctx, cancel := context.WithTimeout(t.Context(), startLimit)
	defer cancel()
	b, err := New(ctx, libs, t.TempDir(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the broker's log ends with\n%s", b.LogTail())
		}
		b.Kill()
	})
	return b
}

// Shared returns the bootstrap address of a broker that all tests of this binary share: the broker
// in EPOCHFENCE_TEST_KAFKA, or else one that the first call starts. A package that calls Shared
// needs a TestMain that calls [Main]. Tests must use topics and groups of their own.
func Shared(t testing.TB) string {
	t.Helper()
	notInShort(t)
	if addr := os.Getenv(addrEnv); addr != "" {
		return addr
	}
	if os.Getenv(libsEnv) == "" {
		absent(t, "set "+libsEnv+", or "+addrEnv+" to the address of a running broker")
	}
	b, err := shared.start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the shared broker's log ends with\n%s", b.LogTail())
		}
	})
	return b.Addr
}

// Main runs the tests of a package, ends the shared broker and returns the exit code:
//
//	func TestMain(m *testing.M) { os.Exit(kafkatest.Main(m)) }
func Main(m *testing.M) int {
	defer shared.stop()
	return m.Run()
}

var shared sharedBroker

type sharedBroker struct {
	mu     sync.Mutex
	dir    string
	broker *Broker
	err    error // of the only attempt
}

func (s *sharedBroker) start() (*Broker, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dir != "" || s.err != nil {
		return s.broker, s.err
	}
	if s.dir, s.err = os.MkdirTemp("", "kafkatest-"); s.err != nil {
		return nil, s.err
	}
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	s.broker, s.err = New(ctx, os.Getenv(libsEnv), s.dir, Config{})
	return s.broker, s.err
}

func (s *sharedBroker) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broker != nil {
		s.broker.Kill()
	}
	if s.dir != "" {
		_ = os.RemoveAll(s.dir)
	}
}

func absent(t testing.TB, remedy string) {
	t.Helper()
	const what = "this test needs Apache Kafka: run `make kafka` and "
	if os.Getenv("CI") == "true" {
		t.Fatal(what + remedy)
	}
	t.Skip(what + remedy)
}

func notInShort(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: Kafka is not started")
	}
}
