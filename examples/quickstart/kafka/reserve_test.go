package main

import (
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/consumertest"
	"github.com/epochfence/epochfence/consumer/consumertest/pgtables"
	"github.com/epochfence/epochfence/internal/servers/pgtest"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

func TestTheEffectsOfReserveAreExactlyOnce(t *testing.T) {
	pool, err := pgxpool.New(t.Context(), pgtest.Start(t).URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	if err := pgsink.Migrate(t.Context(), pool, pgsink.Options{}); err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Exec(t.Context(), `create table reserved (item text primary key, quantity bigint not null)`); err != nil {
		t.Fatal(err)
	}
	sink, err := pgsink.Open(t.Context(), pool, pgsink.Options{})
	if err != nil {
		t.Fatal(err)
	}
	messages := consumertest.Values(`{"item":"chair","quantity":2}`, `not JSON`, `{"item":"table","quantity":1}`, `{"item":"chair","quantity":3}`)
	consumertest.Check(t, sink, consumer.Each(reserve).OnFailure(sink.DeadLetter), messages, pgtables.Of(pool), consumertest.Options{})
}
