package sinktest

import (
	"context"
	"database/sql"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
)

// mode is an [Idiomatic] without the type of its transaction.
type mode struct {
	Idiomatic[any]
	open func(t testing.TB) idiomDatabase
}

// idiomDatabase is a database with consumers.
type idiomDatabase struct {
	Database[any]

	// run is one process: a sink with connections of its own, and consumer.Run.
	run func(ctx context.Context, t testing.TB, s consumer.Source, h idiomHandlers, o consumer.Options) error
}

// idiomHandlers are the user's functions of a play. Each or batch is nil.
type idiomHandlers struct {
	each       func(ctx context.Context, tx any, m consumer.Message) error
	batch      func(ctx context.Context, tx any, ms []consumer.Message) error
	onFailure  func(ctx context.Context, tx any, m consumer.Message, e epoch.Epoch, cause error) error
	background func(ctx context.Context, p epoch.Partition, do func(ctx context.Context, apply func(ctx context.Context, tx any) error) error)
}

func eraseMode[TX any](m Idiomatic[TX]) mode {
	e := mode{Idiomatic: Idiomatic[any]{
		Mode: m.Mode, Speaks: m.Speaks, Queued: m.Queued, Virtual: m.Virtual, Own: m.Own,
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

// typed are h for a sink of TX.
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

// idioms are those that the mode has a use for.
func (m *mode) idioms() []Idiom {
	all := slices.Clone(anybody)
	if m.Exec != nil {
		all = slices.Concat(all, statements, m.Speaks.idioms)
	}
	if m.Handle != nil {
		all = append(all, handles...)
	}
	if m.DB != nil {
		all = append(all, dbs...)
	}
	all = append(all, m.Own...)
	return slices.DeleteFunc(all, func(i Idiom) bool {
		return i.Answers && m.Queued
	})
}

// playMode plays the idioms of a mode side by side, in the handler and in the other places.
func playMode(t *testing.T, m mode, table *table) {
	for _, i := range m.idioms() {
		playCell(t, m, i, inEach, table)
	}
	for _, place := range places {
		t.Run(place, func(t *testing.T) {
			for _, i := range m.idioms() {
				if i.Places && !i.Everybody {
					playCell(t, m, i, place, table)
				}
			}
		})
	}
}

// playCell plays one idiom in one place, which is a cell of the table of outcomes.
func playCell(t *testing.T, m mode, i Idiom, place string, table *table) {
	t.Run(i.Name, func(t *testing.T) {
		play := func(t *testing.T) { table.note(m.Mode, place, i.Name, playIn(t, &m, &i, place)) }
		if m.Virtual {
			synctest.Test(t, play)
			return
		}
		t.Parallel()
		play(t)
	})
}
