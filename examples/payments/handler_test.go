package main

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/consumertest"
	"github.com/epochfence/epochfence/consumer/consumertest/pgtables"
	"github.com/epochfence/epochfence/consumer/memsource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/servers/pgtest"
	"github.com/epochfence/epochfence/internal/show"
	"github.com/epochfence/epochfence/outbox"
	"github.com/epochfence/epochfence/outbox/pgoutbox"
	"github.com/epochfence/epochfence/outbox/sqloutbox"
	"github.com/epochfence/epochfence/sinks/pgsink"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

// newTestLedger is what the show's parent makes: in SQLite, or at a URL.
func newTestLedger(t *testing.T, url string) *show.Database {
	t.Helper()
	d, err := show.NewDatabase(t.Context(), &show.Settings{Database: url, Dir: t.TempDir()}, "payments-test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Drop(); err != nil {
			t.Error(err)
		}
	})
	if err := makeTables(t.Context(), &show.Column{DB: d}); err != nil {
		t.Fatal(err)
	}
	return d
}

// testLog holds so many payments of testSeed on two partitions, by account.
func testLog(t *testing.T, n int) (*memsource.Log, []int64) {
	t.Helper()
	log := memsource.New("payments", 2)
	sent := make([]int64, n)
	for i, m := range testMessages(t, n) {
		sent[i] = int64(log.AppendMessages(m.Partition.Number, m))
	}
	return log, sent
}

func testMessages(t *testing.T, n int) []consumer.Message {
	t.Helper()
	ms := make([]consumer.Message, n)
	for i := range ms {
		p := testPayment(i)
		value, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		ms[i] = consumer.Message{Partition: epoch.Partition{Number: int32(p.Account[len(p.Account)-1] % 2)}, Value: value}
	}
	return ms
}

// untilCharged returns a context that ends once n payments are charged.
func untilCharged(t *testing.T, d *show.Database, n int) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	go func() {
		defer cancel()
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for charged := 0; charged < n && ctx.Err() == nil; <-tick.C {
			_ = d.QueryRowContext(ctx, `SELECT count(charge) FROM payments`).Scan(&charged)
		}
	}()
	return ctx
}

const testWorker = "worker 7"

// hasPaymentsChargedOnce runs a consumer with an outbox, and compares its ledger and the charges of its
// gateway with the messages.
func hasPaymentsChargedOnce[TX any](t *testing.T, d *show.Database, tables consumertest.Database, sink epoch.Sink[TX], store outbox.Store[TX],
	onAnswer func(context.Context, TX, outbox.Sent, outbox.Answer) error, handlers func(*outbox.Box[TX], config) consumer.Handlers[TX],
) {
	t.Helper()
	url, charges := startGateway(t, true, 10)
	log, sent := testLog(t, 50)
	box, err := outbox.New(store, outbox.Options[TX]{OnAnswer: onAnswer, RequestTimeout: 200 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	h := handlers(box, config{Gateway: url, Worker: testWorker}).Background(box.Relay)
	consumertest.Check(t, sink, h, testMessages(t, 20), tables, consumertest.Options{})
	if err := consumer.Run(untilCharged(t, d, len(sent)), log.Group("payments").Member(testWorker), sink, h, consumer.Options{}); err != nil {
		t.Fatal(err)
	}
	v, err := judge(t.Context(), d, charges, testSeed, testAccounts, sent)
	if err != nil || !v.exact(true) {
		t.Errorf("%+v, %v", v, err)
	}
	if n, err := d.Count(t.Context(), `SELECT count(*) FROM payments WHERE epoch IS NULL OR charge IS NULL OR worker <> $1`, testWorker); n > 0 || err != nil {
		t.Errorf("%d lines do not say under which epoch, which charge or who; %v", n, err)
	}
}

func TestTheSQLiteHandlerHasEachPaymentChargedOnce(t *testing.T) {
	t.Parallel()
	d := newTestLedger(t, "")
	sink, err := sqlsink.Open(t.Context(), d.DB, sqlsink.SQLite, sqlsink.Options{})
	if err != nil {
		t.Fatal(err)
	}
	store, err := sqloutbox.Open[*sqlsink.Tx](t.Context(), d.DB, sqloutbox.SQLite, sqloutbox.Options{})
	if err != nil {
		t.Fatal(err)
	}
	hasPaymentsChargedOnce(t, d, consumertest.SQLite(d.DB), sink, store, charged, func(box *outbox.Box[*sqlsink.Tx], c config) consumer.Handlers[*sqlsink.Tx] {
		return consumer.Each(pay(box, c))
	})
}

func TestThePostgresHandlerHasEachPaymentChargedOnce(t *testing.T) {
	t.Parallel()
	d := newTestLedger(t, pgtest.Start(t).URL)
	sink, err := pgsink.Open(t.Context(), d.Pool, pgsink.Options{Schema: d.Schema})
	if err != nil {
		t.Fatal(err)
	}
	store, err := pgoutbox.Open[pgsink.Tx](t.Context(), d.Pool, pgoutbox.Options{Schema: d.Schema})
	if err != nil {
		t.Fatal(err)
	}
	hasPaymentsChargedOnce(t, d, pgtables.Of(d.Pool), sink, store, chargedInPostgres, func(box *outbox.Box[pgsink.Tx], c config) consumer.Handlers[pgsink.Tx] {
		return consumer.Batches(payAll(box, c))
	})
}

func TestWhatIsNoPaymentIsRefused(t *testing.T) {
	for _, value := range []string{"", "{", `{"payment":"x"}`, `{"payment":1}`, `{"payment":1,"account":"a","cents":0}`, `{"payment":1,"account":"","cents":5}`} {
		if p, err := parse([]byte(value)); err == nil {
			t.Errorf("%q: %+v", value, p)
		}
	}
}

func TestAReceiptOfAnotherPaymentIsRefused(t *testing.T) {
	for _, body := range []string{"", "{", `{}`, `{"charge":5,"payment":8}`, `{"charge":0,"payment":7}`} {
		if r, err := receipt([]byte(body), paymentName(7)); err == nil {
			t.Errorf("%q: %+v", body, r)
		}
	}
	if r, err := receipt([]byte(`{"charge":5,"payment":7}`), paymentName(7)); err != nil || r.Charge != 5 {
		t.Errorf("%+v, %v", r, err)
	}
}
