package main

import (
	"context"
	"errors"
	"log/slog"
	"net/url"
	"regexp"
	"strings"

	"github.com/epochfence/epochfence/migrations"
	"github.com/epochfence/epochfence/operate"
)

// database is the sink's.
type database interface {
	// operator operates the fences.
	operator(ctx context.Context) (operate.Operator, error)

	// outbox is nil, without an error, where the database has none.
	outbox(ctx context.Context) (operate.Outbox, error)

	// tables are those that the sink has, and may have.
	tables(ctx context.Context) ([]tables, error)

	// grant returns SQL that gives a role what it needs as one of the roles.
	grant(role string, as roleKind, outbox bool) (string, error)

	// run runs SQL in one transaction.
	run(ctx context.Context, sql string) error

	// examine looks for what is wrong with the database itself.
	examine(ctx context.Context) []finding

	// drill has a zombie try to commit, and others before and after it.
	drill(ctx context.Context) ([]trial, error)

	close()
}

// tables are those of one package, with its migrations.
type tables struct {
	of      string
	where   string // schema or prefix
	scripts []migrations.Migration
	have    int // the version that is there; zero if none is
	migrate func(ctx context.Context) error
}

// quiet is the logger of what waits for servers: this program says what failed itself.
var quiet = slog.New(slog.DiscardHandler)

// open returns the sink's database.
func (a *app) open(ctx context.Context, create bool) (database, error) {
	if a.database != nil {
		return a.database, nil
	}
	at := a.flags.database
	db, err := openAt(ctx, a.flags, create)
	if err != nil {
		return nil, secretive(err, at)
	}
	a.database = db
	return db, nil
}

func openAt(ctx context.Context, f flags, create bool) (database, error) {
	switch at := f.database; {
	case at == "":
		return nil, usage("which database? Say it with --database or EPOCHFENCE_DATABASE, as postgres://USER@HOST/NAME or file:PATH of SQLite")
	case strings.HasPrefix(at, "postgres://"), strings.HasPrefix(at, "postgresql://"):
		return orNone(openPostgres(ctx, f))
	case strings.HasPrefix(at, "file:"):
		return orNone(openSQLite(f, create))
	default:
		return nil, usage("the database is neither postgres://… nor file:… of SQLite")
	}
}

// orNone is a database only if there is no error: a nil pointer would be one.
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
		return nil, secretive(err, a.flags.database)
	}
	return op, nil
}

// password finds one in the text of a URL, wherever an error quotes it.
var password = regexp.MustCompile(`(://[^:/?#\s]*):[^@/\s]*@`)

// secretive takes the password of a URL out of an error's text.
func secretive(err error, of string) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	if u, parsed := url.Parse(of); parsed == nil && u.User != nil {
		if word, ok := u.User.Password(); ok && word != "" {
			text = strings.ReplaceAll(text, word, "…")
		}
	}
	text = password.ReplaceAllString(text, "$1:…@")
	if text == err.Error() {
		return err
	}
	return &secretError{text, err}
}

// secretError is an error whose text had a password in it.
type secretError struct {
	text string
	err  error
}

func (e *secretError) Error() string { return e.text }
func (e *secretError) Unwrap() error { return e.err }

// redacted is a URL without its password.
func redacted(at string) string { return password.ReplaceAllString(at, "$1:…@") }

var errNoOutbox = errors.New("there is no outbox in this database: name its schema, or the prefix of its tables, with --outbox-schema")
