package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"regexp"
	"strings"

	"github.com/epochfence/epochfence/migrations"
	"github.com/epochfence/epochfence/operate"
)

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

// password matches the password of a URL inside the text of an error.
var password = regexp.MustCompile(`(://[^:/?#\s]*):[^@/\s]*@`)

func (f flags) secretive(err error) error { return secretive(err, f.database, f.store) }

// secretive returns err without the passwords of these URLs.
func secretive(err error, urls ...string) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	for _, at := range urls {
		if u, parsed := parseURL(at); parsed == nil && u.password() != "" {
			text = spellings(u.password()).ReplaceAllString(text, "…")
		}
	}
	text = password.ReplaceAllString(text, "$1:…@")
	if text == err.Error() {
		return err
	}
	return &secretError{text, err}
}

// spellings matches a secret in every spelling of percent escapes, and in quotes. One of up to three bytes
// is matched between a colon and an @ only, as elsewhere it may be part of any word.
func spellings(secret string) *regexp.Regexp {
	var b strings.Builder
	for _, c := range []byte(secret) {
		escaped := fmt.Sprintf("%%(?i:%02x)", c)
		switch {
		case c == ' ':
			fmt.Fprintf(&b, `(?: |\+|%s)`, escaped)
		case c < 0x80:
			fmt.Fprintf(&b, `(?:\\?%s|%s)`, regexp.QuoteMeta(string(rune(c))), escaped)
		default: // a byte of a character, or the whole as an escape
			fmt.Fprintf(&b, `(?:%s|\\x%02x)`, escaped, c)
		}
	}
	pattern := b.String()
	if strings.ContainsFunc(secret, func(r rune) bool { return r >= 0x80 }) {
		pattern = "(?:" + regexp.QuoteMeta(secret) + "|" + pattern + ")"
	}
	if len(secret) < 4 {
		pattern = ":" + pattern + "@"
	}
	return regexp.MustCompile(pattern)
}

// checkEscaped refuses a URL whose password seems to have a character that ends it, such as a slash. The
// rest of such a password is taken for a host or a path, which errors print.
func checkEscaped(at string) error {
	_, rest, _ := strings.Cut(at, "://")
	authority, beyond := rest, ""
	if end := strings.IndexAny(rest, "/?#"); end >= 0 {
		authority, beyond = rest[:end], rest[end:]
	}
	path, _, _ := strings.Cut(beyond, "?")
	_, err := url.Parse(at)
	named, colon := strings.Contains(authority, "@"), strings.Contains(authority, ":")
	if err != nil || strings.Contains(path, "@") || !named && colon && strings.Contains(beyond, "@") {
		return usage("the URL of PostgreSQL cannot be parsed: write the characters : / ? # @ %% of its user, password and database as %%3A %%2F %%3F %%23 %%40 %%25")
	}
	return nil
}

type secretError struct {
	text string
	err  error
}

func (e *secretError) Error() string { return e.text }
func (e *secretError) Unwrap() error { return e.err }

func redacted(at string) string { return password.ReplaceAllString(at, "$1:…@") }

var errNoOutbox = errors.New("there is no outbox here: name its schema, or the prefix of its tables, with --outbox-schema")
