package sqloutbox_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"log/slog"
	"os"
	"path/filepath"

	_ "modernc.org/sqlite"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/memsource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/outbox"
	"github.com/epochfence/epochfence/outbox/sqloutbox"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

// An outbox in the database of the sink: what the handler writes and the request
// that it adds commit together. With Background(box.Relay) behind consumer.Each it
// would also be sent.
func Example() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "sqloutbox")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	db, err := sql.Open("sqlite", "file:"+filepath.Join(dir, "app.db")+"?_pragma=journal_mode(WAL)")
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
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
	box, err := outbox.New(store, outbox.Options[*sqlsink.Tx]{})
	if err != nil {
		log.Fatal(err)
	}

	pay := func(ctx context.Context, tx *sqlsink.Tx, m consumer.Message, _ epoch.Epoch) error {
		account := string(m.Key)
		return box.Add(ctx, tx, m, outbox.Entry{Key: account, Scope: account, URL: "https://gateway.example/charges", Body: m.Value})
	}
	topic := memsource.New("payments", 4)
	topic.Send("account/17", "12.50")
	err = consumer.Run(topic.UntilApplied(ctx), topic.Member("worker"), sink, consumer.Each(pay),
		consumer.Options{Logger: slog.New(slog.DiscardHandler)})
	fmt.Println(err)

	var scope, body string
	err = db.QueryRowContext(ctx, `SELECT scope, body FROM epochfence_outbox_entry`).Scan(&scope, &body)
	fmt.Println(scope, body, err)
	// Output:
	// <nil>
	// account/17 12.50 <nil>
}
