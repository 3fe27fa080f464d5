//go:build entclient

package orm

import (
	"context"
	"database/sql"
	"errors"

	"entgo.io/ent/dialect"
	entsql "entgo.io/ent/dialect/sql"

	"github.com/epochfence/epochfence/internal/contrib/workswith/orm/testdata/ent"
)

func init() { Libraries = map[string]Library{"ent": Ent} }

// Ent writes through the client that entgo.io/ent generates from package schema. TestEnt
// generates it and runs this: the client is not committed. UpdateOneID and Tx are savepoints.
func Ent(ctx context.Context, db *sql.DB, onPostgres bool, o Order) error {
	name := dialect.SQLite
	if onPostgres {
		name = dialect.Postgres
	}
	client := ent.NewClient(ent.Driver(entsql.OpenDB(name, db)))
	if err := client.Order.Create().SetItem(o.Item).SetQuantity(o.Quantity).Exec(ctx); err != nil {
		return err
	}
	tx, err := client.Tx(ctx)
	if err != nil {
		return err
	}
	left, err := tx.Stock.UpdateOneID(o.Item).AddPresent(-o.Quantity).Save(ctx)
	if err != nil {
		return errors.Join(err, tx.Rollback())
	}
	if enough(left.Present) != nil {
		return tx.Rollback()
	}
	return tx.Commit()
}
