package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/text/secret"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/sinks/cassink"
)

// This file is the sink in a store, as database.go wants it. store_drivers.go opens the clients.

// store is the store of a cassink.
type store struct {
	items cas.Store
	flags flags
	of    string // what kind of store it is
	shut  func()
}

func openStore(ctx context.Context, f flags) (*store, error) {
	if err := secret.Check(f.store); err != nil {
		return nil, usage("--store: %w", err)
	}
	at, err := parseURL(f.store)
	if err != nil {
		return nil, usage("--store: %w", err)
	}
	open, known := drivers[at.scheme]
	if !known {
		return nil, usage("--store: %s:// is none of %s", at.scheme, schemes())
	}
	ctx, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	s := &store{flags: f, of: at.scheme, shut: func() {}}
	if err = open(ctx, f, at, s); err == nil {
		err = at.unused()
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// sink opens the sink, which is the first that some clients ask of their servers.
func (s *store) sink(ctx context.Context) (*cassink.Sink, error) {
	ctx, cancel := context.WithTimeout(ctx, s.flags.timeout)
	defer cancel()
	return cassink.Open(ctx, s.items, cassink.Options{Prefix: s.flags.schema})
}

func (s *store) close() { s.shut() }

func (s *store) operator(ctx context.Context) (operate.Operator, error) {
	sink, err := s.sink(ctx)
	if err != nil {
		return nil, err
	}
	return sink.Operator(), nil
}

func (s *store) outbox(ctx context.Context) (operate.Outbox, error) {
	sink, err := s.sink(ctx)
	if err != nil {
		return nil, err
	}
	return sink.Operator(), nil
}

func (s *store) tables(context.Context) ([]tables, error) { return nil, nil }

func (s *store) grant(string, roleKind, bool) (string, error) {
	return "", usage("rights in a store are given with its own tools; the page of its driver says which it needs")
}

func (s *store) run(context.Context, string) error { return errors.New("a store runs no SQL") }

func (s *store) examine(ctx context.Context) []finding {
	ctx, cancel := context.WithTimeout(ctx, s.flags.timeout)
	defer cancel()
	facts, err := s.items.Facts(ctx)
	if err != nil {
		return []finding{{Check: "store", Status: bad, Detail: err.Error()}}
	}
	return []finding{{
		Check: "store", Status: ok,
		Detail: fmt.Sprintf("%s, where the sink's keys begin with %s/ (%s)", s.of, cmp.Or(s.flags.schema, "epochfence"), facts.Source),
	}}
}

func (s *store) drill(ctx context.Context) ([]trial, error) {
	sink, err := s.sink(ctx)
	if err != nil {
		return nil, err
	}
	d := &drill[*cassink.Tx]{sink: sink, op: sink.Operator(), put: func(ctx context.Context, tx *cassink.Tx, m epoch.Message, e epoch.Epoch) error {
		return sink.DeadLetter(ctx, tx, m, e, errDrill)
	}, open: true}
	return d.run(ctx)
}
