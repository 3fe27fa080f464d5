package main

import (
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/epochfence/epochfence/internal/show"
	"github.com/epochfence/epochfence/internal/suites/showtest"
)

// The workers are this test binary.
func TestMain(m *testing.M) {
	show.Enter(newPayments().Work)
	os.Exit(m.Run())
}

func TestEachPaymentIsChargedOnceAndTheUsualCodeChargesSomeAgain(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it takes seconds")
	}
	t.Parallel()
	s := newPayments()
	s.Workers, s.Partitions, s.Messages, s.Duration, s.Seed, s.Naive = 3, 4, 600, 12*time.Second, 3, true
	s.replicas, s.lease, s.timeout, s.Every = 1, 2*time.Second, 500*time.Millisecond, 4*time.Second
	cs := showtest.Exact(t, s)
	if v := cs[0].Side.(*side).verdict; v.Charges.Effects != s.Messages || v.Ledger.Effects != s.Messages {
		t.Errorf("fenced: %+v", v)
	}
	if cs[0].Crew.Outcomes(show.Refused) == 0 {
		t.Error("the gateway refused no request of a worker that was frozen")
	}
	if cs[0].Crew.Outcomes(show.Stale) == 0 {
		t.Error("the ledger refused no commit of a worker that was frozen")
	}
	if v := cs[1].Side.(*side).verdict; v.Charges.Doubled < 10 || v.Ledger.Doubled == 0 || v.Overpaid == 0 {
		t.Errorf("baseline: %+v; want what was not answered charged again, and what was in hand written again", v)
	}
}

func TestAnInterruptStopsAllProcessesAndLeavesNothing(t *testing.T) {
	showtest.Interrupted(t, newPayments(), "payments-*-fenced-gateway.db", "charges", "-messages", "100000")
}

func TestWrongFlagsOfPaymentsAreRefusedWithWhatIsWanted(t *testing.T) {
	showtest.Refused(t, show.StatusUsage, func() show.Show { return newPayments() }, map[string]string{
		"-nats localhost":                    "-nats: want URLs such as nats://127.0.0.1:4222",
		"-nats nats://":                      "-nats: want URLs",
		"-nats nats://a:4222,,nats://b:4222": "-nats: want URLs",
		"-nats ftp://u:secret@a:4222":        "-nats: want URLs",
		"-nats nats://u:secret@a:port":       "the URL cannot be parsed",
		"-replicas 6":                        "-replicas is 6; want 1 to 5",
		"-replicas 3":                        "name a cluster with -nats",
		"-messages 20":                       "-messages is 20; want 400 to 20000000",
		"-brokers a:9092":                    "not defined",
	})
}

func TestGoodFlagsOfPayments(t *testing.T) {
	for args, want := range map[string]struct{ duration, every time.Duration }{
		"": {24 * time.Second, 4 * time.Second},
		"-nats nats://a:1,tls://b:2 -replicas 3 -database postgres://u:p@h/d -messages 500000": {333 * time.Second, 10 * time.Second},
	} {
		p := newPayments()
		if err := show.Parse(p, strings.Fields(args), io.Discard); err != nil || p.Duration != want.duration || p.Every != want.every {
			t.Errorf("%q: %+v, %v", args, p, err)
		}
	}
}

func TestServicesThatDoNotAnswerAreSaidClearlyAndSoon(t *testing.T) {
	plain, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true})
	if err != nil {
		t.Fatal(err)
	}
	plain.Start()
	t.Cleanup(func() { plain.Shutdown(); plain.WaitForShutdown() })
	if !plain.ReadyForConnections(patient) {
		t.Fatal("the server is not ready")
	}
	mute := showtest.Mute(t)
	showtest.Refused(t, show.StatusNot, func() show.Show { return newPayments() }, map[string]string{
		"-nats " + plain.ClientURL():                                           "nats-server -js",
		"-nats nats://u:secret@" + mute:                                        "cannot reach NATS",
		"-nats nats://u:secret@127.0.0.1":                                      "cannot reach NATS",
		"-database postgres://nobody:secret@" + mute + "/none?sslmode=disable": "timeout",
	})
}
