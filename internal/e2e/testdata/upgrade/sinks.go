package main

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	_ "modernc.org/sqlite"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/guard"
	"github.com/epochfence/epochfence/cas/natsstore"
	"github.com/epochfence/epochfence/cas/pgstore"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/outbox/casoutbox"
	"github.com/epochfence/epochfence/outbox/httpfence"
	"github.com/epochfence/epochfence/outbox/pgoutbox"
	"github.com/epochfence/epochfence/outbox/sqloutbox"
	"github.com/epochfence/epochfence/sinks/cassink"
	"github.com/epochfence/epochfence/sinks/pgsink"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

// This file makes the world of each sink. Effects are rows of a table, or lines of an item for each list.

const (
	create = `create table if not exists effects (id integer primary key autoincrement, kind text, list text, what text)`
	insert = `insert into effects (kind, list, what) values ($1, $2, $3)`
)

func onPostgres(ctx context.Context, s spec) error {
	pool, err := pgxpool.New(ctx, s.Database)
	if err != nil {
		return err
	}
	defer pool.Close()
	if os.Args[1] == "migrate" {
		_, err = pool.Exec(ctx, strings.Replace(create, "integer primary key autoincrement", "bigserial", 1))
		return errors.Join(err, pgsink.Migrate(ctx, pool, pgsink.Options{}), migrateReceiver(ctx, s.ReceiverFile))
	}
	sink, err := pgsink.Open(ctx, pool, pgsink.Options{})
	if err != nil {
		return err
	}
	operator, operating := pgsink.OpenOperator(ctx, pool, pgsink.Options{})
	entries, boxing := pgoutbox.Open[pgsink.Tx](ctx, pool, pgoutbox.Options{})
	leases, leasing := pgstore.Open(ctx, pool, pgstore.Options{})
	if err := errors.Join(operating, boxing, leasing); err != nil {
		return err
	}
	w := &world[pgsink.Tx]{
		spec: s, sink: sink, guarantee: epoch.Transactional, operator: operator, outbox: entries, leases: leases, deadLetter: sink.DeadLetter,
		note: func(ctx context.Context, tx pgsink.Tx, _ epoch.Message, kind, list, what string) error {
			_, err := tx.Exec(ctx, insert, kind, list, what)
			return err
		},
		notes: func(ctx context.Context) (map[string][]string, error) { return rows(ctx, stdlib.OpenDBFromPool(pool)) },
	}
	return w.do(ctx)
}

func onSQLite(ctx context.Context, s spec) error {
	db, err := openSQLite(s.Database)
	if err != nil {
		return err
	}
	defer db.Close()
	if os.Args[1] == "migrate" {
		_, err = db.ExecContext(ctx, create)
		return errors.Join(err, sqlsink.Migrate(ctx, db, sqlsink.SQLite, sqlsink.Options{}), migrateReceiver(ctx, s.ReceiverFile))
	}
	sink, err := sqlsink.Open(ctx, db, sqlsink.SQLite, sqlsink.Options{})
	if err != nil {
		return err
	}
	operator, operating := sqlsink.OpenOperator(ctx, db, sqlsink.SQLite, sqlsink.Options{})
	entries, boxing := sqloutbox.Open[*sqlsink.Tx](ctx, db, sqloutbox.SQLite, sqloutbox.Options{})
	leases, leasing := bucket(ctx, s.NATS, "leases")
	if err := errors.Join(operating, boxing, leasing); err != nil {
		return err
	}
	w := &world[*sqlsink.Tx]{
		spec: s, sink: sink, guarantee: epoch.Transactional, operator: operator, outbox: entries, leases: leases, deadLetter: sink.DeadLetter,
		note: func(ctx context.Context, tx *sqlsink.Tx, _ epoch.Message, kind, list, what string) error {
			_, err := tx.ExecContext(ctx, insert, kind, list, what)
			return err
		},
		notes: func(ctx context.Context) (map[string][]string, error) { return rows(ctx, db) },
	}
	return w.do(ctx)
}

func onItems(ctx context.Context, s spec) error {
	if os.Args[1] == "migrate" { // a store has no tables
		return migrateReceiver(ctx, s.ReceiverFile)
	}
	items, opening := bucket(ctx, s.NATS, "items")
	leases, leasing := bucket(ctx, s.NATS, "leases")
	if err := errors.Join(opening, leasing); err != nil {
		return err
	}
	sink, err := cassink.Open(ctx, items, cassink.Options{
		Observe: func(guard.Event) { time.Sleep(4 * time.Millisecond) }, // so that incidents find items that are ahead of the position
	})
	if err != nil {
		return err
	}
	w := &world[*cassink.Tx]{
		spec: s, sink: sink, guarantee: epoch.PerItem, operator: sink.Operator(), outbox: casoutbox.Store{}, leases: leases, deadLetter: sink.DeadLetter,
		note: func(ctx context.Context, tx *cassink.Tx, m epoch.Message, kind, list, what string) error {
			_, err := tx.Update(ctx, m, "effects/"+kind+"/"+list, func(old guard.State) (guard.State, []byte, error) {
				return guard.Text(string(old.Value) + what + "\n"), nil, nil
			})
			return err
		},
		notes: func(ctx context.Context) (map[string][]string, error) {
			all := map[string][]string{}
			for item, err := range items.List(ctx, "effects/") {
				if err != nil {
					return nil, err
				}
				list, err := guard.Read(ctx, items, item.Key)
				if err != nil {
					return nil, err
				}
				all[strings.TrimPrefix(item.Key, "effects/")] = strings.Fields(string(list.Value))
			}
			return all, nil
		},
	}
	return w.do(ctx)
}

func migrateReceiver(ctx context.Context, file string) error {
	db, err := openSQLite(file)
	if err != nil {
		return err
	}
	defer db.Close()
	_, err = db.ExecContext(ctx, create)
	return errors.Join(err, httpfence.Migrate(ctx, db, httpfence.SQLite, httpfence.SQLOptions{}))
}

func openSQLite(file string) (*sql.DB, error) {
	return sql.Open("sqlite", "file:"+file+"?_txlock=immediate&_pragma=busy_timeout(30000)&_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)")
}

// rows returns the effects in a database, as lists in their order.
func rows(ctx context.Context, db *sql.DB) (map[string][]string, error) {
	found, err := db.QueryContext(ctx, `select kind, list, what from effects order by id`)
	if err != nil {
		return nil, err
	}
	defer found.Close()
	all := map[string][]string{}
	for found.Next() {
		var kind, list, what string
		if err := found.Scan(&kind, &list, &what); err != nil {
			return nil, err
		}
		all[kind+"/"+list] = append(all[kind+"/"+list], what)
	}
	return all, found.Err()
}

func connect(url string) (jetstream.JetStream, error) {
	conn, err := nats.Connect(url, nats.MaxReconnects(-1), nats.ReconnectWait(200*time.Millisecond))
	if err != nil {
		return nil, err
	}
	return jetstream.New(conn)
}

func bucket(ctx context.Context, url, name string) (cas.Store, error) {
	js, err := connect(url)
	if err != nil {
		return nil, err
	}
	return natsstore.Open(ctx, js, natsstore.Options{Bucket: name})
}
