package migrations

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"ariga.io/atlas/sql/migrate"
	atlaspg "ariga.io/atlas/sql/postgres"
	"ariga.io/atlas/sql/schema"
	atlaslite "ariga.io/atlas/sql/sqlite"
	golangmigrate "github.com/golang-migrate/migrate/v4"
	_ "github.com/golang-migrate/migrate/v4/database/pgx/v5"
	_ "github.com/golang-migrate/migrate/v4/database/sqlite" // on modernc.org/sqlite
	_ "github.com/golang-migrate/migrate/v4/source/file"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"
	tern "github.com/jackc/tern/v2/migrate"
	"github.com/pressly/goose/v3"

	"github.com/epochfence/epochfence/cas/pgstore"
	"github.com/epochfence/epochfence/internal/servers/pgtest"
	"github.com/epochfence/epochfence/lease/sqlfence"
	"github.com/epochfence/epochfence/migrations"
	"github.com/epochfence/epochfence/outbox/httpfence"
	"github.com/epochfence/epochfence/outbox/pgoutbox"
	"github.com/epochfence/epochfence/outbox/sqloutbox"
	"github.com/epochfence/epochfence/sinks/pgsink"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

// run has a tool apply what is in dir and was not applied yet.
type run func(ctx context.Context, dir string, at database) error

// database is where the tables go.
type database struct{ driver, dsn, url string }

// tools are run on both databases, tern on PostgreSQL alone. Each has a file of the
// application's before ours.
var tools = map[string]struct {
	tool     migrations.Tool
	own      string
	postgres run
	sqlite   run
}{
	"goose":          {migrations.Goose, "001_own.sql: -- +goose Up\nCREATE TABLE own (id INTEGER, lock_name TEXT, lock_epoch INTEGER);", gooseUp(goose.DialectPostgres), gooseUp(goose.DialectSQLite3)},
	"golang-migrate": {migrations.GolangMigrate, "001_own.up.sql: CREATE TABLE own (id INTEGER, lock_name TEXT, lock_epoch INTEGER);", golangMigrateUp, golangMigrateUp},
	"tern":           {migrations.Tern, "001_own.sql: CREATE TABLE own (id INTEGER, lock_name TEXT, lock_epoch INTEGER);", ternMigrate, nil},
	"dbmate":         {migrations.Dbmate, "001_own.sql: -- migrate:up\nCREATE TABLE own (id INTEGER, lock_name TEXT, lock_epoch INTEGER);\n-- migrate:down\n", dbmateUp, dbmateUp},
	"atlas":          {migrations.Atlas, "001_own.sql: CREATE TABLE own (id INTEGER, lock_name TEXT, lock_epoch INTEGER);", atlasApply(atlaspg.Open), atlasApply(atlaslite.Open)},
}

func gooseUp(d goose.Dialect) run {
	return func(ctx context.Context, dir string, at database) error {
		db, err := sql.Open(at.driver, at.dsn)
		if err != nil {
			return err
		}
		defer func() { _ = db.Close() }()
		p, err := goose.NewProvider(d, db, os.DirFS(dir))
		if err != nil {
			return err
		}
		_, err = p.Up(ctx)
		return err
	}
}

func golangMigrateUp(_ context.Context, dir string, at database) error {
	m, err := golangmigrate.New("file://"+dir, at.url)
	if err != nil {
		return err
	}
	if err = m.Up(); errors.Is(err, golangmigrate.ErrNoChange) {
		err = nil
	}
	source, db := m.Close()
	return errors.Join(err, source, db)
}

func ternMigrate(ctx context.Context, dir string, at database) error {
	conn, err := pgx.Connect(ctx, at.dsn)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	m, err := tern.NewMigrator(ctx, conn, "public.schema_version")
	if err == nil {
		err = m.LoadMigrations(os.DirFS(dir))
	}
	if err != nil {
		return err
	}
	return m.Migrate(ctx)
}

// dbmate is the command that runs it, with its arguments: `make long WHAT=dbmate` sets it.
var dbmate = strings.Fields(os.Getenv("EPOCHFENCE_DBMATE"))

func needsDbmate(t *testing.T, tool string) {
	if tool == "dbmate" && len(dbmate) == 0 {
		t.Skip("dbmate is no Go library that can be fetched here: run make long WHAT=dbmate, which has npx fetch it")
	}
}

func dbmateUp(ctx context.Context, dir string, at database) error {
	url := at.dsn
	if at.driver == "sqlite" {
		url = strings.Replace(at.url, "sqlite://", "sqlite:", 1)
	}
	args := append(slices.Clone(dbmate[1:]), "--no-dump-schema", "--migrations-dir", dir, "--url", url, "up")
	said, err := exec.CommandContext(ctx, dbmate[0], args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, said)
	}
	return nil
}

// atlasApply is `atlas migrate hash` and then `atlas migrate apply`, through Atlas's library.
func atlasApply(open func(schema.ExecQuerier) (migrate.Driver, error)) run {
	applied := map[string]revisions{} // by database
	return func(ctx context.Context, dir string, at database) error {
		db, err := sql.Open(at.driver, at.dsn)
		if err != nil {
			return err
		}
		defer func() { _ = db.Close() }()
		driver, err := open(db)
		if err != nil {
			return err
		}
		files, err := migrate.NewLocalDir(dir)
		if err != nil {
			return err
		}
		sum, err := files.Checksum()
		if err != nil {
			return err
		}
		if err := migrate.WriteSumFile(files, sum); err != nil {
			return err
		}
		if applied[at.dsn] == nil {
			applied[at.dsn] = revisions{}
		}
		e, err := migrate.NewExecutor(driver, files, applied[at.dsn])
		if err != nil {
			return err
		}
		if err = e.ExecuteN(ctx, 0); errors.Is(err, migrate.ErrNoPendingFiles) {
			return nil
		}
		return err
	}
}

// revisions are what Atlas keeps in a table of its own.
type revisions map[string]*migrate.Revision

func (revisions) Ident() *migrate.TableIdent {
	return &migrate.TableIdent{Name: "atlas_schema_revisions"}
}

func (r revisions) ReadRevisions(context.Context) ([]*migrate.Revision, error) {
	var all []*migrate.Revision
	for _, version := range slices.Sorted(maps.Keys(r)) {
		all = append(all, r[version])
	}
	return all, nil
}

func (r revisions) ReadRevision(_ context.Context, version string) (*migrate.Revision, error) {
	if one := r[version]; one != nil {
		return one, nil
	}
	return nil, migrate.ErrRevisionNotExist
}

func (r revisions) WriteRevision(_ context.Context, one *migrate.Revision) error {
	r[one.Version] = one
	return nil
}

func (r revisions) DeleteRevision(_ context.Context, version string) error {
	delete(r, version)
	return nil
}

func TestPostgreSQLTablesGoThroughMigrationTools(t *testing.T) {
	for name, tool := range tools {
		t.Run(name, func(t *testing.T) {
			needsDbmate(t, name)
			url := pgtest.Start(t).URL
			o := httpfence.SQLOptions{}
			sink, err := pgsink.Migrations(pgsink.Options{})
			receiver, err2 := httpfence.Migrations(httpfence.PostgreSQL, o)
			if err := errors.Join(err, err2); err != nil {
				t.Fatal(err)
			}
			at := database{"pgx", url, "pgx5" + url[len("postgres"):]}
			apply(t, tool.tool, tool.own, tool.postgres, at, sink, receiver, []migrations.Migration{sqlfence.PostgreSQL()})

			pool, err := pgxpool.New(t.Context(), url)
			if err != nil {
				t.Fatal(err)
			}
			defer pool.Close()
			db, err := sql.Open("pgx", url)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = db.Close() }()
			_, err = pgsink.Open(t.Context(), pool, pgsink.Options{})
			_, err2 = pgoutbox.Open[pgsink.Tx](t.Context(), pool, pgoutbox.Options{})
			_, err3 := pgstore.Open(t.Context(), pool, pgstore.Options{})
			_, err4 := httpfence.OpenSQL(t.Context(), db, httpfence.PostgreSQL, o)
			again := pgsink.Migrate(t.Context(), pool, pgsink.Options{})
			if err := errors.Join(err, err2, err3, err4, again); err != nil {
				t.Error(err)
			}
			refusesTokens(t, db, `epochfence_token(lock_name, lock_epoch, 'nightly', 7)`)
		})
	}
}

func TestSQLiteTablesGoThroughMigrationTools(t *testing.T) {
	for name, tool := range tools {
		if tool.sqlite == nil {
			continue
		}
		t.Run(name, func(t *testing.T) {
			needsDbmate(t, name)
			sink, err := sqlsink.Migrations(sqlsink.SQLite, sqlsink.Options{})
			receiver, err2 := httpfence.Migrations(httpfence.SQLite, httpfence.SQLOptions{})
			if err := errors.Join(err, err2); err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(t.TempDir(), "app.db")
			at := database{"sqlite", "file:" + file + "?_pragma=journal_mode(wal)", "sqlite://" + file}
			apply(t, tool.tool, tool.own, tool.sqlite, at, sink, receiver, []migrations.Migration{sqlfence.SQLite("own")})

			db, err := sql.Open("sqlite", at.dsn)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = db.Close() }()
			_, err = sqlsink.Open(t.Context(), db, sqlsink.SQLite, sqlsink.Options{})
			_, err2 = sqloutbox.Open[*sqlsink.Tx](t.Context(), db, sqloutbox.SQLite, sqloutbox.Options{})
			_, err3 := httpfence.OpenSQL(t.Context(), db, httpfence.SQLite, httpfence.SQLOptions{})
			if err := errors.Join(err, err2, err3); err != nil {
				t.Error(err)
			}
			refusesTokens(t, db, `7`)
		})
	}
}

// apply writes the files after one of the application's, and has the tool apply them all,
// and then again.
func apply(t *testing.T, tool migrations.Tool, own string, run run, at database, ms ...[]migrations.Migration) {
	t.Helper()
	dir := t.TempDir()
	name, text, _ := strings.Cut(own, ": ")
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := migrations.Write(dir, tool, "002", slices.Concat(ms...)...); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := run(t.Context(), dir, at); err != nil {
			t.Fatal(err)
		}
	}
}

// refusesTokens wants a token below that of a row to be refused.
func refusesTokens(t *testing.T, db *sql.DB, token string) {
	t.Helper()
	if _, err := db.ExecContext(t.Context(), `INSERT INTO own VALUES (1, 'nightly', 8)`); err != nil {
		t.Fatal(err)
	}
	_, err := db.ExecContext(t.Context(), `UPDATE own SET lock_name = 'nightly', lock_epoch = `+token)
	if _, ok := errors.AsType[*sqlfence.RefusedError](sqlfence.Explain(err)); !ok {
		t.Errorf("err = %v, want a refusal", err)
	}
}
