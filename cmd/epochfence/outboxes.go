package main

import (
	"context"

	"github.com/epochfence/epochfence/ops/operate"
	"github.com/epochfence/epochfence/outbox/pgoutbox"
)

func (p *postgres) outbox(ctx context.Context) (operate.Outbox, error) { return nil, nil }
func (s *sqlite) outbox(ctx context.Context) (operate.Outbox, error)   { return nil, nil }

func (p *postgres) grantOutbox(role string, as roleKind) (string, error) {
	return pgoutbox.GrantSQL(role, p.box)
}
