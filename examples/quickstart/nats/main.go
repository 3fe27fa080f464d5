// Command nats is epochfence from NATS JetStream to SQLite in one file, to be copied.
package main

import (
	"cmp"
	"context"
	"database/sql"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	_ "modernc.org/sqlite"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/natssource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

// pay applies one message. Its writes through tx commit together with the position, or not at all.
func pay(ctx context.Context, tx *sqlsink.Tx, m consumer.Message, e epoch.Epoch) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO paid (account, payment) VALUES (?, ?)`, string(m.Key), string(m.Value))
	return err
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	db, err := sql.Open("sqlite", "payments.db?_pragma=journal_mode(wal)&_pragma=busy_timeout(10000)")
	fatal(err)
	fatal(sqlsink.Migrate(ctx, db, sqlsink.SQLite, sqlsink.Options{}))
	_, err = db.ExecContext(ctx, `CREATE TABLE IF NOT EXISTS paid (account TEXT, payment TEXT)`)
	fatal(err)
	sink, err := sqlsink.Open(ctx, db, sqlsink.SQLite, sqlsink.Options{})
	fatal(err)
	server := cmp.Or(os.Getenv("NATS_URL"), nats.DefaultURL)
	conn, err := nats.Connect(server, nats.MaxReconnects(-1))
	if err != nil {
		log.Fatalf("connect to %s: %v; does nats-server -js run there? NATS_URL names another one", server, err)
	}
	js, err := jetstream.New(conn)
	fatal(err)
	_, err = js.CreateStream(ctx, jetstream.StreamConfig{Name: "PAYMENTS", Subjects: []string{"pay.*"}, SubjectTransform: &split})
	fatal(err)
	source, err := natssource.New(natssource.Options{Group: "payments", JetStream: js, Streams: []natssource.Stream{{
		Name: "PAYMENTS", Transform: &natssource.Transform{Source: split.Source, Destination: split.Destination},
	}}})
	fatal(err)
	fatal(consumer.Run(ctx, source, sink, consumer.Each(pay).OnFailure(sink.DeadLetter), consumer.Options{}))
}

// split makes four partitions of the accounts: pay.alice becomes pay.3.alice.
var split = jetstream.SubjectTransformConfig{Source: "pay.*", Destination: "pay.{{partition(4,1)}}.{{wildcard(1)}}"}

func fatal(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
