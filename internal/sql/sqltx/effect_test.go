package sqltx_test

import (
	"context"
	"database/sql"
	"path/filepath"
	"strings"
	"testing"

	"github.com/epochfence/epochfence/internal/sql/sqltx"
)

func TestTheEffectOfATextIsThatOfItsStatements(t *testing.T) {
	const (
		plain   = sqltx.Effect(0)
		apart   = sqltx.Apart
		lasting = sqltx.Apart | sqltx.Lasting
		control = sqltx.Controls
	)
	const trigger = `CREATE TRIGGER t AFTER INSERT ON a BEGIN UPDATE a SET b = CASE WHEN 1 THEN 2 END; DELETE FROM a; END`
	for _, c := range []struct {
		d    sqltx.Dialect
		text string
		want sqltx.Effect
	}{
		{sqltx.SQLite, `INSERT INTO weather (temp) VALUES ('temp')`, plain},
		{sqltx.SQLite, `SELECT 'temp'; SELECT 1.5, temp, .5`, plain},
		{sqltx.SQLite, trigger, plain},
		{sqltx.SQLite, trigger + `; COMMIT`, control},
		{sqltx.SQLite, `CREATE TABLE trigger_log (a); COMMIT`, control},
		{sqltx.SQLite, strings.Replace(trigger, `CREATE`, `CREATE TEMP`, 1), lasting},
		{sqltx.SQLite, `CREATE TABLE temp . a (b)`, lasting},
		{sqltx.SQLite, `SELECT * FROM [temp]/* the schema */.a`, lasting},
		{sqltx.SQLite, `END`, control},
		{sqltx.SQLite, `ROLLBACK TO a`, apart},
		{sqltx.SQLite, `ROLLBACK TRANSACTION TO 'a'`, apart},
		{sqltx.SQLite, `ROLLBACK TRANSACTION "to"; SELECT 1`, control},
		{sqltx.SQLite, `ROLLBACK; SELECT 1 to a`, control},
		{sqltx.SQLite, `PRAGMA foreign_keys`, lasting},
		{sqltx.SQLite, `EXPLAIN QUERY PLAN SELECT 1`, plain},
		{sqltx.SQLite, `(SELECT 1)`, lasting | sqltx.Unsure},
		{sqltx.SQLite, `SELECT 'open`, lasting | sqltx.Unsure},
		{sqltx.PostgreSQL, `UPDATE a SET b = $1`, plain},
		{sqltx.PostgreSQL, `START TRANSACTION`, control},
		{sqltx.PostgreSQL, `SELECT 1; ABORT`, control},
		{sqltx.PostgreSQL, `PREPARE TRANSACTION 'a'`, control},
		{sqltx.PostgreSQL, `ROLLBACK WORK TO a`, apart},
		{sqltx.PostgreSQL, `SET LOCAL role = a`, apart},
		{sqltx.PostgreSQL, `SET role = a`, lasting},
		{sqltx.PostgreSQL, `PREPARE a AS SELECT 1`, lasting},
		{sqltx.PostgreSQL, `SELECT 1 INTO TEMP a`, lasting},
		{sqltx.PostgreSQL, `CREATE TABLE pg_temp_3.a (b int)`, lasting},
		{sqltx.PostgreSQL, `SELECT pg_advisory_lock(1)`, lasting},
		{sqltx.PostgreSQL, `SELECT '\'`, lasting | sqltx.Unsure},
		{sqltx.MariaDB, `INSERT INTO a VALUES ('it\'s; COMMIT', "COMMIT", ?) # COMMIT`, plain},
		{sqltx.MariaDB, `(SELECT 1) UNION (SELECT 2) FOR UPDATE;`, plain},
		{sqltx.MariaDB, `SELECT a -- COMMIT`, plain},
		{sqltx.MariaDB, `ANALYZE FORMAT=JSON SELECT 1`, plain},
		{sqltx.MariaDB, `LOAD DATA INFILE 'a' INTO TABLE a`, plain},
		{sqltx.MariaDB, `UPDATE a SET autocommit = 1`, plain},
		{sqltx.MariaDB, `REPLACE INTO a SELECT * FROM b`, plain},
		{sqltx.MariaDB, `commit and chain`, control},
		{sqltx.MariaDB, `SELECT 1; COMMIT`, control},
		{sqltx.MariaDB, `SELECT 5--1; COMMIT`, control},
		{sqltx.MariaDB, `START TRANSACTION WITH CONSISTENT SNAPSHOT`, control},
		{sqltx.MariaDB, `BEGIN NOT ATOMIC COMMIT; END`, control | lasting | sqltx.Unsure},
		{sqltx.MariaDB, `ROLLBACK`, control},
		{sqltx.MariaDB, `ROLLBACK WORK TO SAVEPOINT a`, apart},
		{sqltx.MariaDB, `XA END 'a'`, control},
		{sqltx.MariaDB, `SET autocommit = 0`, control},
		{sqltx.MariaDB, `SET @x = 1, @@SESSION.autocommit = 1`, control},
		{sqltx.MariaDB, `SET PASSWORD = ''`, control},
		{sqltx.MariaDB, `SET STATEMENT max_statement_time = 1 FOR COMMIT`, lasting | sqltx.Unsure},
		{sqltx.MariaDB, `SET NAMES utf8mb4`, lasting},
		{sqltx.MariaDB, `SELECT @n := @n + 1`, lasting},
		{sqltx.MariaDB, `SELECT 1 INTO @n`, lasting},
		{sqltx.MariaDB, `SELECT GET_LOCK('a', 1)`, lasting},
		{sqltx.MariaDB, `LOCK TABLES a WRITE`, control},
		{sqltx.MariaDB, `UNLOCK TABLES`, control},
		{sqltx.MariaDB, `SELECT 1 FROM a LOCK IN SHARE MODE`, plain},
		{sqltx.MariaDB, `CREATE TABLE a (b INT)`, control},
		{sqltx.MariaDB, `CREATE OR REPLACE TEMPORARY TABLE a (b INT)`, lasting},
		{sqltx.MariaDB, `CREATE TABLE temporary (a INT)`, control},
		{sqltx.MariaDB, `DROP TEMPORARY TABLE IF EXISTS a`, lasting},
		{sqltx.MariaDB, `DROP PREPARE a`, lasting},
		{sqltx.MariaDB, `TRUNCATE a`, control},
		{sqltx.MariaDB, `ANALYZE TABLE a`, control},
		{sqltx.MariaDB, `LOAD INDEX INTO CACHE a`, control},
		{sqltx.MariaDB, `GRANT SELECT ON a TO b`, control},
		{sqltx.MariaDB, `USE other`, lasting},
		{sqltx.MariaDB, `CALL p()`, lasting | sqltx.Unsure},
		{sqltx.MariaDB, `EXECUTE IMMEDIATE 'COMMIT'`, lasting | sqltx.Unsure},
		{sqltx.MariaDB, `IF 1 THEN COMMIT; END IF`, lasting | sqltx.Unsure},
		{sqltx.MariaDB, `/*!40101 SET NAMES utf8 */`, lasting | sqltx.Unsure},
		{sqltx.MariaDB, `SELECT 1 /*M!100300 ; COMMIT */`, control | lasting | sqltx.Unsure},
		{sqltx.MariaDB, `SELECT 'open`, lasting | sqltx.Unsure},
	} {
		if got := c.d.Effect(c.text); got != c.want {
			t.Errorf("%s: %s: effect %b, want %b", c.d, c.text, got, c.want)
		}
	}
}

// FuzzNoPlainTextEndsATransaction: what SQLite makes of a text is what Effect says.
func FuzzNoPlainTextEndsATransaction(f *testing.F) {
	for _, text := range []string{
		"SELECT 1; COMMIT", "-- a\r'\nCOMMIT--'", "SELECT $x('); COMMIT; --'", "\uFEFFCOMMIT", "/* */END", "/*/ */ COMMIT", "SELECT [']; ROLLBACK--]",
		"CREATE TRIGGER t AFTER INSERT ON a BEGIN SELECT 1; END; COMMIT", "SELECT \"''\"\"; COMMIT; --\"", "ROLLBACK TRANSACTION \"to\"", "EXPLAIN END",
		"SELECT x'00'; COMMIT", "SELECT 1e'2'; COMMIT", "RELEASE a", "CREATE TEMP TABLE b (c)", "CREATE TABLE 'temp'.b (c)",
	} {
		f.Add(text)
	}
	db, err := sql.Open("sqlite", filepath.Join(f.TempDir(), "app.db"))
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = db.Close() })
	db.SetMaxOpenConns(1)
	f.Fuzz(func(t *testing.T, text string) {
		effect := sqltx.SQLite.Effect(text)
		if effect&(sqltx.Unsure|sqltx.Lasting|sqltx.Controls) != 0 {
			return
		}
		conn, err := db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		run := func(text string) error {
			_, err := conn.ExecContext(context.Background(), text)
			return err
		}
		if err := run(`BEGIN; CREATE TABLE a (id INTEGER PRIMARY KEY); SAVEPOINT ours`); err != nil {
			t.Fatal(err)
		}
		_ = run(text)
		if err := run(`RELEASE ours`); err != nil {
			t.Errorf("%q has ended the transaction or its savepoint: %v", text, err)
		}
		var temporary int
		if err := conn.QueryRowContext(t.Context(), `SELECT count(*) FROM sqlite_temp_schema`).Scan(&temporary); err != nil || temporary > 0 {
			t.Errorf("%q has made %d temporary objects: %v", text, temporary, err)
		}
		if err := run(`ROLLBACK`); err != nil {
			t.Errorf("%q has ended the transaction: %v", text, err)
		}
	})
}
