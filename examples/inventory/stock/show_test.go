package stock

import (
	"bytes"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/epochfence/epochfence/internal/show"
	"github.com/epochfence/epochfence/internal/suites/showtest"
)

// The workers are this test binary.
func TestMain(m *testing.M) {
	show.Enter(newInventory().Work)
	os.Exit(m.Run())
}

func short() *inventory {
	v := newInventory()
	v.Workers, v.Partitions, v.Messages, v.Duration, v.Seed, v.Naive = 3, 4, 800, 2*time.Second, 3, true
	v.session = 2 * time.Second
	return v
}

func TestTheFencedColumnIsExactAndTheUsualCodeIsNot(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it takes seconds")
	}
	t.Parallel()
	for _, sink := range []string{"", "nats"} {
		t.Run("sink "+sink, func(t *testing.T) {
			t.Parallel()
			s := short()
			s.sink = sink
			cs := showtest.Exact(t, s)
			if v := cs[0].Side.(*side).verdict; v.Effects != s.Messages {
				t.Errorf("fenced: %+v", v)
			}
			if cs[0].Crew.Outcomes(show.Stale) == 0 {
				t.Error("no commit of a worker that was frozen was refused as stale")
			}
			if v := cs[1].Side.(*side).verdict; v.Doubled == 0 {
				t.Errorf("baseline: %+v; nothing was doubled by a freeze and a kill", v)
			}
		})
	}
}

func TestWhatIsPublishedIsExactToo(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it takes seconds")
	}
	t.Parallel()
	s := short()
	s.publish = true
	s.Freezes, s.Kills = []show.Point{show.Publishing}, []show.Point{show.Published}
	cs := showtest.Exact(t, s)
	if f := cs[0].Side.(*side).published; f.Effects != s.Messages || !f.Exact() {
		t.Errorf("fenced: %+v", f)
	}
	if f := cs[1].Side.(*side).published; f.Doubled == 0 || f.Lost > 0 {
		t.Errorf("baseline: %+v; a freeze and a kill doubled nothing", f)
	}
}

func TestAnInterruptStopsEverythingAndLeavesNothing(t *testing.T) {
	showtest.Interrupted(t, newInventory(), "inventory-*-fenced.db", "ledger", "-messages", "100000")
}

func TestWrongFlagsAreRefusedWithWhatIsWanted(t *testing.T) {
	used, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = used.Close() }) // the trials are parallel
	showtest.Refused(t, show.StatusUsage, func() show.Show { return New() }, map[string]string{
		"-http " + used.Addr().String():          "address already in use",
		"-workers 1":                             "-workers is 1; want 2 to 64",
		"-partitions 5000":                       "-partitions is 5000; want 1 to 1000",
		"-messages 99":                           "-messages is 99; want 400 to 20000000",
		"-messages many":                         "parse error",
		"-duration -1s":                          "-duration is -1s; want 0, or 1s and more",
		"-database mysql://u:secret@h/d":         "-database is no postgres:// URL",
		"-database postgres://u:secret@h:port/d": "the URL cannot be parsed",
		"-http 8080":                             "is not host:port, such as :8080",
		"go":                                     `unexpected argument "go"`,
		"-frozen":                                "not defined",
		"-sink redis":                            "-sink: want one of nats (a server in this process), nats://HOST:PORT/BUCKET",
		"-sink nats -database postgres://u:p@h/d": "-sink and -database are both given",
		"-sink nats -publish":                     "-sink and -publish are both given",
	})
}

func TestFlagsHaveDefaultsAndAreExplained(t *testing.T) {
	for args, want := range map[string]time.Duration{"": 24 * time.Second, "-messages 1000000": 125 * time.Second} {
		v := newInventory()
		if err := show.Parse(v, strings.Fields(args), io.Discard); err != nil || v.Duration != want || !v.Naive || v.session != kafkaMinSession {
			t.Errorf("%q: %+v, %v", args, v, err)
		}
	}
	var out bytes.Buffer
	if status := show.Run(t.Context(), New(), []string{"-help"}, &out, &out); status != show.StatusExact {
		t.Errorf("-help: status %d", status)
	}
	for _, name := range []string{"brokers", "database", "workers", "partitions", "messages", "duration", "seed", "naive", "http", "sink", "publish"} {
		if !strings.Contains(out.String(), "  -"+name) {
			t.Errorf("-%s is not explained in\n%s", name, out.String())
		}
	}
}

func TestServicesThatDoNotAnswerAreSaidClearlyAndSoon(t *testing.T) {
	mute := showtest.Mute(t)
	showtest.Refused(t, show.StatusNot, func() show.Show { return New() }, map[string]string{
		"-brokers " + mute:     "-brokers: cannot reach Kafka",
		"-brokers 127.0.0.1:1": "-brokers: cannot reach Kafka",
		"-database postgres://nobody:secret@" + mute + "/none?sslmode=disable": "timeout",
		"-database postgres://nobody:secret@127.0.0.1:1/none?sslmode=disable":  "connection refused",
		"-sink nats://127.0.0.1:1/items":                                       "-sink: ",
	})
}
