package sqlfence

import (
	"embed"
	"regexp"
	"strings"

	"github.com/epochfence/epochfence/internal/sql/sqlschema"
	"github.com/epochfence/epochfence/migrations"
)

// This file has the SQL that compares a token with that of a row: the function for PostgreSQL, the
// triggers for SQLite.

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
