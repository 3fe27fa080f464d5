package docs

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/memsource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/outbox"
	"github.com/epochfence/epochfence/outbox/httpfence"
	"github.com/epochfence/epochfence/outbox/pgoutbox"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

// payments relays what its handler leaves in the outbox.
func payments(ctx context.Context, pool *pgxpool.Pool, source consumer.Source, gateway string) error {
	sink, err := pgsink.Open(ctx, pool, pgsink.Options{})
	if err != nil {
		return err
	}
	store, err := pgoutbox.Open[pgsink.Tx](ctx, pool, pgoutbox.Options{})
	if err != nil {
		return err
	}
	box, err := outbox.New(store, outbox.Options[pgsink.Tx]{OnAnswer: charged, OnRefused: refused})
	if err != nil {
		return err
	}
	pay := func(ctx context.Context, tx pgsink.Tx, m consumer.Message, _ epoch.Epoch) error {
		id, amount, _ := strings.Cut(string(m.Value), " ")
		account := string(m.Key)
		if _, err := tx.Exec(ctx, `insert into payment (id, account, amount) values ($1, $2, $3) on conflict do nothing`, id, account, amount); err != nil {
			return err
		}
		return box.Add(ctx, tx, m, outbox.Entry{
			Key:            account, // entries of one key are sent in order
			Scope:          account, // of which the receiver keeps the highest epoch
			IdempotencyKey: id,      // which the receiver charges once
			URL:            gateway + "/charges",
			Body:           []byte(amount),
		})
	}
	return consumer.Run(ctx, source, sink, consumer.Each(pay).Background(box.Relay), consumer.Options{})
}

// charged runs in the fenced transaction that deletes the entry.
func charged(ctx context.Context, tx pgsink.Tx, e outbox.Sent, a outbox.Answer) error {
	_, err := tx.Exec(ctx, `update payment set receipt = $2 where id = $1`, e.IdempotencyKey, string(a.Body))
	return err
}

// refused is called for each answer that is neither 2xx nor one after which the relay sends again: 400 and 402, but also
// 401, 404 and redirects. If it returns an error, the entry stays.
func refused(ctx context.Context, tx pgsink.Tx, e outbox.Sent, a outbox.Answer) error {
	_, err := tx.Exec(ctx, `insert into refused (payment, status, reason) values ($1, $2, $3)`, e.IdempotencyKey, a.Status, string(a.Body))
	return err
}

// gateway is the receiver, with a database of its own.
func gateway(ctx context.Context, db *sql.DB) (http.Handler, error) {
	if err := httpfence.Migrate(ctx, db, httpfence.PostgreSQL, httpfence.SQLOptions{}); err != nil {
		return nil, err
	}
	store, err := httpfence.OpenSQL(ctx, db, httpfence.PostgreSQL, httpfence.SQLOptions{})
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("POST /charges", httpfence.Handler(store, http.HandlerFunc(charge), httpfence.Options{}))
	return mux, nil
}

// charge is called for an idempotency key until its answer is stored. It is not called for a process whose
// successor has sent a request in the scope. What it writes through httpfence.Tx commits with its answer.
func charge(w http.ResponseWriter, r *http.Request) {
	amount, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, "unreadable", http.StatusBadRequest)
		return
	}
	call, _ := httpfence.CallOf(r.Context())
	_, err = httpfence.Tx(r.Context()).ExecContext(r.Context(),
		`insert into charge (account, amount) values ($1, $2)`, call.Scope, string(amount))
	if err != nil {
		http.Error(w, "try again", http.StatusServiceUnavailable) // it will be sent again
		return
	}
	_, _ = fmt.Fprintf(w, "charged %s to %s", amount, call.Scope)
}

// expire is background work: it goes with a partition and not with a message. It is
// called under each claim of a partition, and returns when its context is cancelled.
func expire(ctx context.Context, b consumer.Background[pgsink.Tx]) {
	again := time.NewTicker(time.Second)
	defer again.Stop()
	for {
		err := b.Do(ctx, func(ctx context.Context, tx pgsink.Tx) error {
			_, err := tx.Exec(ctx, `delete from reservation where partition = $1 and expires_at < now()`, b.Partition().Number)
			return err
		})
		if err != nil && ctx.Err() == nil {
			slog.Warn("expire reservations", "partition", b.Partition(), "err", err)
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return
		}
	}
}

func TestEffectsOutsideAreSentOnceAsTheGuideHasIt(t *testing.T) {
	pool := database(t, "payments.sql")
	db := stdlib.OpenDBFromPool(pool)
	t.Cleanup(func() { _ = db.Close() })
	handler, err := gateway(t.Context(), db)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)

	topic := memsource.New("payments", 2)
	topic.Send("account/17", "p1 12.50")
	topic.Send("account/17", "p2 7.00")
	topic.Send("account/4", "p3 3.00")
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- payments(ctx, pool, topic.Group("payments").Member("a"), server.URL) }()
	await(t, pool, `select string_agg(id || ' ' || receipt, ', ' order by id) from payment`,
		"p1 charged 12.50 to account/17, p2 charged 7.00 to account/17, p3 charged 3.00 to account/4")
	await(t, pool, `select string_agg(account || ' ' || amount, ', ' order by account, id) from charge`, "account/17 12.50, account/17 7.00, account/4 3.00")
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestBackgroundWorkRunsAsTheGuideHasIt(t *testing.T) {
	pool := database(t, "payments.sql")
	sink, err := pgsink.Open(t.Context(), pool, pgsink.Options{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = pool.Exec(t.Context(), `insert into reservation values (0, 'chair', now() - interval '1 minute'), (0, 'table', now() + interval '1 day'),
		(1, 'of another partition', now() - interval '1 minute')`)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	reserve := func(context.Context, pgsink.Tx, consumer.Message, epoch.Epoch) error { return nil }
	go func() {
		ended <- consumer.Run(ctx, memsource.New("orders", 1).Member("a"), sink, consumer.Each(reserve).Background(expire), consumer.Options{})
	}()
	await(t, pool, `select string_agg(item, ', ' order by item) from reservation`, "of another partition, table")
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestAReceiverWithOneStatementRefusesLowerEpochs(t *testing.T) {
	pool := database(t, "payments.sql")
	for _, call := range []struct {
		epoch   epoch.Epoch
		setting string
		taken   bool
	}{{7, "low", true}, {8, "high", true}, {7, "zombie", false}, {8, "higher", true}} {
		tag, err := pool.Exec(t.Context(), script(t, "receiver.sql"), "valve-1", call.epoch, call.setting)
		if err != nil || (tag.RowsAffected() == 1) != call.taken {
			t.Errorf("under epoch %d: %v, %v; want taken to be %t", call.epoch, tag, err, call.taken)
		}
	}
	await(t, pool, `select setting from device`, "higher")
}
