package main

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"strings"

	"github.com/go-sql-driver/mysql"

	"github.com/epochfence/epochfence/sinks/sqlsink"
)

// This file opens and examines the sink in MariaDB or MySQL.

type mariadb struct{ *sqlDatabase }

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
	return &mariadb{&sqlDatabase{db: sql.OpenDB(connector), dialect: sqlsink.MariaDB, sink: sqlsink.Options{TablePrefix: f.schema, LockTimeout: f.timeout},
		there: "SELECT count(*) FROM information_schema.tables WHERE table_schema = database() AND table_name = ?",
		alive: "SELECT coalesce(json_value(body, '$.version'), ''), count(*) FROM %s" +
			" WHERE kind = 'process' AND changed_at > date_format(utc_timestamp(3) - interval 1 minute, '%%Y-%%m-%%dT%%H:%%i:%%s') GROUP BY 1"}}, nil
}

func (m *mariadb) grant(string, roleKind) (string, error) {
	return "", usage("the command prints no grants for MariaDB: applications and operators need SELECT, INSERT, UPDATE and DELETE on the sink's tables")
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
