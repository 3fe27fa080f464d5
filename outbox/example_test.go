package outbox_test

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/memsource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/outbox"
	"github.com/epochfence/epochfence/outbox/httpfence"
	"github.com/epochfence/epochfence/outbox/sqloutbox"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

// A handler that records a payment and leaves the charge in the outbox, and a
// relay that records what the gateway answered.
func Example() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	dir, err := os.MkdirTemp("", "outbox")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)

	// The gateway, as package httpfence shows it; here with a store in memory.
	gateway := httptest.NewServer(httpfence.Handler(httpfence.NewMemory(),
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			amount, _ := io.ReadAll(r.Body)
			fmt.Printf("gateway: %s charged to %s\n", amount, r.Header.Get(httpfence.ScopeHeader))
			_, _ = fmt.Fprintf(w, "receipt for %s", amount)
		}), httpfence.Options{}))
	defer gateway.Close()

	db, err := sql.Open("sqlite", "file:"+filepath.Join(dir, "ledger.db")+"?_pragma=journal_mode(WAL)")
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	if _, err := db.ExecContext(ctx, `CREATE TABLE payments (account TEXT, amount TEXT, receipt TEXT)`); err != nil {
		log.Fatal(err)
	}
	if err := sqlsink.Migrate(ctx, db, sqlsink.SQLite, sqlsink.Options{}); err != nil {
		log.Fatal(err)
	}
	sink, err := sqlsink.Open(ctx, db, sqlsink.SQLite, sqlsink.Options{})
	if err != nil {
		log.Fatal(err)
	}
	store, err := sqloutbox.Open[*sqlsink.Tx](ctx, db, sqloutbox.SQLite, sqloutbox.Options{})
	if err != nil {
		log.Fatal(err)
	}

	box, err := outbox.New(store, outbox.Options[*sqlsink.Tx]{

		OnAnswer: func(ctx context.Context, tx *sqlsink.Tx, e outbox.Sent, a outbox.Answer) error {
			_, err := tx.ExecContext(ctx, `UPDATE payments SET receipt = ? WHERE account = ?`, string(a.Body), e.Scope)
			return err
		},
		Observe: func(e outbox.Event) {
			if e.Kind == outbox.Delivered {
				stop() // the one entry of this example
			}
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	pay := func(ctx context.Context, tx *sqlsink.Tx, m consumer.Message, _ epoch.Epoch) error {
		account := string(m.Key)
		if _, err := tx.ExecContext(ctx, `INSERT INTO payments (account, amount) VALUES (?, ?)`, account, string(m.Value)); err != nil {
			return err
		}
		return box.Add(ctx, tx, m, outbox.Entry{Key: account, Scope: account, URL: gateway.URL + "/charges", Body: m.Value})
	}

	topic := memsource.New("payments", 4)
	topic.Send("account/17", "12.50")
	err = consumer.Run(ctx, topic.Member("worker"), sink, consumer.Each(pay).Background(box.Relay), consumer.Options{
		Logger: slog.New(slog.DiscardHandler),
	})
	fmt.Println(err)

	var account, receipt string
	err = db.QueryRow(`SELECT account, receipt FROM payments`).Scan(&account, &receipt)
	fmt.Println(err, account, receipt)
	// Output:
	// gateway: 12.50 charged to account/17
	// <nil>
	// <nil> account/17 receipt for 12.50
}
