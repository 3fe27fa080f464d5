package sqlsink

import (
	"context"
	"database/sql"
	"strings"

	"github.com/epochfence/epochfence/internal/sql/sqlschema"
	"github.com/epochfence/epochfence/internal/sql/sqltx"
)

// This file has all SQL of the sink but the schema, and what differs in it between databases. Each
// statement that changes a fence compares what was read, also where a lock makes that needless.
// internal/sql/sqltx has how a database begins, locks and fails.

// Dialect has the differences between databases: [SQLite] and [MariaDB].
type Dialect interface {
	// All statements use ? for parameters, and names that no database reserves and that need no
	// quotes. An UPDATE must report the rows that it has found, not those that it has changed.

	String() string

	transactions() sqltx.Dialect

	// tables returns the tables whose names have the prefix.
	tables(prefix string) sqlschema.Prefixed

	// schema returns what qualifies the sink's table names, so that neither another default database
	// nor a temporary table or view of a handler's takes their place.
	schema(ctx context.Context, db *sql.DB) (string, error)

	// unshadow returns a statement that removes temporary tables of these names, which a handler may
	// have made, or "" if a qualified name cannot mean one.
	unshadow(tables ...string) string

	// forUpdate ends a SELECT of fences that will be updated. It takes their row locks, unless the
	// beginning has locked everything.
	forUpdate() string

	// lockSeeds returns the first statement of a Seed's transaction, which makes other Seeds wait
	// for its end, given the table of versions. It is empty if the beginning does so.
	lockSeeds(versions string) string

	// remove returns a statement that deletes the rows of table whose id a query returns.
	remove(table, query string) string

	// now returns an expression for the time, in UTC.
	now() string

	// later returns an expression for the time after so many milliseconds, which are a parameter, in UTC. It is NULL for
	// NULL.
	later() string

	// role returns an expression for the database user, or an empty text.
	role() string

	// outOfDate returns a condition for a time that is too long ago for the audit log.
	outOfDate(at string) string
}

// SQLite is SQLite 3.37 or newer through modernc.org/sqlite, in WAL mode. Other drivers work if
// their errors have a method Code() int that returns SQLite's result code, as those of
// github.com/glebarez/go-sqlite. So do github.com/mattn/go-sqlite3 and
// github.com/ncruces/go-sqlite3. [Open] refuses all others.
var SQLite Dialect = sqlite{}

type sqlite struct{}

func (sqlite) String() string { return sqltx.SQLite.String() }

func (sqlite) transactions() sqltx.Dialect { return sqltx.SQLite }

func (sqlite) tables(prefix string) sqlschema.Prefixed { return sqlschema.SQLite(prefix) }

func (sqlite) schema(context.Context, *sql.DB) (string, error) { return `main.`, nil }

func (sqlite) unshadow(...string) string { return `` }

func (sqlite) forUpdate() string { return `` }

func (sqlite) lockSeeds(string) string { return `` }

func (sqlite) remove(table, query string) string {
	return `DELETE FROM ` + table + ` WHERE id IN (` + query + `)`
}

func (sqlite) now() string { return `strftime('%Y-%m-%dT%H:%M:%fZ', 'now')` }

func (sqlite) later() string {
	return `strftime('%Y-%m-%dT%H:%M:%fZ', 'now', (CAST(? AS INTEGER) / 1000.0) || ' seconds')`
}

func (sqlite) role() string { return `''` }

func (sqlite) outOfDate(at string) string {
	return at + ` < strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-90 days')`
}

// MariaDB is MariaDB 10.11 or newer through github.com/go-sql-driver/mysql, with clientFoundRows=true in
// the data source name. [Open] refuses settings that do not fit, and says what to change. The tables are
// in InnoDB.
//
// A transaction locks the rows that its handlers write, and the fence last, so that transactions of
// different partitions run beside each other. In MariaDB, the server ends the transaction of a frozen
// process shortly after the end of its context, by idle_transaction_timeout and max_statement_time. The
// sink sets both at the beginning, with innodb_lock_wait_timeout, and restores them at the end. Rows that
// a handler queries are read into memory at once.
//
// MySQL 8 was not run. By its manual it differs in this: it has no idle_transaction_timeout, so that the
// sink sets wait_timeout, and max_execution_time, which limits only SELECT.
var MariaDB Dialect = mariadb{}

type mariadb struct{}

func (mariadb) String() string { return sqltx.MariaDB.String() }

func (mariadb) transactions() sqltx.Dialect { return sqltx.MariaDB }

func (mariadb) tables(prefix string) sqlschema.Prefixed { return sqlschema.MariaDB(prefix) }

func (mariadb) schema(ctx context.Context, db *sql.DB) (string, error) {
	return sqltx.MariaDBDatabase(ctx, db)
}

func (mariadb) unshadow(tables ...string) string {
	return `DROP TEMPORARY TABLE IF EXISTS ` + strings.Join(tables, `, `) // which commits nothing
}

func (mariadb) forUpdate() string { return ` FOR UPDATE` }

func (mariadb) lockSeeds(versions string) string {
	return `SELECT version FROM ` + versions + ` WHERE version = 1 FOR UPDATE`
}

// remove is a join, because DELETE … IN (SELECT …) would read the whole table, and lock it.
func (mariadb) remove(table, query string) string {
	return `DELETE ` + table + ` FROM ` + table + ` JOIN (` + query + `) AS found ON found.id = ` + table + `.id`
}

func (mariadb) now() string { return mariadbTime(`UTC_TIMESTAMP(3)`) }

func (mariadb) later() string {
	return mariadbTime(`UTC_TIMESTAMP(3) + INTERVAL CAST(? AS SIGNED) * 1000 MICROSECOND`)
}

func (mariadb) role() string { return `CURRENT_USER()` }

func (mariadb) outOfDate(at string) string {
	return at + ` < ` + mariadbTime(`UTC_TIMESTAMP(3) - INTERVAL 90 DAY`)
}

func mariadbTime(at string) string {
	return `CONCAT(LEFT(DATE_FORMAT(` + at + `, '%Y-%m-%dT%H:%i:%s.%f'), 23), 'Z')`
}

type queries struct {
	fence, topic, insert, claim, advance string
	act, list, listOne, count, now       string // see [operate.Admin]

	rows, rowsWhole, acts string // of the ledger
	box, boxWhole         string // of the outbox, as rows
	retry, discard        string
	add, revise, remove   string
	due, isDue            string
	sign, gone            string
	pruneMany, pruneOld   string

	lockSeeds, unshadow string // see [Dialect]
}

// newQueries returns the statements on tables whose names have a prefix, in a database or schema.
func newQueries(d Dialect, schema, prefix string) queries {
	const (
		key   = ` WHERE group_name = ? AND topic = ? AND number = ?`
		state = `log_id, lease_source, lease_generation, owner, epoch, claim_id, next_offset, mark, applied,` +
			` set_under, mode, mode_by, mode_reason, mode_at`
		row  = ` WHERE kind = ? AND id = ? AND revision = ?`
		acts = ` AND state IN ('rewind', 'skip', 'pause', 'resume', 'evict', 'rebase', 'run')`
	)
	prefix = schema + prefix
	fences, ledger, box := prefix+`fence`, prefix+`ledger`, prefix+`outbox_entry`
	// A subquery in FROM, because MySQL lets no other read the table that the statement writes.
	last := `COALESCE((SELECT revision FROM (SELECT revision FROM ` + ledger + ` WHERE kind = 'entry' ORDER BY id DESC LIMIT 1) AS newest), 0)`
	const sent = key + ` AND id = ? AND idempotency_key = ?`
	rows := `SELECT kind, id, name, group_name, topic, number, epoch, message_offset, state, cause, operator, role, written_at, changed_at, ` +
		d.now() + `, revision, body, `
	boxed := ` FROM (SELECT 'outbox' AS kind, id, idempotency_key AS name, group_name, topic, number, 0 AS epoch, message_offset,` +
		` CASE retry_requested WHEN 1 THEN 'requested' ELSE '' END AS state, url AS cause, order_key AS operator, '' AS role,` +
		` added_at AS written_at, added_at AS changed_at, 0 AS revision, json_object('scope', scope, 'method', method) AS body, header, body AS message_value` +
		` FROM ` + box + `) AS entries`
	list := `SELECT group_name, topic, number, COALESCE(claimed_at, ''), COALESCE(advanced_at, ''), ` + d.now() + `, ` + state + ` FROM ` + fences
	return queries{
		fence: `SELECT ` + state + ` FROM ` + fences + key,
		topic: `SELECT number, ` + state + ` FROM ` + fences + ` WHERE group_name = ? AND topic = ?`,
		insert: `INSERT INTO ` + fences + ` (group_name, topic, number, log_id, lease_source, next_offset, mark)` +
			` VALUES (?, ?, ?, ?, ?, ?, ?)`,
		claim: `UPDATE ` + fences + ` SET lease_generation = ?, owner = ?, epoch = ?, claim_id = ?,` +
			` next_offset = COALESCE(?, next_offset), mark = COALESCE(?, mark),` +
			` applied = COALESCE(?, applied), claimed_at = ` + d.now() +
			key + ` AND epoch = ? AND claim_id = ?`,
		// Rule R1: the statement that moves the fence compares the claim and the position. An
		// advance that applies no message keeps the mark. next_offset is set last because MySQL
		// reads what it has set.
		advance: `UPDATE ` + fences + ` SET mark = CASE WHEN next_offset = ? THEN mark ELSE ? END,` +
			` applied = CASE WHEN next_offset = ? THEN applied ELSE 1 END,` +
			` advanced_at = ` + d.now() + `, next_offset = ?` +
			key + ` AND claim_id = ? AND next_offset = ?`,

		act: `UPDATE ` + fences + ` SET owner = ?, epoch = ?, claim_id = ?, next_offset = ?, mark = ?, applied = ?, set_under = ?,` +
			` log_id = ?, lease_source = ?, mode = ?, mode_by = ?, mode_reason = ?, mode_at = ?, claimed_at = ` + d.now() +
			key + ` AND claim_id = ? AND epoch = ?`,
		list:    list + ` WHERE (? = '' OR group_name = ?) AND (? = '' OR topic = ?) AND (NOT ? OR mode <> '') ORDER BY group_name, topic, number`,
		listOne: list + key,
		count:   `SELECT group_name, topic, number, COUNT(*) FROM ` + ledger + ` WHERE kind = ? AND state <> 'deferred' GROUP BY group_name, topic, number`,
		now:     `SELECT ` + d.now(),

		rows:      rows + `NULL, NULL, NULL FROM ` + ledger,
		rowsWhole: rows + `message_key, message_value, message_headers FROM ` + ledger,
		box:       rows + `NULL, NULL, NULL` + boxed,
		boxWhole:  rows + `NULL, message_value, header` + boxed,
		retry:     `UPDATE ` + box + ` SET retry_requested = 1` + sent,
		discard:   `DELETE FROM ` + box + sent,
		acts:      `SELECT COALESCE(MAX(+id), 0) FROM ` + ledger + ` WHERE kind = 'entry'` + acts,
		// An entry has its number in the audit log as its revision, for what is pruned.
		add: `INSERT INTO ` + ledger + ` (due_at, written_at, changed_at, role, revision, kind, name, group_name, topic, number, epoch, message_offset, state, cause, operator,` +
			` body, message_key, message_value, message_headers) VALUES (` + d.later() + `, ` + d.now() + `, ` + d.now() + `, ` + d.role() + `, CASE ? WHEN 'process' THEN 1 WHEN 'entry' THEN ` + last + ` + 1 ELSE 0 END, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		revise: `UPDATE ` + ledger + ` SET state = ?, cause = ?, operator = ?, body = ?, due_at = ` + d.later() + `, revision = revision + 1, changed_at = ` + d.now() + row,
		due:    `SELECT DISTINCT group_name, topic, number FROM ` + ledger + ` WHERE due_at <= ` + d.now() + ` AND state = 'deferred'`,
		isDue:  `due_at <= ` + d.now(),
		remove: `DELETE FROM ` + ledger + row,
		sign:   `UPDATE ` + ledger + ` SET cause = ?, body = ?, revision = revision + 1, changed_at = ` + d.now() + ` WHERE kind = 'process' AND name = ?`,
		gone:   `DELETE FROM ` + ledger + ` WHERE kind = 'process' AND name = ? AND (? = 0 OR revision = ?)`,

		// Both read only the oldest rows, so that their cost does not grow with the log.
		pruneMany: d.remove(ledger, `SELECT id FROM (SELECT id, revision FROM `+ledger+
			` WHERE kind = 'entry' AND operator = '' ORDER BY id LIMIT 4) AS oldest WHERE revision <= `+last+` - ?`),
		pruneOld: d.remove(ledger, `SELECT id FROM (SELECT id, written_at FROM `+ledger+
			` WHERE kind = 'entry' ORDER BY id LIMIT 4) AS oldest WHERE `+d.outOfDate(`written_at`)),

		lockSeeds: d.lockSeeds(prefix + `migration`),
		unshadow:  d.unshadow(fences, ledger, box),
	}
}
