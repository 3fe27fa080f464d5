package stock

import (
	"bytes"
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/epochfence/epochfence/internal/show"
)

// The workers are this test binary.
func TestMain(m *testing.M) {
	show.Enter(newInventory(NATS).Work)
	os.Exit(m.Run())
}

func short() *inventory {
	v := newInventory(NATS)
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
			playsExact(t, s)
		})
	}
}

func playsExact(t *testing.T, s *inventory) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var out bytes.Buffer
	b := show.NewBoard(&out)
	cs, err := show.Play(ctx, s, b)
	if err != nil {
		t.Fatal(err, out.String())
	}
	status := show.Conclude(b, cs)
	for _, c := range cs {
		if c.Err != nil {
			t.Errorf("%s: %v", c.Name, c.Err)
		}
	}
	verdict := func(i int) verdict { return cs[i].Side.(*side).verdict }
	if status != show.StatusExact || !cs[0].Exact || verdict(0).Effects != s.Messages {
		t.Errorf("fenced: status %d, %+v", status, verdict(0))
	}
	if cs[0].Crew.Outcomes(show.Stale) == 0 {
		t.Error("no commit of a worker that was frozen was refused as stale")
	}
	if v := verdict(1); cs[1].Exact || v.Doubled == 0 {
		t.Errorf("baseline: %+v; nothing was doubled by a freeze and a kill", v)
	}
	if t.Failed() {
		t.Log(out.String())
	}
	if strings.Contains(out.String(), "\x1b") {
		t.Error("escape sequences where there is no terminal")
	}
}

func TestAnInterruptStopsEverythingAndLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	ctx, interrupt := context.WithTimeout(t.Context(), 2*time.Minute)
	defer interrupt()
	var out, errOut bytes.Buffer
	go func() {
		defer interrupt()
		awaitLedger(ctx, filepath.Join(dir, "*", "inventory-*-fenced.db"))
	}()
	if status := show.Run(ctx, newInventory(), []string{"-messages", "100000"}, &out, &errOut); status != show.StatusHalted {
		t.Errorf("status %d: %s%s", status, out.String(), errOut.String())
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) > 0 {
		t.Errorf("left in the temporary directory: %v, %v", left, err)
	}
}

func TestUnreachableServicesAreSaidClearlyAndSoon(t *testing.T) {
	t.Parallel()
	mute := listenAndSayNothing(t)
	for args, want := range map[string]string{
		"-brokers " + mute: "cannot reach Kafka",
		"-database postgres://nobody:secret@" + mute + "/none?sslmode=disable": "timeout",
		"-brokers 127.0.0.1:1": "cannot reach Kafka",
		"-database postgres://nobody:secret@127.0.0.1:1/none?sslmode=disable": "connection refused",
		"-database postgres://nobody:secret@127.0.0.1:port/none":              "-database: cannot parse",
	} {
		t.Run(args, func(t *testing.T) {
			t.Parallel()
			var out, errOut bytes.Buffer
			began := time.Now()
			status := show.Run(t.Context(), newInventory(), strings.Fields(args), &out, &errOut)
			all := out.String() + errOut.String()
			if status != show.StatusNot || !strings.Contains(all, want) || strings.Contains(all, "secret") {
				t.Errorf("status %d, output %s", status, all)
			}
			if took := time.Since(began); took > 3*show.Reachable {
				t.Errorf("took %v", took)
			}
		})
	}
}

func listenAndSayNothing(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l.Addr().String()
}

// awaitLedger returns once the ledger in the file that matches has a line.
func awaitLedger(ctx context.Context, pattern string) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for lines := 0; lines == 0 && ctx.Err() == nil; <-tick.C {
		found, _ := filepath.Glob(pattern)
		if len(found) == 0 {
			continue
		}
		db, err := show.OpenDatabase(ctx, found[0], "")
		if err != nil {
			continue
		}
		_ = db.QueryRowContext(ctx, `SELECT count(*) FROM ledger`).Scan(&lines) // until there is a table
		db.Close()
	}
}
