package sqlfence

import (
	"context"
	"database/sql"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/epochfence/epochfence/internal/sql/sqlschema"
	"github.com/epochfence/epochfence/internal/sql/sqltx"
	"github.com/epochfence/epochfence/migrations"
)

// This file runs a statement that must change a row, has the SQL that compares a token with that of the row,
// the function for PostgreSQL and the triggers for SQLite, and finds the refusal in a database's error. The
// database decides it.

// RefusedError is returned by [Explain] for a write under a token that is too low for the row.
type RefusedError struct {
	Lock  string
	Token int64 // of the write

	// Seen is the token in the row. If it is higher than Token, another owner has written the row
	// since: stop. If it equals Token, which only the form "once" refuses, this token has written
	// the row before: perhaps the answer to that write was lost.
	Seen int64

	err error
}

func (e *RefusedError) Error() string {
	if e.Seen == e.Token {
		return fmt.Sprintf("sqlfence: lock %q: token %d is refused: it has written the row before; do not repeat the write", e.Lock, e.Token)
	}
	return fmt.Sprintf("sqlfence: lock %q: token %d is refused: the row has token %d of a later owner; stop, and do not repeat the write", e.Lock, e.Token, e.Seen)
}

// Unwrap returns the error that [Explain] got.
func (e *RefusedError) Unwrap() error { return e.err }

// ScopeError is returned by [Explain] for a write to a row that has the token of another lock. The
// numbers of two locks have no order, so nobody can say which of the two writes is the later one:
// see "Scopes" in the package documentation.
type ScopeError struct {
	Lock  string
	Token int64 // of the write

	SeenLock string // in the row; empty if the row has a token without a name
	Seen     int64  // in the row; 0 if the row was moved to SeenLock and not written since

	err error
}

func (e *ScopeError) Error() string {
	return fmt.Sprintf("sqlfence: lock %q: token %d is refused: the row has token %d of lock %q, which counts something else; move the row to the lock that is to write it",
		e.Lock, e.Token, e.Seen, e.SeenLock)
}

// Unwrap returns the error that [Explain] got.
func (e *ScopeError) Unwrap() error { return e.err }

// ErrNoToken is returned by [Explain] for a write whose token is not 1 or more, or whose lock has no
// name. In SQLite it also means that the column lock_epoch does not keep integers.
var ErrNoToken = errors.New("no token: want a number of 1 or more, and the name of its lock")

// Explain returns an error of a write as a [*RefusedError], a [*ScopeError] or an error that matches
// [ErrNoToken], if the function or the trigger of this package has raised it. All of them wrap err.
// Explain returns any other err as it is, including nil. It knows PostgreSQL's drivers whose errors
// have a method SQLState() string, such as pgx, and the SQLite drivers that package sqlsink knows.
//
// The transaction of the write can commit nothing more in PostgreSQL. In SQLite only the statement
// was undone: roll back the transaction unless its other writes may stand alone.
func Explain(err error) error {
	kind, found, raised := parse(err)
	if !raised {
		return err
	}
	switch kind {
	case refused:
		return &RefusedError{Lock: found.Lock, Token: found.Token, Seen: found.RowToken, err: err}
	case anotherLock:
		return &ScopeError{Lock: found.Lock, Token: found.Token, SeenLock: found.RowLock, Seen: found.RowToken, err: err}
	}
	return fmt.Errorf("sqlfence: lock %q: token %d: %w: %w", found.Lock, found.Token, ErrNoToken, err)
}

// What the messages of the scripts begin with. JSON follows.
const (
	refused     = "epochfence: token refused: "
	anotherLock = "epochfence: another lock: "
	noToken     = "epochfence: no token: "
)

var states = map[string]string{"XF030": refused, "XF031": anotherLock, "XF032": noToken}

type values struct {
	Lock     string `json:"lock"`
	Token    int64  `json:"token"`
	RowLock  string `json:"row_lock"`
	RowToken int64  `json:"row_token"`
}

// parse reads the message, and not PostgreSQL's DETAIL, because drivers have that in fields of
// their own.
func parse(err error) (kind string, found values, raised bool) {
	kinds := []string{states[sqltx.SQLState(err)]}
	if sqltx.IsRaisedBySQLiteTrigger(err) {
		kinds = []string{refused, anotherLock, noToken}
	}
	for _, kind := range kinds {
		if kind == "" {
			continue
		}
		if _, text, ok := strings.Cut(err.Error(), kind+"{"); ok && json.NewDecoder(strings.NewReader("{"+text)).Decode(&found) == nil {
			return kind, found, true
		}
	}
	return "", values{}, false
}

// DB is a [sql.DB], [sql.Conn] or [sql.Tx].
type DB interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// ErrNoRow is returned by [Exec] for a statement that has changed no row.
var ErrNoRow = errors.New("there is no such row")

// Exec runs a statement that writes rows under a token, and returns nil if it has changed at least
// one. It returns [ErrNoRow] if no row fits the statement's condition, and other errors as [Explain]
// does. An error that Explain does not know may be a lost answer: then the write may have been
// applied.
//
// The statement sets both columns, and in PostgreSQL it calls epochfence_token: see the package
// documentation. For pgx, use Explain and the count of the rows.
func Exec(ctx context.Context, db DB, statement string, args ...any) error {
	result, err := db.ExecContext(ctx, statement, args...)
	if err != nil {
		return Explain(err)
	}
	switch n, err := result.RowsAffected(); {
	case err != nil:
		return fmt.Errorf("sqlfence: count the rows of a write: %w", err)
	case n == 0:
		return fmt.Errorf("sqlfence: write a row: %w", ErrNoRow)
	}
	return nil
}

//go:embed migrations/*/*.sql
var migrationFiles embed.FS

func script(dialect string) migrations.Migration {
	return sqlschema.Read(migrationFiles, "migrations/"+dialect, "sqlfence")[0]
}

// PostgreSQL returns the SQL of the function epochfence_token, for PostgreSQL 14 or newer. It goes
// into the first schema of the search_path. Every role may call it that has USAGE on that schema.
// The function reads no table. Unlike the scripts of other packages, this one keeps no record in a
// table: it replaces the function if it exists.
func PostgreSQL() migrations.Migration { return script("postgres") }

// SQLite returns the SQL of a trigger on a table, for SQLite 3.47 or newer. The table must have the
// columns lock_name TEXT and lock_epoch INTEGER. The trigger refuses a token below that of the row.
// The script does nothing if the trigger exists, so a program may run it whenever it starts. A
// statement that sets another lock_name and a null lock_epoch moves the row, and needs no token: see
// "Scopes" in the package documentation.
//
// DROP TABLE drops the trigger. Run the script again after a migration that builds the table anew.
func SQLite(table string) migrations.Migration { return trigger("token", table, ">") }

// SQLiteOnce is like [SQLite], and its trigger also refuses the token of the row, so that each token
// writes a row once.
func SQLiteOnce(table string) migrations.Migration { return trigger("once", table, ">=") }

var unfit = regexp.MustCompile(`[^A-Za-z0-9_]`) // for the name of a file

func trigger(kind, table, refused string) migrations.Migration {
	m := script("sqlite")
	m.Name = kind + "_" + unfit.ReplaceAllString(table, "_")
	m.SQL = strings.NewReplacer(
		"{{trigger}}", quote("epochfence_"+kind+"_"+table), "{{table}}", quote(table), "{{refused}}", refused,
	).Replace(m.SQL)
	return m
}

func quote(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }
