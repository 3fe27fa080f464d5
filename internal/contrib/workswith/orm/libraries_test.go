// Package orm writes a message's effect through libraries for database/sql. Each
// function is the body of a handler: it stores an order and, in a transaction within the
// transaction, takes it from the stock, which a library may do as savepoints.
package orm

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/Masterminds/squirrel"
	"github.com/doug-martin/goqu/v9"
	_ "github.com/doug-martin/goqu/v9/dialect/postgres" // its dialects
	_ "github.com/doug-martin/goqu/v9/dialect/sqlite3"
	"github.com/glebarez/sqlite"
	"github.com/jmoiron/sqlx"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/pgdialect"
	"github.com/uptrace/bun/dialect/sqlitedialect"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"
)

// Order is a row of the table orders.
type Order struct {
	ID       int64  `gorm:"primaryKey;autoIncrement" bun:",pk,autoincrement" db:"id"`
	Item     string `db:"item"`
	Quantity int64  `db:"quantity"`
}

// errEmpty undoes what is taken from an item of which there is not enough, and no more
// than that.
var errEmpty = errors.New("not enough of it")

// Library writes an order through a DB of [pgsink.OpenDB] or [sqlsink.OpenDB].
type Library func(ctx context.Context, db *sql.DB, postgres bool, o Order) error

// Libraries are the functions, by the library's name.
var Libraries = map[string]Library{
	"gorm": Gorm, "bun": Bun, "sqlx": Sqlx, "squirrel": Squirrel, "goqu": Goqu,
}

// Gorm writes through gorm.io/gorm. Create and Transaction are savepoints.
func Gorm(ctx context.Context, db *sql.DB, onPostgres bool, o Order) error {
	var d gorm.Dialector = &sqlite.Dialector{Conn: db}
	if onPostgres {
		d = postgres.New(postgres.Config{Conn: db})
	}
	g, err := gorm.Open(d, &gorm.Config{Logger: logger.Discard, DisableAutomaticPing: true})
	if err != nil {
		return err
	}
	g = g.WithContext(ctx)
	if err := g.Create(&o).Error; err != nil {
		return err
	}
	err = g.Transaction(func(tx *gorm.DB) error {
		if err := tx.Table("stock").Where("item = ?", o.Item).Update("present", gorm.Expr("present - ?", o.Quantity)).Error; err != nil {
			return err
		}
		var left int64
		if err := tx.Table("stock").Where("item = ?", o.Item).Pluck("present", &left).Error; err != nil {
			return err
		}
		return enough(left)
	})
	return unlessEmpty(err)
}

// Bun writes through github.com/uptrace/bun.
func Bun(ctx context.Context, db *sql.DB, onPostgres bool, o Order) error {
	b := bun.NewDB(db, sqlitedialect.New())
	if onPostgres {
		b = bun.NewDB(db, pgdialect.New())
	}
	if _, err := b.NewInsert().Model(&o).Exec(ctx); err != nil {
		return err
	}
	err := b.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
		if _, err := tx.NewUpdate().Table("stock").Set("present = present - ?", o.Quantity).Where("item = ?", o.Item).Exec(ctx); err != nil {
			return err
		}
		var left int64
		if err := tx.NewSelect().Table("stock").Column("present").Where("item = ?", o.Item).Scan(ctx, &left); err != nil {
			return err
		}
		return enough(left)
	})
	return unlessEmpty(err)
}

// Sqlx writes through github.com/jmoiron/sqlx.
func Sqlx(ctx context.Context, db *sql.DB, onPostgres bool, o Order) error {
	x := sqlx.NewDb(db, "sqlite3") // of its drivers, the one with this kind of placeholders
	if onPostgres {
		x = sqlx.NewDb(db, "pgx")
	}
	if _, err := x.NamedExecContext(ctx, `INSERT INTO orders (item, quantity) VALUES (:item, :quantity)`, o); err != nil {
		return err
	}
	tx, err := x.BeginTxx(ctx, nil)
	if err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, tx.Rebind(`UPDATE stock SET present = present - ? WHERE item = ?`), o.Quantity, o.Item); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	var left int64
	if err := tx.GetContext(ctx, &left, tx.Rebind(`SELECT present FROM stock WHERE item = ?`), o.Item); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	if enough(left) != nil {
		return tx.Rollback()
	}
	return tx.Commit()
}

// Squirrel writes through github.com/Masterminds/squirrel.
func Squirrel(ctx context.Context, db *sql.DB, onPostgres bool, o Order) error {
	build := squirrel.StatementBuilder
	if onPostgres {
		build = build.PlaceholderFormat(squirrel.Dollar)
	}
	if _, err := build.Insert("orders").Columns("item", "quantity").Values(o.Item, o.Quantity).RunWith(db).ExecContext(ctx); err != nil {
		return err
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if _, err := build.Update("stock").Set("present", squirrel.Expr("present - ?", o.Quantity)).Where(squirrel.Eq{"item": o.Item}).RunWith(tx).ExecContext(ctx); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	var left int64
	if err := build.Select("present").From("stock").Where(squirrel.Eq{"item": o.Item}).RunWith(tx).QueryRowContext(ctx).Scan(&left); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	if enough(left) != nil {
		return tx.Rollback()
	}
	return tx.Commit()
}

// Goqu writes through github.com/doug-martin/goqu.
func Goqu(ctx context.Context, db *sql.DB, onPostgres bool, o Order) error {
	q := goqu.New("sqlite3", db)
	if onPostgres {
		q = goqu.New("postgres", db)
	}
	if _, err := q.Insert("orders").Rows(goqu.Record{"item": o.Item, "quantity": o.Quantity}).Executor().ExecContext(ctx); err != nil {
		return err
	}
	err := q.WithTx(func(tx *goqu.TxDatabase) error {
		taken := goqu.Record{"present": goqu.L("present - ?", o.Quantity)}
		if _, err := tx.Update("stock").Set(taken).Where(goqu.C("item").Eq(o.Item)).Executor().ExecContext(ctx); err != nil {
			return err
		}
		var left int64
		if _, err := tx.From("stock").Select("present").Where(goqu.C("item").Eq(o.Item)).ScanValContext(ctx, &left); err != nil {
			return err
		}
		return enough(left)
	})
	return unlessEmpty(err)
}

func enough(left int64) error {
	if left < 0 {
		return fmt.Errorf("%d: %w", left, errEmpty)
	}
	return nil
}

func unlessEmpty(err error) error {
	if errors.Is(err, errEmpty) {
		return nil // the order stays, and the stock too
	}
	return err
}
