package main

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

// The workers and the gateways are this test binary.
func TestMain(m *testing.M) {
	show.Enter(newPayments().Work)
	os.Exit(m.Run())
}

func short() *payments {
	p := newPayments()
	p.Workers, p.Partitions, p.Messages, p.Duration, p.Seed, p.Naive = 3, 4, 600, 12*time.Second, 3, true
	p.replicas, p.lease, p.timeout, p.Every = 1, 2*time.Second, 500*time.Millisecond, 4*time.Second
	return p
}

func TestEachPaymentIsChargedOnceAndTheUsualCodeChargesSomeAgain(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it takes seconds")
	}
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	s := short()
	var out bytes.Buffer
	cs, err := show.Play(ctx, s, show.NewBoard(&out))
	if err != nil {
		t.Fatal(err, out.String())
	}
	status := show.Conclude(show.NewBoard(&out), cs)
	for _, c := range cs {
		if c.Err != nil {
			t.Errorf("%s: %v", c.Name, c.Err)
		}
	}
	if v := cs[0].Side.(*side).verdict; status != show.StatusExact || v.Charges.Effects != s.Messages || v.Ledger.Effects != s.Messages {
		t.Errorf("fenced: status %d, %+v", status, v)
	}
	if cs[0].Crew.Outcomes(show.Refused) == 0 {
		t.Error("the gateway refused no request of a worker that was frozen")
	}
	if cs[0].Crew.Outcomes(show.Stale) == 0 {
		t.Error("the ledger refused no commit of a worker that was frozen")
	}
	if v := cs[1].Side.(*side).verdict; cs[1].Exact || v.Charges.Doubled < 10 || v.Ledger.Doubled == 0 || v.Overpaid == 0 {
		t.Errorf("baseline: %+v; want what was not answered charged again, and what was in hand written again", v)
	}
	if t.Failed() {
		t.Log(out.String())
	}
	if strings.Contains(out.String(), "\x1b") {
		t.Error("escape sequences where there is no terminal")
	}
}

func TestAnInterruptStopsAllProcessesAndLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	ctx, interrupt := context.WithTimeout(t.Context(), 2*time.Minute)
	defer interrupt()
	var out, errOut bytes.Buffer
	go func() {
		defer interrupt()
		awaitCharge(ctx, filepath.Join(dir, "*", "payments-*-fenced-gateway.db"))
	}()
	if status := show.Run(ctx, newPayments(), []string{"-messages", "100000"}, &out, &errOut); status != show.StatusHalted {
		t.Errorf("status %d: %s%s", status, out.String(), errOut.String())
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) > 0 {
		t.Errorf("left in the temporary directory: %v, %v", left, err)
	}
}

// awaitCharge returns once the gateway whose file matches has charged. It leaves the file alone until
// there is a write-ahead log: of two that turn that on at a time SQLite refuses one, without waiting.
func awaitCharge(ctx context.Context, pattern string) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for charges := 0; charges == 0 && ctx.Err() == nil; <-tick.C {
		found, _ := filepath.Glob(pattern + "-wal")
		if len(found) == 0 {
			continue
		}
		db, err := show.OpenDatabase(ctx, strings.TrimSuffix(found[0], "-wal"), "")
		if err != nil {
			continue
		}
		charges, _ = db.Count(ctx, `SELECT count(*) FROM charges`) // until there is a table
		db.Close()
	}
}

func TestServicesThatDoNotAnswerAreSaidClearlyAndSoon(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0") // and says nothing
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	mute := l.Addr().String()
	for args, want := range map[string]string{
		"-nats nats://u:secret@" + mute:                                        "cannot reach NATS",
		"-nats nats://u:secret@127.0.0.1":                                      "cannot reach NATS",
		"-database postgres://nobody:secret@" + mute + "/none?sslmode=disable": "timeout",
		"-database postgres://nobody:secret@127.0.0.1:1/none?sslmode=disable":  "connection refused",
	} {
		t.Run(args, func(t *testing.T) {
			t.Parallel()
			var out, errOut bytes.Buffer
			began := time.Now()
			status := show.Run(t.Context(), newPayments(), strings.Fields(args), &out, &errOut)
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

func TestAServerWithoutJetStreamIsSaidClearly(t *testing.T) {
	t.Parallel()
	s := startPlainServer(t)
	var out, errOut bytes.Buffer
	status := show.Run(t.Context(), newPayments(), []string{"-nats", s}, &out, &errOut)
	if all := out.String() + errOut.String(); status != show.StatusNot || !strings.Contains(all, "nats-server -js") {
		t.Errorf("status %d, output %s", status, all)
	}
}
