package outbox_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/memsource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/outbox"
	"github.com/epochfence/epochfence/outbox/httpfence"

	_ "github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite"
)

const (
	accounts   = 12
	partitions = 4
)

// TestEveryEntryIsAppliedOnceAndInOrderOfItsKey is all of it together: a source
// that takes partitions away unannounced, relays that continue as zombies,
// transactions in doubt, a network that loses and repeats, and a receiver that fails.
func TestEveryEntryIsAppliedOnceAndInOrderOfItsKey(t *testing.T) {
	t.Run("SQLite", func(t *testing.T) { endToEnd(t, sqliteLedger(t)) })
	t.Run("PostgreSQL", func(t *testing.T) { endToEnd(t, postgresLedger(t)) })
	t.Run("a store", func(t *testing.T) { endToEnd(t, storeLedger(t)) })
}

func endToEnd[TX any](t *testing.T, l *ledger[TX]) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var faults atomic.Bool
	faults.Store(true)
	var doubts, outcomes [10]atomic.Int64

	// The receiver, with a database of its own.
	gateway := sqliteFile(t, "gateway.db")
	must(t, func() error {
		_, err := gateway.ExecContext(ctx, `CREATE TABLE charges (n INTEGER PRIMARY KEY AUTOINCREMENT, account TEXT, payment TEXT, epoch INTEGER)`)
		return err
	})
	must(t, func() error { return httpfence.Migrate(ctx, gateway, httpfence.SQLite, httpfence.SQLOptions{}) })
	fence, err := httpfence.OpenSQL(ctx, gateway, httpfence.SQLite, httpfence.SQLOptions{})
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewUnstartedServer(httpfence.Handler(fence, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		c, _ := httpfence.CallOf(req.Context())
		payment, err := io.ReadAll(req.Body)
		if err == nil {
			_, err = httpfence.Tx(req.Context()).ExecContext(req.Context(),
				`INSERT INTO charges (account, payment, epoch) VALUES (?, ?, ?)`, c.Scope, string(payment), int64(c.Epoch))
		}
		switch {
		case err != nil || faults.Load() && rand.IntN(15) == 0:
			w.WriteHeader(http.StatusInternalServerError)
		case faults.Load() && rand.IntN(15) == 0:
			panic(http.ErrAbortHandler)
		}
	}), httpfence.Options{
		Observe: func(e httpfence.Event) { outcomes[e.Outcome].Add(1) },
		Logger:  slog.New(slog.DiscardHandler),
	}))
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	srv.Start()
	defer srv.Close()

	// The senders: two processes on one group.
	topic := memsource.New("payments", partitions)
	group := topic.Group("billing")
	group.SetTerm(5 * time.Second)
	group.Script()
	net := &network{RoundTripper: srv.Client().Transport, on: &faults}
	var running sync.WaitGroup
	var members []*memsource.Member
	runCtx, stop := context.WithCancel(ctx)
	defer running.Wait()
	defer stop()
	for _, name := range []string{"a", "b"} {
		m := group.Member(name)
		members = append(members, m)
		box, err := outbox.New(l.Store, outbox.Options[TX]{
			Client: &http.Client{Transport: net}, RequestTimeout: 2 * time.Second,
			RetryMin: time.Millisecond, RetryMax: 50 * time.Millisecond, Logger: slog.New(slog.DiscardHandler),
			OnAnswer: func(ctx context.Context, tx TX, e outbox.Sent, _ outbox.Answer) error {
				return l.insert(ctx, tx, e.Message(), "answers", string(e.Body))
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		handle := func(ctx context.Context, tx TX, m consumer.Message, _ epoch.Epoch) error {
			account := string(m.Key)
			if err := l.insert(ctx, tx, m, "payments", string(m.Value)); err != nil {
				return err
			}
			return box.Add(ctx, tx, m, outbox.Entry{Key: account, Scope: account, URL: srv.URL + "/charges", Body: m.Value})
		}
		running.Go(func() {
			sink := doubtful[TX]{l.Sink, &faults, &doubts[0]}
			if l.process != nil {
				sink.Sink = l.process()
			}
			err := consumer.Run(runCtx, m, sink, consumer.Each(handle).Background(box.Relay), l.options())
			if err != nil {
				t.Errorf("member %s: %v", name, err)
			}
		})
	}

	// The history: messages come while partitions change hands.
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	await := func(what string, ok func() bool) {
		t.Helper()
		for !ok() {
			select {
			case <-tick.C:
			case <-ctx.Done():
				t.Fatalf("not done in time: %s: %d doubts, %d applied, %d undone, %d replayed, %d stale", what, doubts[0].Load(),
					outcomes[httpfence.Applied].Load(), outcomes[httpfence.Undone].Load(), outcomes[httpfence.Replayed].Load(), outcomes[httpfence.Stale].Load())
			}
		}
	}
	shown := func() bool { // each kind of fault, a few times
		for _, o := range []httpfence.Outcome{httpfence.Undone, httpfence.Replayed, httpfence.Stale} {
			if outcomes[o].Load() < 3 {
				return false
			}
		}
		return doubts[0].Load() > 0
	}
	for n := range int32(partitions) {
		group.Grant(members[n%2], "payments", n)
	}
	sent := 0
	for round := 0; round < 20 || !shown(); round++ {
		for a := range accounts {
			account := fmt.Sprintf("account-%d", a)
			topic.Send(account, fmt.Sprintf("%s/%04d", account, round))
			sent++
		}
		before := outcomes[httpfence.Applied].Load()
		group.Grant(members[rand.IntN(2)], "payments", int32(round)%partitions)
		await("some charges", func() bool { return outcomes[httpfence.Applied].Load() >= before+accounts/3 })
		net.deliver(partitions) // by then each of them has changed hands
	}
	faults.Store(false)
	net.deliver(0)
	// Nobody is told of what was lost, and no partition is handed over for good:
	// whoever is a zombie has to find out, and whoever is not has to continue.
	stalled := time.NewTimer(time.Minute)
	defer stalled.Stop()
	last := -1
	await("all charges", func() bool {
		left := l.left(t)
		if left != last {
			last = left
			stalled.Reset(time.Minute)
		}
		select {
		case <-stalled.C:
			t.Fatalf("nothing was delivered for a minute: %d of %d payments made, %d entries left", len(l.table(t, "payments")), sent, left)
		default:
		}
		return left == 0 && len(l.table(t, "payments")) == sent
	})

	// The verdict, from what the receiver has written.
	var charges []string
	rows, err := gateway.QueryContext(ctx, `SELECT account, payment, epoch FROM charges ORDER BY n`)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = rows.Close() }()
	highest := map[string]int64{}
	latest := map[string]string{}
	for rows.Next() {
		var account, payment string
		var e int64
		must(t, func() error { return rows.Scan(&account, &payment, &e) })
		if e < highest[account] {
			t.Errorf("%s charged under epoch %d after %d", payment, e, highest[account])
		}
		if payment <= latest[account] {
			t.Errorf("%s charged after %s", payment, latest[account])
		}
		highest[account], latest[account] = e, payment
		charges = append(charges, payment)
	}
	must(t, rows.Err)
	slices.Sort(charges)
	if n := len(slices.Compact(slices.Clone(charges))); len(charges) != sent || n != len(charges) {
		t.Errorf("%d charges of %d payments, want one of each of %d", len(charges), n, sent)
	}
	for _, table := range []string{"payments", "answers"} {
		all := l.table(t, table)
		slices.Sort(all)
		if different := slices.Compact(slices.Clone(all)); len(all) != sent || len(different) != sent {
			t.Errorf("%s: %d rows, %d different, want %d", table, len(all), len(different), sent)
		}
	}
	t.Logf("%d commits in doubt; the receiver applied %d, undid %d, replayed %d and refused %d as stale",
		doubts[0].Load(), outcomes[httpfence.Applied].Load(), outcomes[httpfence.Undone].Load(),
		outcomes[httpfence.Replayed].Load(), outcomes[httpfence.Stale].Load())
}
