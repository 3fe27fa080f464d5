package main

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"maps"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/go-sql-driver/mysql"
	_ "modernc.org/sqlite" // the driver

	"github.com/epochfence/epochfence/internal/sql/sqlschema"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

// This file is the sink through database/sql, as database.go wants it, in SQLite and in MariaDB or MySQL.

type sqlDatabase struct {
	db      *sql.DB
	dialect sqlsink.Dialect
	sink    sqlsink.Options

	there string // counts the tables of a name
	alive string // the processes of the last minute by version, with %s for the table
}

func (s *sqlDatabase) close() { _ = s.db.Close() }

func (s *sqlDatabase) operator(ctx context.Context) (operate.Operator, error) {
	return sqlsink.OpenOperator(ctx, s.db, s.dialect, s.sink)
}

func (s *sqlDatabase) tables(ctx context.Context) (*tables, error) {
	scripts, err := sqlsink.Migrations(s.dialect, s.sink)
	if err != nil {
		return nil, err
	}
	t := &tables{where: cmp.Or(s.sink.TablePrefix, sqlschema.DefaultPrefix), scripts: scripts,
		migrate: func(ctx context.Context) error { return sqlsink.Migrate(ctx, s.db, s.dialect, s.sink) }}
	if t.have, err = s.version(ctx, t.where+"migration"); err != nil {
		return nil, fmt.Errorf("version of the tables: %w", err)
	}
	if t.have > 0 {
		t.alive = s.processes(ctx, t.where+"ledger")
	}
	return t, nil
}

// processes reads the table, because an operator cannot be opened on tables that are older.
func (s *sqlDatabase) processes(ctx context.Context, ledger string) map[string]int {
	rows, err := s.db.QueryContext(ctx, fmt.Sprintf(s.alive, ledger))
	if err != nil {
		return nil
	}
	defer func() { _ = rows.Close() }()
	alive := map[string]int{}
	for rows.Next() {
		var version string
		var n int
		if err := rows.Scan(&version, &n); err != nil {
			return nil
		}
		alive[version] = n
	}
	if rows.Err() != nil {
		return nil
	}
	return alive
}

// version returns the version in the table of migrations, or zero. Migrations has checked
// that the table's name consists of letters, digits and underscores.
func (s *sqlDatabase) version(ctx context.Context, table string) (v int, err error) {
	err = s.db.QueryRowContext(ctx, s.there, table).Scan(&v)
	if err == nil && v > 0 {
		err = s.db.QueryRowContext(ctx, "SELECT coalesce(max(version), 0) FROM "+table).Scan(&v)
	}
	return v, err
}

// run sends a line at a time: a driver may take a single statement.
func (s *sqlDatabase) run(ctx context.Context, script string) error {
	for statement := range strings.SplitSeq(script, "\n") {
		if _, err := s.db.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}

func (s *sqlDatabase) drill(ctx context.Context) ([]trial, error) {
	sink, err := sqlsink.Open(ctx, s.db, s.dialect, s.sink)
	if err != nil {
		return nil, err
	}
	op, err := s.operator(ctx)
	if err != nil {
		return nil, err
	}
	d := &drill[*sqlsink.Tx]{sink: sink, op: op, put: sink.DeadLetter}
	return d.run(ctx)
}

type sqlite struct{ *sqlDatabase }

// openSQLite opens an existing file, or creates it if it may.
func openSQLite(f flags, create bool) (*sqlite, error) {
	path, query, _ := strings.Cut(strings.TrimPrefix(f.database, "file:"), "?")
	options, err := url.ParseQuery(query)
	if err != nil {
		return nil, usage("--database: %w", err)
	}
	name, err := url.PathUnescape(path)
	if err != nil {
		return nil, usage("--database: %w", err)
	}
	if _, err := os.Stat(name); err != nil && !create {
		return nil, fmt.Errorf("--database: %w", err)
	}
	options.Add("_pragma", "journal_mode(wal)")
	db, err := sql.Open("sqlite", "file:"+path+"?"+options.Encode())
	if err != nil {
		return nil, err
	}
	return &sqlite{&sqlDatabase{db: db, dialect: sqlsink.SQLite, sink: sqlsink.Options{TablePrefix: f.schema, LockTimeout: f.timeout},
		there: "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = ?",
		alive: "SELECT coalesce(json_extract(body, '$.version'), ''), count(*) FROM %s" +
			" WHERE kind = 'process' AND changed_at > strftime('%%Y-%%m-%%dT%%H:%%M:%%fZ', 'now', '-1 minute') GROUP BY 1"}}, nil
}

func (s *sqlite) grant(string, roleKind) (string, error) {
	return "", usage("SQLite has no roles: who may open the file may do everything")
}

func (s *sqlite) examine(ctx context.Context) []finding {
	var version, mode string
	if err := s.db.QueryRowContext(ctx, "SELECT sqlite_version()").Scan(&version); err != nil {
		return []finding{{Check: "database", Status: bad, Detail: err.Error()}}
	}
	found := []finding{{Check: "database", Status: ok, Detail: "SQLite " + version}}
	if err := s.db.QueryRowContext(ctx, "PRAGMA journal_mode").Scan(&mode); err != nil || mode != "wal" {
		found = append(found, finding{Check: "journal", Status: bad, Detail: fmt.Sprintf("the journal mode is %q", mode), Remedy: "PRAGMA journal_mode = wal"})
	}
	return found
}

type mariadb struct {
	*sqlDatabase
	name string
}

// openMariaDB opens mysql://USER:PASSWORD@HOST:PORT/NAME?…, with the parameters of the driver's data source
// names.
func openMariaDB(f flags) (*mariadb, error) {
	u, err := url.Parse(f.database)
	if err != nil {
		return nil, usage("--database: %w", err)
	}
	config, err := mysql.ParseDSN("/?" + u.RawQuery)
	if err != nil {
		return nil, usage("--database: %w", err)
	}
	config.Net, config.Addr, config.DBName = "tcp", u.Host, strings.TrimPrefix(u.Path, "/")
	if u.Port() == "" {
		config.Addr += ":3306"
	}
	config.User = u.User.Username()
	config.Passwd, _ = u.User.Password()
	config.ClientFoundRows, config.Logger = true, &mysql.NopLogger{}
	connector, err := mysql.NewConnector(config)
	if err != nil {
		return nil, usage("--database: %w", err)
	}
	return &mariadb{name: config.DBName, sqlDatabase: &sqlDatabase{db: sql.OpenDB(connector), dialect: sqlsink.MariaDB, sink: sqlsink.Options{TablePrefix: f.schema, LockTimeout: f.timeout},
		there: "SELECT count(*) FROM information_schema.tables WHERE table_schema = database() AND table_name = ?",
		alive: "SELECT coalesce(json_value(body, '$.version'), ''), count(*) FROM %s" +
			" WHERE kind = 'process' AND changed_at > date_format(utc_timestamp(3) - interval 1 minute, '%%Y-%%m-%%dT%%H:%%i:%%s') GROUP BY 1"}}, nil
}

// grant returns the privileges of a user, NAME or NAME@HOST, or of a role. Each kind of work checks what the
// driver counts, by an UPDATE of a version that changes nothing.
func (m *mariadb) grant(role string, as roleKind) (string, error) {
	const reads, writes = "SELECT", "SELECT, INSERT, UPDATE, DELETE"
	needs := map[string]string{"migration": "SELECT, UPDATE (version)", "fence": reads, "ledger": reads, "outbox_entry": reads}
	switch as {
	case application:
		needs["migration"], needs["fence"], needs["ledger"], needs["outbox_entry"] = "SELECT, UPDATE", "SELECT, INSERT, UPDATE", writes, writes
	case operator:
		needs["fence"], needs["ledger"], needs["outbox_entry"] = "SELECT, UPDATE", writes, "SELECT, UPDATE, DELETE"
	case observer:
		return "", errNotObserved
	}
	to := mariadbText(role)
	if at := strings.LastIndexByte(role, '@'); at == 0 || at == len(role)-1 {
		return "", usage("--role is %q; want NAME or NAME@HOST", role)
	} else if at > 0 {
		to = mariadbText(role[:at]) + "@" + mariadbText(role[at+1:])
	}
	var sql []string
	for _, table := range slices.Sorted(maps.Keys(needs)) {
		sql = append(sql, fmt.Sprintf("GRANT %s ON `%s`.%s%s TO %s;", needs[table], strings.ReplaceAll(m.name, "`", "``"), cmp.Or(m.sink.TablePrefix, sqlschema.DefaultPrefix), table, to))
	}
	return strings.Join(sql, "\n"), nil
}

func mariadbText(s string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, "'", "''", "\n", `\n`).Replace(s) + "'"
}

func (m *mariadb) examine(ctx context.Context) []finding {
	var version, durable string
	err := m.db.QueryRowContext(ctx, "SELECT version(), @@innodb_flush_log_at_trx_commit").Scan(&version, &durable)
	if err != nil {
		return []finding{{Check: "database", Status: bad, Detail: err.Error()}}
	}
	if !strings.Contains(version, "MariaDB") {
		version = "MySQL " + version + ", which was never tested"
	}
	found := []finding{{Check: "database", Status: ok, Detail: version}}
	if durable != "1" {
		found = append(found, finding{Check: "durability", Status: bad, Detail: fmt.Sprintf("innodb_flush_log_at_trx_commit is %s: a power cut loses the last commits", durable),
			Remedy: "SET GLOBAL innodb_flush_log_at_trx_commit = 1"})
	}
	return found
}
