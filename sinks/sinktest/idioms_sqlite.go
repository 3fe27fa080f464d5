package sinktest

// SQLite is SQLite's dialect.
var SQLite = &Dialect{Name: "SQLite", idioms: sqlite, Setup: `
	CREATE TABLE idiom_keys (k TEXT PRIMARY KEY);
	INSERT INTO idiom_keys VALUES ('always there');
	CREATE TABLE idiom_children (k TEXT REFERENCES idiom_keys DEFERRABLE INITIALLY DEFERRED);
	CREATE TABLE idiom_counts (k TEXT PRIMARY KEY, n INT);
	INSERT INTO idiom_counts VALUES ('one', 0);
	CREATE TABLE idiom_ends (k TEXT);
	CREATE TRIGGER idiom_end AFTER INSERT ON idiom_ends BEGIN SELECT RAISE(ROLLBACK, 'ended by a trigger'); END;
	`}

var sqlite = []Idiom{
	{Name: "INSERT OR ROLLBACK", Want: Costs, Says: []string{"constraint failed"}, Do: sends("INSERT OR ROLLBACK INTO idiom_keys VALUES ('always there')")},
	{Name: "INSERT OR ROLLBACK, and continues", Want: Costs, Says: []string{"OR ROLLBACK"}, Do: hides("INSERT OR ROLLBACK INTO idiom_keys VALUES ('always there')")},
	{Name: "INSERT OR IGNORE", Want: Applied, Do: sends("INSERT OR IGNORE INTO idiom_keys VALUES ('always there')")},
	{Name: "a trigger that raises ROLLBACK", Want: Costs, Says: []string{"ended by a trigger"}, Do: sends("INSERT INTO idiom_ends VALUES ('x')")},
	{Name: "a trigger that raises ROLLBACK, and continues", Want: Costs, Do: hides("INSERT INTO idiom_ends VALUES ('x')")},

	{Name: "everybody: CREATE TEMP TABLE", Everybody: true, Want: Alone, Do: sends("CREATE TEMP TABLE mine (n)")},
	{Name: "a temp table with the name of the fence", Want: Alone, Places: true, Do: sends("CREATE TEMP TABLE epochfence_fence AS SELECT * FROM main.epochfence_fence")},
	{Name: "a temp table with the name of the effects", Want: Alone, Do: sends("CREATE TEMP TABLE effects (id, list, value)")},
	{Name: "a temp view with the name of the fence", Want: Alone, Do: sends("CREATE TEMP VIEW epochfence_fence AS SELECT 1")},
	{Name: "a temp trigger that swallows writes", Want: Alone, Do: sends("CREATE TEMP TRIGGER swallow BEFORE INSERT ON main.effects BEGIN SELECT RAISE(IGNORE); END")},
	{Name: "everybody: ATTACH", Everybody: true, Want: Alone, Do: sends("ATTACH ':memory:' AS mine")},
	{Name: "PRAGMA query_only", Want: Costs, Do: sends("PRAGMA query_only = 1")},
	{Name: "PRAGMA defer_foreign_keys", Want: Alone, Do: sends("PRAGMA defer_foreign_keys = 1")},
	{Name: "PRAGMA case_sensitive_like", Want: Alone, Do: sends("PRAGMA case_sensitive_like = 1")},
	{Name: "PRAGMA recursive_triggers", Want: Alone, Do: sends("PRAGMA recursive_triggers = 1")},
	{Name: "PRAGMA ignore_check_constraints", Want: Alone, Do: sends("PRAGMA ignore_check_constraints = 1")},
	{Name: "replaces the claims in the fences", Want: Costs, Do: sends("UPDATE epochfence_fence SET claim_id = randomblob(16)")},
	{Name: "VACUUM", Want: Costs, Says: []string{"VACUUM"}, Do: sends("VACUUM")},

	{Name: "a statement that fails, and hides the error", Want: Applied, Do: func(c *Call) error {
		_ = c.Exec("INSERT INTO idiom_keys VALUES ('always there')")
		return c.Write()
	}},
	{Name: "a NUL byte in an argument", Want: Applied, Do: func(c *Call) error {
		return inTurn(c.Write, c.exec("INSERT INTO effects (list, value) VALUES ('x', $1)", "a\x00b"))
	}},
	{Name: "too many arguments", Want: Applied, Do: func(c *Call) error {
		return inTurn(c.Write, c.exec("INSERT INTO effects (list, value) VALUES ($1, 'y')", "x", "z"))
	}},

	{Name: "rows that are left open", Answers: true, Want: Applied, Do: func(c *Call) error {
		_, err := c.Query("SELECT value FROM effects")
		return inTurn(func() error { return err }, c.Write)
	}},
	{Name: "rows that are read after the return", Answers: true, Want: Applied, Do: func(c *Call) error {
		rows, err := c.Query("SELECT k FROM idiom_keys")
		if err != nil {
			return err
		}
		c.Go(func() {
			<-c.Returned
			rows.Next()
			rows.Close()
		})
		return c.Write()
	}},
}
