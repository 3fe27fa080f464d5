package sinktest

import "fmt"

// This file has MariaDB's dialect and its idioms.

// MariaDB is MariaDB's dialect. The mode's Exec replaces $1 and $2 by ?, and Setup has statements that end
// with a semicolon and a line break.
var MariaDB = &Dialect{Name: "MariaDB", idioms: mariadb, Setup: `
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

var mariadb = []Idiom{
	// Statements that commit.
	{Name: "START TRANSACTION", Want: Costs, Says: []string{"START TRANSACTION"}, Do: hides("START TRANSACTION")},
	{Name: "SET autocommit", Want: Costs, Says: []string{"SET autocommit"}, Do: hides("SET autocommit = 1")},
	{Name: "XA", Want: Costs, Says: []string{"XA START"}, Do: hides("XA START 'mine'")},
	{Name: "CREATE TABLE", Places: true, Want: Costs, Says: []string{"CREATE TABLE"}, Do: sends("CREATE TABLE mine (n INT)")},
	{Name: "CREATE TABLE, and hides the error", Want: Costs, Says: []string{"CREATE TABLE"}, Do: hides("CREATE TABLE mine (n INT)")},
	{Name: "TRUNCATE", Want: Costs, Says: []string{"TRUNCATE"}, Do: hides("TRUNCATE idiom_ends")},
	{Name: "ANALYZE TABLE", Want: Costs, Says: []string{"ANALYZE"}, Do: hides("ANALYZE TABLE idiom_ends")},
	{Name: "LOCK TABLES", Want: Costs, Says: []string{"LOCK TABLES"}, Do: hides("LOCK TABLES idiom_ends WRITE")},
	{Name: "COMMIT in a comment that is run", Want: Costs, Says: []string{"50000 COMMIT"}, Do: hides("/*!50000 COMMIT */")},
	{Name: "a procedure that commits", Want: Halts, Says: []string{"CALL idiom_commits"}, Do: func(c *Call) error { return c.Exec("CALL idiom_commits()") }},
	{Name: "EXECUTE IMMEDIATE of COMMIT, and hides the error", Want: Halts, Says: []string{"EXECUTE IMMEDIATE"}, Do: func(c *Call) error {
		_ = c.Exec("EXECUTE IMMEDIATE 'COMMIT'")
		return c.Write() // is not sent
	}},
	{Name: "SET STATEMENT … FOR COMMIT", Want: Halts, Says: []string{"SET STATEMENT"}, Do: func(c *Call) error {
		return c.Exec("SET STATEMENT max_statement_time = 10 FOR COMMIT")
	}},

	// The session and the transaction.
	{Name: "SET sql_mode", Want: Alone, Places: true, Do: sends("SET sql_mode = ''")},
	{Name: "SET NAMES", Want: Alone, Do: sends("SET NAMES latin1")},
	{Name: "SET SESSION TRANSACTION READ ONLY", Want: Alone, Do: sends("SET SESSION TRANSACTION READ ONLY")},
	{Name: "SET TRANSACTION READ ONLY", Want: Costs, Do: sends("SET TRANSACTION READ ONLY")},
	{Name: "SELECT @n := 1", Want: Alone, Do: sends("SELECT @n := 1")},
	{Name: "USE", Want: Alone, Places: true, Do: sends("USE information_schema")},
	{Name: "everybody: GET_LOCK", Everybody: true, Want: Alone, Do: sends("SELECT GET_LOCK('mine', 10)")},
	{Name: "everybody PREPAREs the same name", Everybody: true, Want: Alone, Do: sends("PREPARE mine FROM 'SELECT 1'")},
	{Name: "CALL", Want: Alone, Do: sends("CALL idiom_counts()")},
	{Name: "CALL that returns rows", Answers: true, Want: Alone, Do: func(c *Call) error {
		rows, err := c.Query("CALL idiom_reads()")
		if err != nil {
			return err
		}
		rows.Next()
		rows.Close()
		return c.Write()
	}},
	{Name: "SET STATEMENT max_statement_time, and runs into it", Want: Costs, Says: []string{"max_statement_time"}, Do: sends("SET STATEMENT max_statement_time = 0.05 FOR SELECT SLEEP(60)")},
	{Name: "KILL of itself", Want: Costs, Do: sends("KILL CONNECTION_ID()")},

	// Temporary tables.
	{Name: "everybody: CREATE TEMPORARY TABLE", Everybody: true, Want: Alone, Do: sends("CREATE TEMPORARY TABLE mine (n INT)")},
	{Name: "a temporary table with the name of the fence", Want: Alone, Places: true, Do: sends("CREATE TEMPORARY TABLE epochfence_fence AS SELECT * FROM epochfence_fence")},
	{Name: "a temporary table with the name of the effects", Want: Alone, Do: sends("CREATE TEMPORARY TABLE effects (id INT, list TEXT, value TEXT)")},

	{Name: "replaces the claims in the fences", Want: Costs, Do: func(c *Call) error {
		return c.Exec(fmt.Sprintf("UPDATE epochfence_fence SET claim_id = UNHEX(MD5(RAND())) WHERE topic = '%s'", c.Message.Partition.Topic))
	}},
	{Name: "INSERT IGNORE, REPLACE and ON DUPLICATE KEY UPDATE", Want: Applied, Do: sends("INSERT IGNORE INTO idiom_keys VALUES ('always there')",
		"REPLACE INTO idiom_keys VALUES ('always there')", "INSERT INTO idiom_counts VALUES ('two', 0) ON DUPLICATE KEY UPDATE n = n + 1")},
	{Name: "SELECT FOR UPDATE", Want: Applied, Do: sends("SELECT n FROM idiom_counts WHERE k = 'two' FOR UPDATE")},
	{Name: "a statement that fails, and hides the error", Want: Applied, Do: func(c *Call) error {
		_ = c.Exec("INSERT INTO idiom_keys VALUES ('always there')")
		return c.Write()
	}},
	{Name: "a trigger that raises an error", Want: Costs, Says: []string{"raised by a trigger"}, Do: sends("INSERT INTO idiom_ends VALUES ('x')")},
	{Name: "a NUL byte in an argument", Want: Applied, Do: sendsWith("INSERT INTO effects (list, value) VALUES ('x', $1)", "a\x00b")},
	{Name: "too many arguments", Want: Costs, Do: sendsWith("INSERT INTO effects (list, value) VALUES ($1, 'y')", "x", "z")},
	{Name: "a statement while rows are open", Answers: true, Want: Applied, Do: func(c *Call) error {
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
	{Name: "rows that are left open", Answers: true, Want: Applied, Do: func(c *Call) error {
		_, err := c.Query("SELECT value FROM effects")
		return inTurn(func() error { return err }, c.Write)
	}},
}
