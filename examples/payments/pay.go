package main

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/natssource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/show"
	"github.com/epochfence/epochfence/outbox"
	"github.com/epochfence/epochfence/outbox/sqloutbox"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

// execer is a transaction of database/sql: *sqlsink.Tx, *sql.Tx, and whatever
// sqlc calls DBTX.
type execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// pay writes a payment into the ledger, and the request that charges it into the
// outbox. Both commit with the message's position, or not at all.
func pay(box *outbox.Box[*sqlsink.Tx], c config) consumer.Handler[*sqlsink.Tx] {
	return func(ctx context.Context, tx *sqlsink.Tx, m consumer.Message, e epoch.Epoch) error {
		p, err := parse(m.Value)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx,
			`INSERT INTO payments (payment, account, cents, stream_partition, stream_sequence, epoch, worker) VALUES (?, ?, ?, ?, ?, ?, ?)`,
			p.ID, p.Account, p.Cents, m.Partition.Number, m.Offset, e, c.Worker)
		if err != nil {
			return err
		}
		charge, err := p.charge(c.Gateway)
		if err != nil {
			return err
		}
		return box.Add(ctx, tx, m, charge)
	}
}

// charged writes the number of a charge to its payment, in the transaction that
// takes the request out of the outbox.
func charged(ctx context.Context, tx *sqlsink.Tx, e outbox.Sent, a outbox.Answer) error {
	r, err := receipt(a.Body, e.IdempotencyKey)
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, `UPDATE payments SET charge = ? WHERE payment = ?`, r.Charge, r.Payment)
	return err
}

// The relay's transactions run beside those of the messages. On SQLite both wait for
// the write lock: the larger those of the one, the longer those of the other wait.
const (
	maxBatch = 256 // messages in a transaction
	requests = 64  // under way for a partition
)

// paySQLite runs the handler on the partitions leased to this process, into
// SQLite, and relays what it leaves in the outbox. Without the show, what has
// stage in it goes, and a sql.Open takes the place of show.OpenSQLite.
func paySQLite(ctx context.Context, c config, js jetstream.JetStream, stage *show.Stage) error {
	db, err := show.OpenSQLite(c.Database)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()

	source, err := natssource.New(natssource.Options{
		Group: c.Group, JetStream: js, Bucket: c.Group, LeaseTTL: c.Lease, Name: c.Worker,
		Streams: []natssource.Stream{{Name: c.Stream, Transform: &c.Transform}},
	})
	if err != nil {
		return err
	}
	sink, err := sqlsink.Open(ctx, db, sqlsink.SQLite, sqlsink.Options{})
	if err != nil {
		return err
	}
	store, err := sqloutbox.Open[*sqlsink.Tx](ctx, db, sqloutbox.SQLite, sqloutbox.Options{})
	if err != nil {
		return err
	}
	box, err := outbox.New(store, outbox.Options[*sqlsink.Tx]{
		OnAnswer: charged, RequestTimeout: c.Timeout, Concurrency: requests, Client: c.client(stage),
		Observe: stage.Stats.ObserveOutbox, ObserveBacklog: stage.Stats.ObserveBacklog,
	})
	if err != nil {
		return err
	}
	err = consumer.Run(ctx, source, show.Fenced(sink, stage), consumer.Each(pay(box, c)).Background(show.Relaying(box.Relay)), consumer.Options{
		MaxBatch: maxBatch,
		Observe:  show.Reporting(stage),
	})
	if err != nil {
		return fmt.Errorf("payments: %w", err)
	}
	return nil
}

const sqliteTables = `
CREATE TABLE payments (
	seq              INTEGER PRIMARY KEY AUTOINCREMENT,
	payment          INTEGER NOT NULL,
	account          TEXT    NOT NULL,
	cents            INTEGER NOT NULL,
	charge           INTEGER, -- NULL until the gateway has answered
	stream_partition INTEGER NOT NULL,
	stream_sequence  INTEGER NOT NULL,
	epoch            INTEGER NOT NULL,
	worker           TEXT    NOT NULL
);
CREATE INDEX payments_payment ON payments (payment);`
