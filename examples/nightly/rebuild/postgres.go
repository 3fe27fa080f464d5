package rebuild

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/pgstore"
	"github.com/epochfence/epochfence/internal/show/stores"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

var postgres = stores.Kind{
	Schemes: []string{"postgres", "postgresql"}, URL: "postgres://…",
	Open: func(ctx context.Context, at string) (cas.Store, func(), error) {
		pool, err := pgxpool.New(ctx, at)
		if err != nil {
			return nil, nil, err
		}
		if err := pgsink.Migrate(ctx, pool, pgsink.Options{}); err != nil {
			return stores.Opened(nil, err, pool.Close)
		}
		s, err := pgstore.Open(ctx, pool, pgstore.Options{})
		return stores.Opened(s, err, pool.Close)
	},
}
