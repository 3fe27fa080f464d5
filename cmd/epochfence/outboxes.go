package main

import (
	"context"
	"errors"
	"net/url"

	"github.com/epochfence/epochfence/migrations"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/outbox/pgoutbox"
	"github.com/epochfence/epochfence/outbox/sqloutbox"
)

// This file opens the outbox beside a sink. store.go opens that of a store.

func (p *postgres) outbox(ctx context.Context) (operate.Outbox, error) {
	box, err := pgoutbox.OpenOperator(ctx, p.pool, p.box)
	switch {
	case errors.Is(err, migrations.ErrNotMigrated):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return box, nil
}

func (s *sqlite) outbox(ctx context.Context) (operate.Outbox, error) {
	box, err := sqloutbox.OpenOperator(ctx, s.db, sqloutbox.SQLite, s.box)
	switch {
	case errors.Is(err, migrations.ErrNotMigrated):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return box, nil
}

func (p *postgres) grantOutbox(role string, as roleKind) (string, error) {
	switch as {
	case reader:
		return pgoutbox.GrantReaderSQL(role, p.box)
	case operator:
		return pgoutbox.GrantOperatorSQL(role, p.box)
	default:
		return pgoutbox.GrantSQL(role, p.box)
	}
}

// destination returns the part of a URL that is not secret.
func destination(at string) string {
	u, err := url.Parse(at)
	if err != nil {
		return "…"
	}
	return u.Scheme + "://" + u.Host + "/…"
}
