package main

import (
	"context"
	"errors"
	"log/slog"
	"net/url"
	"strings"

	"github.com/epochfence/epochfence/internal/text/secret"
	"github.com/epochfence/epochfence/migrations"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/outbox/pgoutbox"
	"github.com/epochfence/epochfence/outbox/sqloutbox"
)

// This file chooses the database or store from the flags, and has what every kind of it must offer.
// It opens the outbox beside the sink in a database. store.go opens that of a store.

// database is what has the sink: a database, or a store.
type database interface {
	operator(ctx context.Context) (operate.Operator, error)

	// outbox returns nil without an error if the database has no outbox.
	outbox(ctx context.Context) (operate.Outbox, error)

	// tables returns the sink's tables and the optional ones. A store has none.
	tables(ctx context.Context) ([]tables, error)

	// grant returns SQL that gives a database role the privileges for a kind of work.
	grant(role string, as roleKind, outbox bool) (string, error)

	run(ctx context.Context, sql string) error

	// examine looks for faults of the database itself.
	examine(ctx context.Context) []finding

	// drill makes a zombie try to commit, between commits of valid owners.
	drill(ctx context.Context) ([]trial, error)

	close()
}

// tables are the tables of one package, with its migrations.
type tables struct {
	of      string
	where   string // schema or prefix
	scripts []migrations.Migration
	have    int // the installed version; zero if none
	migrate func(ctx context.Context) error
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
		return nil, usage("which database? Say it with --database or EPOCHFENCE_DATABASE, as postgres://USER@HOST/NAME or file:PATH of SQLite, or say which store with --store")
	case strings.HasPrefix(at, "postgres://"), strings.HasPrefix(at, "postgresql://"):
		return orNone(openPostgres(ctx, f))
	case strings.HasPrefix(at, "file:"):
		return orNone(openSQLite(f, create))
	default:
		return nil, usage("the database is neither postgres://… nor file:… of SQLite")
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

var errNoOutbox = errors.New("there is no outbox here: name its schema, or the prefix of its tables, with --outbox-schema")

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
