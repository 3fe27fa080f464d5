package sqlsink_test

import "github.com/epochfence/epochfence/sinks/sinktest"

// inSQLite is SQLite's dialect.
var inSQLite = &sinktest.Dialect{Name: "SQLite", Idioms: ofSQLite, Setup: `
	CREATE TABLE idiom_keys (k TEXT PRIMARY KEY);
	INSERT INTO idiom_keys VALUES ('always there');
	CREATE TABLE idiom_children (k TEXT REFERENCES idiom_keys DEFERRABLE INITIALLY DEFERRED);
	CREATE TABLE idiom_counts (k TEXT PRIMARY KEY, n INT);
	INSERT INTO idiom_counts VALUES ('one', 0);
	CREATE TABLE idiom_ends (k TEXT);
	CREATE TRIGGER idiom_end AFTER INSERT ON idiom_ends BEGIN SELECT RAISE(ROLLBACK, 'ended by a trigger'); END;
	`}

var ofSQLite = []sinktest.Idiom{
	{Name: "INSERT OR ROLLBACK", Want: sinktest.Costs, Says: []string{"constraint failed"}, Do: sinktest.Sends("INSERT OR ROLLBACK INTO idiom_keys VALUES ('always there')")},
	{Name: "INSERT OR ROLLBACK, and continues", Want: sinktest.Costs, Says: []string{"OR ROLLBACK"}, Do: sinktest.Hides("INSERT OR ROLLBACK INTO idiom_keys VALUES ('always there')")},
	{Name: "INSERT OR IGNORE", Want: sinktest.Applied, Do: sinktest.Sends("INSERT OR IGNORE INTO idiom_keys VALUES ('always there')")},
	{Name: "a trigger that raises ROLLBACK", Want: sinktest.Costs, Says: []string{"ended by a trigger"}, Do: sinktest.Sends("INSERT INTO idiom_ends VALUES ('x')")},
	{Name: "a trigger that raises ROLLBACK, and continues", Want: sinktest.Costs, Do: sinktest.Hides("INSERT INTO idiom_ends VALUES ('x')")},

	{Name: "everybody: CREATE TEMP TABLE", Everybody: true, Want: sinktest.Alone, Do: sinktest.Sends("CREATE TEMP TABLE mine (n)")},
	{Name: "a temp table with the name of the fence", Want: sinktest.Alone, Places: true, Do: sinktest.Sends("CREATE TEMP TABLE epochfence_fence AS SELECT * FROM main.epochfence_fence")},
	{Name: "a temp table with the name of the effects", Want: sinktest.Alone, Do: sinktest.Sends("CREATE TEMP TABLE effects (id, list, value)")},
	{Name: "a temp view with the name of the fence", Want: sinktest.Alone, Do: sinktest.Sends("CREATE TEMP VIEW epochfence_fence AS SELECT 1")},
	{Name: "a temp trigger that swallows writes", Want: sinktest.Alone, Do: sinktest.Sends("CREATE TEMP TRIGGER swallow BEFORE INSERT ON main.effects BEGIN SELECT RAISE(IGNORE); END")},
	{Name: "everybody: ATTACH", Everybody: true, Want: sinktest.Alone, Do: sinktest.Sends("ATTACH ':memory:' AS mine")},
	{Name: "PRAGMA query_only", Want: sinktest.Costs, Do: sinktest.Sends("PRAGMA query_only = 1")},
	{Name: "PRAGMA defer_foreign_keys", Want: sinktest.Alone, Do: sinktest.Sends("PRAGMA defer_foreign_keys = 1")},
	{Name: "PRAGMA case_sensitive_like", Want: sinktest.Alone, Do: sinktest.Sends("PRAGMA case_sensitive_like = 1")},
	{Name: "PRAGMA recursive_triggers", Want: sinktest.Alone, Do: sinktest.Sends("PRAGMA recursive_triggers = 1")},
	{Name: "PRAGMA ignore_check_constraints", Want: sinktest.Alone, Do: sinktest.Sends("PRAGMA ignore_check_constraints = 1")},
	{Name: "replaces the claims in the fences", Want: sinktest.Costs, Do: sinktest.Sends("UPDATE epochfence_fence SET claim_id = randomblob(16)")},
	{Name: "VACUUM", Want: sinktest.Costs, Says: []string{"VACUUM"}, Do: sinktest.Sends("VACUUM")},

	{Name: "a statement that fails, and hides the error", Want: sinktest.Applied, Do: sinktest.FailsAndWrites},
	{Name: "a NUL byte in an argument", Want: sinktest.Applied, Do: sinktest.SendsWith("INSERT INTO effects (list, value) VALUES ('x', $1)", "a\x00b")},
	{Name: "too many arguments", Want: sinktest.Applied, Do: sinktest.SendsWith("INSERT INTO effects (list, value) VALUES ($1, 'y')", "x", "z")},

	{Name: "rows that are left open", Answers: true, Want: sinktest.Applied, Do: sinktest.QueriesAndWrites("SELECT value FROM effects", sinktest.LeftOpen)},
	{Name: "rows that are read after the return", Answers: true, Want: sinktest.Applied, Do: sinktest.QueriesAndWrites("SELECT k FROM idiom_keys", sinktest.ReadLater)},
}
