package mariadb_test

import (
	"fmt"

	"github.com/epochfence/epochfence/sinks/sinktest"
)

// inMariaDB is MariaDB's dialect. The mode's Exec replaces $1 and $2 by ?, and Setup has statements that end
// with a semicolon and a line break.
var inMariaDB = &sinktest.Dialect{Name: "MariaDB", Idioms: ofMariaDB, Setup: `
CREATE TABLE idiom_keys (k VARCHAR(100) NOT NULL, UNIQUE KEY idiom_keys (k));
INSERT INTO idiom_keys VALUES ('always there');
CREATE TABLE idiom_counts (k VARCHAR(100) PRIMARY KEY, n INT NOT NULL);
INSERT INTO idiom_counts VALUES ('one', 0), ('two', 0);
CREATE TABLE idiom_ends (k VARCHAR(100));
CREATE TRIGGER idiom_end BEFORE INSERT ON idiom_ends FOR EACH ROW SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'raised by a trigger';
CREATE PROCEDURE idiom_counts() UPDATE idiom_counts SET n = n + 1 WHERE k = 'two';
CREATE PROCEDURE idiom_reads() SELECT k FROM idiom_keys;
CREATE PROCEDURE idiom_commits() COMMIT
`}

var ofMariaDB = []sinktest.Idiom{
	// Statements that commit.
	{Name: "START TRANSACTION", Want: sinktest.Costs, Says: []string{"START TRANSACTION"}, Do: sinktest.Hides("START TRANSACTION")},
	{Name: "SET autocommit", Want: sinktest.Costs, Says: []string{"SET autocommit"}, Do: sinktest.Hides("SET autocommit = 1")},
	{Name: "XA", Want: sinktest.Costs, Says: []string{"XA START"}, Do: sinktest.Hides("XA START 'mine'")},
	{Name: "CREATE TABLE", Places: true, Want: sinktest.Costs, Says: []string{"CREATE TABLE"}, Do: sinktest.Sends("CREATE TABLE mine (n INT)")},
	{Name: "CREATE TABLE, and hides the error", Want: sinktest.Costs, Says: []string{"CREATE TABLE"}, Do: sinktest.Hides("CREATE TABLE mine (n INT)")},
	{Name: "TRUNCATE", Want: sinktest.Costs, Says: []string{"TRUNCATE"}, Do: sinktest.Hides("TRUNCATE idiom_ends")},
	{Name: "ANALYZE TABLE", Want: sinktest.Costs, Says: []string{"ANALYZE"}, Do: sinktest.Hides("ANALYZE TABLE idiom_ends")},
	{Name: "LOCK TABLES", Want: sinktest.Costs, Says: []string{"LOCK TABLES"}, Do: sinktest.Hides("LOCK TABLES idiom_ends WRITE")},
	{Name: "COMMIT in a comment that is run", Want: sinktest.Costs, Says: []string{"50000 COMMIT"}, Do: sinktest.Hides("/*!50000 COMMIT */")},
	{Name: "a procedure that commits", Want: sinktest.Halts, Says: []string{"CALL idiom_commits"}, Do: func(c *sinktest.Call) error { return c.Exec("CALL idiom_commits()") }},
	{Name: "EXECUTE IMMEDIATE of COMMIT, and hides the error", Want: sinktest.Halts, Says: []string{"EXECUTE IMMEDIATE"}, Do: func(c *sinktest.Call) error {
		_ = c.Exec("EXECUTE IMMEDIATE 'COMMIT'")
		return c.Write() // is not sent
	}},
	{Name: "SET STATEMENT … FOR COMMIT", Want: sinktest.Halts, Says: []string{"SET STATEMENT"}, Do: func(c *sinktest.Call) error {
		return c.Exec("SET STATEMENT max_statement_time = 10 FOR COMMIT")
	}},

	// The session and the transaction.
	{Name: "SET sql_mode", Want: sinktest.Alone, Places: true, Do: sinktest.Sends("SET sql_mode = ''")},
	{Name: "SET NAMES", Want: sinktest.Alone, Do: sinktest.Sends("SET NAMES latin1")},
	{Name: "SET SESSION TRANSACTION READ ONLY", Want: sinktest.Alone, Do: sinktest.Sends("SET SESSION TRANSACTION READ ONLY")},
	{Name: "SET TRANSACTION READ ONLY", Want: sinktest.Costs, Do: sinktest.Sends("SET TRANSACTION READ ONLY")},
	{Name: "SELECT @n := 1", Want: sinktest.Alone, Do: sinktest.Sends("SELECT @n := 1")},
	{Name: "USE", Want: sinktest.Alone, Places: true, Do: sinktest.Sends("USE information_schema")},
	{Name: "everybody: GET_LOCK", Everybody: true, Want: sinktest.Alone, Do: sinktest.Sends("SELECT GET_LOCK('mine', 10)")},
	{Name: "everybody PREPAREs the same name", Everybody: true, Want: sinktest.Alone, Do: sinktest.Sends("PREPARE mine FROM 'SELECT 1'")},
	{Name: "CALL", Want: sinktest.Alone, Do: sinktest.Sends("CALL idiom_counts()")},
	{Name: "CALL that returns rows", Answers: true, Want: sinktest.Alone, Do: sinktest.QueriesAndWrites("CALL idiom_reads()", sinktest.ClosedHalfRead)},
	{Name: "SET STATEMENT max_statement_time, and runs into it", Want: sinktest.Costs, Says: []string{"max_statement_time"}, Do: sinktest.Sends("SET STATEMENT max_statement_time = 0.05 FOR SELECT SLEEP(60)")},
	{Name: "KILL of itself", Want: sinktest.Costs, Do: sinktest.Sends("KILL CONNECTION_ID()")},

	// Temporary tables.
	{Name: "everybody: CREATE TEMPORARY TABLE", Everybody: true, Want: sinktest.Alone, Do: sinktest.Sends("CREATE TEMPORARY TABLE mine (n INT)")},
	{Name: "a temporary table with the name of the fence", Want: sinktest.Alone, Places: true, Do: sinktest.Sends("CREATE TEMPORARY TABLE epochfence_fence AS SELECT * FROM epochfence_fence")},
	{Name: "a temporary table with the name of the effects", Want: sinktest.Alone, Do: sinktest.Sends("CREATE TEMPORARY TABLE effects (id INT, list TEXT, value TEXT)")},

	{Name: "replaces the claims in the fences", Want: sinktest.Costs, Do: func(c *sinktest.Call) error {
		return c.Exec(fmt.Sprintf("UPDATE epochfence_fence SET claim_id = UNHEX(MD5(RAND())) WHERE topic = '%s'", c.Message.Partition.Topic))
	}},
	{Name: "INSERT IGNORE, REPLACE and ON DUPLICATE KEY UPDATE", Want: sinktest.Applied, Do: sinktest.Sends("INSERT IGNORE INTO idiom_keys VALUES ('always there')",
		"REPLACE INTO idiom_keys VALUES ('always there')", "INSERT INTO idiom_counts VALUES ('two', 0) ON DUPLICATE KEY UPDATE n = n + 1")},
	{Name: "SELECT FOR UPDATE", Want: sinktest.Applied, Do: sinktest.Sends("SELECT n FROM idiom_counts WHERE k = 'two' FOR UPDATE")},
	{Name: "a statement that fails, and hides the error", Want: sinktest.Applied, Do: sinktest.FailsAndWrites},
	{Name: "a trigger that raises an error", Want: sinktest.Costs, Says: []string{"raised by a trigger"}, Do: sinktest.Sends("INSERT INTO idiom_ends VALUES ('x')")},
	{Name: "a NUL byte in an argument", Want: sinktest.Applied, Do: sinktest.SendsWith("INSERT INTO effects (list, value) VALUES ('x', $1)", "a\x00b")},
	{Name: "too many arguments", Want: sinktest.Costs, Do: sinktest.SendsWith("INSERT INTO effects (list, value) VALUES ($1, 'y')", "x", "z")},
	{Name: "a statement while rows are open", Answers: true, Want: sinktest.Applied, Do: func(c *sinktest.Call) error {
		rows, err := c.Query("SELECT k FROM idiom_keys")
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			if err := c.Write(); err != nil {
				return err
			}
		}
		return nil
	}},
	{Name: "rows that are left open", Answers: true, Want: sinktest.Applied, Do: sinktest.QueriesAndWrites("SELECT value FROM effects", sinktest.LeftOpen)},
}
