package e2e_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/memsource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/servers/pgtest"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

// 256 messages together need more locks than the server has, which PostgreSQL
// refuses with 53200. Each of them alone does not.
func TestMessagesThatTogetherExhaustTheLockTableAreApplied(t *testing.T) {
	t.Parallel()
	db := pgtest.StartServer(t, pgtest.Options{NoFsync: true, Settings: map[string]string{
		"max_locks_per_transaction": "10", "max_connections": "20",
	}}).Database(t)
	d := postgresOn(t, db)
	d.exec("create table applied (n int primary key)")
	d.exec("grant insert on applied to " + d.role)
	d.granted()
	refused := d.applyAll(pgsink.Options{}, 256, func(ctx context.Context, tx pgsink.Tx, m consumer.Message) error {
		_, err := tx.Exec(ctx, "select pg_advisory_xact_lock($1, i) from generate_series(1, 20) i", m.Offset)
		if err == nil {
			_, err = tx.Exec(ctx, "insert into applied values ($1)", m.Offset)
		}
		return err
	})
	if refused == 0 {
		t.Error("nothing was refused: the lock table has room for all")
	}
}

// Under REPEATABLE READ a transaction is refused, with 40001, if another has changed
// a row since it began. The more messages it has, the surer it is.
func TestMessagesUnderRepeatableReadBesideAnotherWriterAreApplied(t *testing.T) {
	t.Parallel()
	d := newPostgres(t)
	d.exec("create table stock (item int primary key, n int not null)")
	d.exec("insert into stock select i, 0 from generate_series(0, 99) i")
	d.exec("create table applied (n int primary key)")
	d.exec("grant select, update, insert on stock, applied to " + d.role)
	d.granted()
	ctx, stop := context.WithCancel(t.Context())
	writing := make(chan struct{})
	other := newPool(t, d.url)
	go func() { // as fast as it can, around what it finds locked
		defer close(writing)
		for item := 0; ctx.Err() == nil; item = (item + 1) % 100 {
			_, _ = other.Exec(ctx, "update stock set n = n + 1 where item = (select item from stock where item = $1 for update skip locked)", item)
		}
	}()
	defer func() { stop(); <-writing }()
	early := true
	refused := d.applyAll(pgsink.Options{Isolation: pgx.RepeatableRead}, 600, func(ctx context.Context, tx pgsink.Tx, m consumer.Message) error {
		_, err := tx.Exec(ctx, "update stock set n = n + 1 where item = $1", m.Offset%100)
		if err == nil {
			_, err = tx.Exec(ctx, "insert into applied values ($1)", m.Offset)
		}
		if early && err == nil { // the writer may not get a turn while this transaction continues
			early = false
			_, err = other.Exec(ctx, "update stock set n = n + 1 where item = 99")
		}
		return err
	})
	if refused == 0 {
		t.Error("nothing was refused: nobody was in the way")
	}
}

// applyAll runs a consumer with the zero options until so many messages of one
// partition are applied, and returns how often the handler was called again.
func (d *onPostgres) applyAll(o pgsink.Options, messages int, handle func(context.Context, pgsink.Tx, consumer.Message) error) (refused int) {
	t := d.TB
	t.Helper()
	sink, err := pgsink.Open(t.Context(), newPool(t, d.url), o)
	if err != nil {
		t.Fatal(err)
	}
	log := memsource.New("stock", 1)
	for n := range messages {
		log.Append(0, fmt.Sprint(n))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	tried, advanced := 0, 0
	err = consumer.Run(log.UntilApplied(ctx), log.Member("a"), sink,
		consumer.Each(func(ctx context.Context, tx pgsink.Tx, m consumer.Message, _ epoch.Epoch) error {
			tried++
			return handle(ctx, tx, m)
		}).OnFailure(func(_ context.Context, _ pgsink.Tx, m consumer.Message, _ epoch.Epoch, cause error) error {
			t.Errorf("message %d is blamed for %v", m.Offset, cause)
			return nil
		}),
		consumer.Options{
			Logger: slog.New(slog.DiscardHandler),
			Observe: func(e consumer.Event) {
				switch e := e.(type) {
				case consumer.Advanced:
					advanced += e.Messages
				case consumer.Halted:
					t.Logf("halted at %d: %v", e.Next, e.Err)
				}
			},
		})
	if err != nil || ctx.Err() != nil {
		t.Fatalf("%v, %v", err, ctx.Err())
	}
	if advanced != messages {
		t.Errorf("%d messages applied, want %d", advanced, messages)
	}
	var rows int
	if err := d.admin.QueryRow(t.Context(), "select count(*) from applied").Scan(&rows); err != nil || rows != messages {
		t.Errorf("%d rows, %v; want one for each message", rows, err)
	}
	return tried - messages
}
