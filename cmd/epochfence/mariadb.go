package main

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/go-sql-driver/mysql"

	"github.com/epochfence/epochfence/internal/sql/sqlschema"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

// This file opens and examines the sink in MariaDB or MySQL.

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
