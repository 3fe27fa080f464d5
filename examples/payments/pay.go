package main

import (
	"context"
	"database/sql"
	"net/http"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/natssource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/show"
	"github.com/epochfence/epochfence/outbox"
	"github.com/epochfence/epochfence/outbox/sqloutbox"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

// pay writes a payment into the ledger, and the request that charges it into the outbox. Both
// commit together with the message's position, or not at all.
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

// charged writes the number of a charge to its payment, in the transaction that removes the request
// from the outbox.
func charged(ctx context.Context, tx *sqlsink.Tx, e outbox.Sent, a outbox.Answer) error {
	r, err := receipt(a.Body, e.IdempotencyKey)
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, `UPDATE payments SET charge = ? WHERE payment = ?`, r.Charge, r.Payment)
	return err
}

// paySQLite runs the handler on this process's partitions, into SQLite.
func paySQLite(ctx context.Context, c config, js jetstream.JetStream, db *sql.DB, stage *show.Stage) error {
	sink, err := sqlsink.Open(ctx, db, sqlsink.SQLite, sqlsink.Options{})
	if err != nil {
		return err
	}
	store, err := sqloutbox.Open[*sqlsink.Tx](ctx, db, sqloutbox.SQLite, sqloutbox.Options{})
	if err != nil {
		return err
	}
	handlers := func(box *outbox.Box[*sqlsink.Tx]) consumer.Handlers[*sqlsink.Tx] { return consumer.Each(pay(box, c)) }
	return consume(ctx, c, js, sink, store, charged, handlers, stage)
}

// The relay's transactions run concurrently with the messages' transactions. On SQLite both need
// the write lock: large transactions of one delay the other.
const (
	maxBatch = 256 // messages in a transaction
	requests = 64  // concurrent, of a partition
)

// consume consumes the payments of this process's partitions, and relays the outbox. To copy it, delete
// what has to do with stage.
func consume[TX any](ctx context.Context, c config, js jetstream.JetStream, sink epoch.Sink[TX], store outbox.Store[TX],
	onAnswer func(context.Context, TX, outbox.Sent, outbox.Answer) error, handlers func(*outbox.Box[TX]) consumer.Handlers[TX], stage *show.Stage,
) error {
	source, err := natssource.New(natssource.Options{
		Group: c.Group, JetStream: js, Bucket: c.Group, LeaseTTL: c.Lease, Name: c.Worker,
		Streams: []natssource.Stream{{Name: c.Stream, Transform: &c.Transform}},
	})
	if err != nil {
		return err
	}
	box, err := outbox.New(store, outbox.Options[TX]{
		OnAnswer: onAnswer, RequestTimeout: c.Timeout, Concurrency: requests,
		Client:  &http.Client{Transport: show.Sending{Base: transport(), Stage: stage}},
		Observe: stage.Stats.ObserveOutbox, ObserveBacklog: stage.Stats.ObserveBacklog,
	})
	if err != nil {
		return err
	}
	return consumer.Run(ctx, source, show.Fenced(sink, stage), handlers(box).Background(box.Relay), consumer.Options{
		MaxBatch: maxBatch,
		Observe:  stage.Stats.Observe, HangTimeout: show.HangTimeout,
	})
}
