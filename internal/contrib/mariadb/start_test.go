package mariadb_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/servers/mariatest"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

// openSink opens a sink in MariaDB. A dsn is app:secret@tcp(db:3306)/shop?clientFoundRows=true&maxAllowedPacket=0&interpolateParams=true, for instance.
func openSink(ctx context.Context, dsn string) (*sql.DB, *sqlsink.Sink, error) {
	db, err := sql.Open("mysql", dsn) // import _ "github.com/go-sql-driver/mysql"
	if err != nil {
		return nil, nil, err
	}
	if err := sqlsink.Migrate(ctx, db, sqlsink.MariaDB, sqlsink.Options{}); err != nil {
		return nil, nil, err
	}
	sink, err := sqlsink.Open(ctx, db, sqlsink.MariaDB, sqlsink.Options{})
	return db, sink, err
}

// The application's user needs no more than four privileges on tables that are there.
func TestTheLinesOfThePageOpenASinkForAUserWithFourPrivileges(t *testing.T) {
	t.Parallel()
	server := mariatest.Start(t)
	admin := open(t, server.DSN("mysql", ""))
	mustExec(t, admin, `CREATE DATABASE shop`, `CREATE USER app@'127.0.0.1'`, `GRANT SELECT, INSERT, UPDATE, DELETE ON shop.* TO app@'127.0.0.1'`)
	db, _, err := openSink(t.Context(), server.DSN("shop", ""))
	if err != nil {
		t.Fatal(err)
	}
	mustExec(t, db, `CREATE TABLE effects (list VARBINARY(100), value VARBINARY(100))`)
	_ = db.Close()
	db, sink, err := openSink(t.Context(), strings.Replace(server.DSN("shop", ""), "root@", "app@", 1))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	seeded(t, sink)
	f, err := claim(t.Context(), sink, 1)
	if err != nil {
		t.Fatal(err)
	}
	err = commit(t.Context(), sink, f, func(ctx context.Context, tx *sqlsink.Tx) error {
		_, err := tx.ExecContext(ctx, `SET NAMES utf8mb4`) // after it the sink looks for temporary tables
		return errors.Join(err, write(ctx, tx, "v"))
	})
	if err != nil {
		t.Fatal(err)
	}
	_, err = epoch.FenceOf(t.Context(), sink, epoch.Partition{Group: "nobody"})
	if !errors.Is(err, epoch.ErrMissing) {
		t.Error(err)
	}
}
