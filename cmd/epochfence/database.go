package main

import (
	"context"
	"log/slog"
	"strings"

	"github.com/epochfence/epochfence/internal/text/secret"
	"github.com/epochfence/epochfence/migrations"
	"github.com/epochfence/epochfence/operate"
)

// This file chooses the database or store from the flags, and has what every kind of it must offer.

// database is what has the sink: a database, or a store.
type database interface {
	operator(ctx context.Context) (operate.Operator, error)

	// tables returns nil for a store, which has none.
	tables(ctx context.Context) (*tables, error)

	// grant returns SQL that gives a database role the privileges for a kind of work.
	grant(role string, as roleKind) (string, error)

	run(ctx context.Context, sql string) error

	// examine looks for faults of the database itself.
	examine(ctx context.Context) []finding

	// drill makes a zombie try to commit, between commits of valid owners.
	drill(ctx context.Context) ([]trial, error)

	close()
}

// tables are the sink's tables, with their migrations.
type tables struct {
	where, waits string // schema or prefix; how migrate waits for a table that is in use
	scripts      []migrations.Migration
	have         int            // the installed version; zero if none
	alive        map[string]int // processes of the last minute by their version, if the role may see them
	migrate      func(ctx context.Context) error
}

// quiet discards the log of code that waits for servers, because this program prints failures
// itself.
var quiet = slog.New(slog.DiscardHandler)

func (a *app) open(ctx context.Context, create bool) (database, error) {
	if a.database != nil {
		return a.database, nil
	}
	db, err := openAt(ctx, a.flags, create)
	if err != nil {
		return nil, a.flags.secretive(err)
	}
	a.database = db
	return db, nil
}

func openAt(ctx context.Context, f flags, create bool) (database, error) {
	switch at := f.database; {
	case f.store != "":
		return orNone(openStore(ctx, f))
	case at == "":
		return nil, usage("which database? Say it with --database or EPOCHFENCE_DATABASE, as postgres://USER@HOST/NAME, mysql://USER@HOST/NAME of MariaDB or file:PATH of SQLite, or say which store with --store")
	case strings.HasPrefix(at, "postgres://"), strings.HasPrefix(at, "postgresql://"):
		return orNone(openPostgres(ctx, f))
	case strings.HasPrefix(at, "file:"):
		return orNone(openSQLite(f, create))
	case strings.HasPrefix(at, "mysql://"), strings.HasPrefix(at, "mariadb://"):
		return orNone(openMariaDB(f))
	default:
		return nil, usage("the database is neither postgres://…, mysql://… of MariaDB nor file:… of SQLite")
	}
}

// orNone returns a nil interface on an error: a nil pointer in it would not be nil.
func orNone[D database](d D, err error) (database, error) {
	if err != nil {
		return nil, err
	}
	return d, nil
}

func (a *app) operator(ctx context.Context) (operate.Operator, error) {
	db, err := a.open(ctx, false)
	if err != nil {
		return nil, err
	}
	op, err := db.operator(ctx)
	if err != nil {
		return nil, a.flags.secretive(err)
	}
	return op, nil
}

func (f flags) secretive(err error) error { return secret.Error(err, f.database, f.store) }
