package sinktest

import (
	"context"
	"database/sql"
	"testing"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
)

// mode is an [Idiomatic] without the type of its transaction.
type mode struct {
	Idiomatic[any]
	open func(t testing.TB) idiomDatabase
}

type idiomDatabase struct {
	Database[any]

	// run runs one process: a sink with connections of its own, and consumer.Run.
	run func(ctx context.Context, t testing.TB, s consumer.Source, h idiomHandlers, o consumer.Options) error
}

type idiomHandlers struct {
	each       func(ctx context.Context, tx any, m consumer.Message) error
	batch      func(ctx context.Context, tx any, ms []consumer.Message) error
	onFailure  func(ctx context.Context, tx any, m consumer.Message, e epoch.Epoch, cause error) error
	background func(ctx context.Context, p epoch.Partition, do func(ctx context.Context, apply func(ctx context.Context, tx any) error) error)
}

func eraseMode[TX any](m Idiomatic[TX]) mode {
	e := mode{Idiomatic: Idiomatic[any]{
		Mode: m.Mode, Speaks: m.Speaks, Queued: m.Queued, Virtual: m.Virtual, Own: m.Own, Column: m.Column, Plays: m.Plays,
	}}
	if m.Exec != nil {
		e.Exec = func(ctx context.Context, tx any, query string, args ...any) error {
			return m.Exec(ctx, tx.(TX), query, args...)
		}
	}
	if m.Query != nil {
		e.Query = func(ctx context.Context, tx any, query string) (Rows, error) { return m.Query(ctx, tx.(TX), query) }
	}
	if m.Handle != nil {
		e.Handle = func(tx any) Handle { return m.Handle(tx.(TX)) }
	}
	if m.DB != nil {
		e.DB = func(tx any) *sql.DB { return m.DB(tx.(TX)) }
	}
	e.open = func(t testing.TB) idiomDatabase {
		db := m.Database(t)
		return idiomDatabase{erase(db), func(ctx context.Context, t testing.TB, s consumer.Source, h idiomHandlers, o consumer.Options) error {
			return consumer.Run(ctx, s, db.Open(t), typed[TX](h), o)
		}}
	}
	return e
}

func typed[TX any](h idiomHandlers) consumer.Handlers[TX] {
	hs := consumer.Each(func(ctx context.Context, tx TX, m consumer.Message, _ epoch.Epoch) error { return h.each(ctx, tx, m) })
	if h.batch != nil {
		hs = consumer.Batches(func(ctx context.Context, tx TX, ms []consumer.Message, _ epoch.Epoch) error {
			return h.batch(ctx, tx, ms)
		})
	}
	hs = hs.OnFailure(func(ctx context.Context, tx TX, m consumer.Message, e epoch.Epoch, cause error) error {
		return h.onFailure(ctx, tx, m, e, cause)
	})
	if h.background != nil {
		hs = hs.Background(func(ctx context.Context, b consumer.Background[TX]) {
			h.background(ctx, b.Partition(), func(ctx context.Context, apply func(context.Context, any) error) error {
				return b.Do(ctx, func(ctx context.Context, tx TX) error { return apply(ctx, tx) })
			})
		})
	}
	return hs
}
