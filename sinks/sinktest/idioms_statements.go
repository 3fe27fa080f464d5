package sinktest

var statements = []Idiom{
	// The sink does not send statements that begin or end a transaction.
	{Name: "COMMIT", Wire: true, Want: Costs, Says: []string{"COMMIT"}, Places: true, Do: sends("COMMIT")},
	{Name: "COMMIT, and hides the error", Want: Costs, Says: []string{"COMMIT"}, Places: true, Do: hides("COMMIT")},
	{Name: "COMMIT and an error of its own", Want: Costs, Says: []string{"COMMIT", errOfHandler.Error()}, Do: func(c *Call) error {
		_ = hides("COMMIT")(c)
		return errOfHandler
	}},
	{Name: "ROLLBACK", Want: Costs, Says: []string{"ROLLBACK"}, Places: true, Do: sends("ROLLBACK")},
	{Name: "ROLLBACK, and continues", Want: Costs, Says: []string{"ROLLBACK"}, Places: true, Do: hides("ROLLBACK")},
	{Name: "BEGIN", Want: Costs, Says: []string{"BEGIN"}, Do: sends("BEGIN")},
	{Name: "END", Want: Costs, Says: []string{"END"}, Do: sends("END")},
	{Name: "commit; begin", Wire: true, Want: Costs, Says: []string{"commit; begin"}, Places: true, Do: sends("commit; begin")},
	{Name: "rollback; begin, and continues", Want: Costs, Says: []string{"rollback; begin"}, Do: hides("rollback; begin")},
	{Name: "COMMIT and BEGIN, and hides the errors", Want: Costs, Says: []string{"COMMIT"}, Do: hides("COMMIT", "BEGIN")},
	{Name: "a comment and COMMIT", Want: Costs, Says: []string{"COMMIT"}, Do: hides("/* done */ -- really\n COMMIT")},
	{Name: "an insert and COMMIT in one text", Wire: true, Want: Costs, Says: []string{"COMMIT"}, Do: func(c *Call) error { return c.Exec(c.Insert() + "; COMMIT") }},

	// Savepoints in SQL.
	{Name: "SAVEPOINT and RELEASE", Want: Alone, Places: true, Do: sends("SAVEPOINT mine", "RELEASE SAVEPOINT mine")},
	{Name: "SAVEPOINT, ROLLBACK TO, and writes", Want: Alone, Do: func(c *Call) error {
		return inTurn(c.exec("SAVEPOINT mine"), c.Write, c.exec("ROLLBACK TO SAVEPOINT mine"), c.Write)
	}},
	{Name: "SAVEPOINT that is left, and ROLLBACK TO by the next message", Want: Alone, ThenWant: Costs,
		Do: sends("SAVEPOINT mine"), Then: sends("ROLLBACK TO SAVEPOINT mine")},
	{Name: "everybody has a SAVEPOINT of the same name", Everybody: true, Want: Alone, Do: sends("SAVEPOINT mine")},
	{Name: "ROLLBACK TO a name that a sink might have", Want: Costs, Do: sends("ROLLBACK TO SAVEPOINT epochfence_handler")},
	{Name: "ROLLBACK TO epochfence_1, and hides the error", Want: Costs, Do: func(c *Call) error {
		_ = c.Write()
		return c.Exec("ROLLBACK TO SAVEPOINT epochfence_1")
	}},
	{Name: "RELEASE of a name that a sink might have", Want: Costs, Do: sends("RELEASE SAVEPOINT epochfence_1")},

	{Name: "a duplicate key, and returns the error", Wire: true, Want: Costs, Says: []string{"idiom_keys"}, Do: func(c *Call) error {
		return inTurn(c.Write, c.exec("insert into idiom_keys values ('always there')"))
	}},
	{Name: "a text that is no SQL", Wire: true, Want: Costs, Says: []string{"syntax"}, Do: sends("insert in to effects")},
	{Name: "a table that is not there", Wire: true, Want: Halts, Says: []string{"nowhere"}, Do: sends("insert into nowhere values (1)")},
	{Name: "a table that is not there, in Permanent", Want: Costs, Says: []string{"nowhere"}, Answers: true, Do: func(c *Call) error {
		return permanently(sends("insert into nowhere values (1)")(c))
	}},
	{Name: "too few arguments", Wire: true, Want: Costs, Do: func(c *Call) error {
		return inTurn(c.Write, c.exec("insert into effects (list, value) values ($1, $2)", "one"))
	}},
	{Name: "an argument of no type", Wire: true, Want: Costs, Do: func(c *Call) error {
		return inTurn(c.Write, c.exec("insert into effects (list, value) values ('x', $1)", make(chan int)))
	}},

	// Another connection, which waits for this one.
	{Name: "waits for itself on another connection", Answers: true, Want: Costs, Says: []string{"lock"}, Do: func(c *Call) error {
		return inTurn(c.Write,
			c.exec("update idiom_counts set n = n + 1 where k = 'one'"),
			func() error { return c.Aside("update idiom_counts set n = n + 1 where k = 'one'") })
	}},
	{Name: "reads on another connection", Answers: true, Want: Applied, Do: func(c *Call) error {
		return inTurn(c.Write, func() error { return c.Aside("select count(*) from effects") })
	}},
}
