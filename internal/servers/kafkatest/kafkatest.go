package kafkatest

import (
	"context"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/epochfence/epochfence/internal/servers/servertest"
)

const (
	libsEnv = "EPOCHFENCE_KAFKA_LIBS"
	addrEnv = "EPOCHFENCE_TEST_KAFKA"

	// startLimit limits one start, which takes about three seconds on an idle machine.
	startLimit = 90 * time.Second

	needed = "this test needs Apache Kafka: run `make kafka` and set "
)

// Libs returns the directory of the broker's jars. Without one it skips t, or fails t if CI=true.
func Libs(t testing.TB) string {
	t.Helper()
	notInShort(t)
	libs := os.Getenv(libsEnv)
	if libs == "" {
		servertest.Absent(t, needed+libsEnv)
	}
	return libs
}

// Start starts a broker for t alone, and ends it with t. It needs [Libs]. If t has failed by then,
// Start adds the end of the broker's log to t's output.
func Start(t testing.TB, c Config) *Broker {
	t.Helper()
	return StartCluster(t, 1, c)[0]
}

// StartCluster starts n brokers as [Start] starts one.
func StartCluster(t testing.TB, n int, c Config) []*Broker {
	t.Helper()
	libs := Libs(t)
	ctx, cancel := context.WithTimeout(t.Context(), startLimit)
	defer cancel()
	all, err := NewCluster(ctx, libs, t.TempDir(), n, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, b := range all {
			if t.Failed() {
				t.Logf("the log of the broker at %s ends with\n%s", b.Addr, b.LogTail())
			}
			b.Kill()
		}
	})
	return all
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
		servertest.Absent(t, needed+libsEnv+", or "+addrEnv+" to the address of a running broker")
	}
	b, err := startShared()
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
	code := m.Run()
	if shared.broker != nil {
		shared.broker.Kill()
	}
	if shared.dir != "" {
		_ = os.RemoveAll(shared.dir)
	}
	return code
}

// shared is the broker of [Shared], once it was started.
var shared struct {
	dir    string
	broker *Broker
}

var startShared = sync.OnceValues(func() (*Broker, error) {
	dir, err := os.MkdirTemp("", "kafkatest-")
	if err != nil {
		return nil, err
	}
	shared.dir = dir
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	shared.broker, err = New(ctx, os.Getenv(libsEnv), dir, Config{})
	return shared.broker, err
})

func notInShort(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: Kafka is not started")
	}
}
