package rebuild

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/pgstore"
	"github.com/epochfence/epochfence/internal/show"
)

var postgres = show.Store{
	Schemes: []string{"postgres", "postgresql"}, URL: "postgres://…",
	Open: func(ctx context.Context, at string) (cas.Store, func(), error) {
		pool, err := pgxpool.New(ctx, at)
		if err != nil {
			return nil, nil, err
		}
		if err := pgstore.Migrate(ctx, pool, pgstore.Options{}); err != nil {
			return show.Opened(nil, err, pool.Close)
		}
		s, err := pgstore.Open(ctx, pool, pgstore.Options{})
		return show.Opened(s, err, pool.Close)
	},
}
