package sinktest

import "github.com/epochfence/epochfence/consumer"

// This file has the idioms of texts that are sent as they are, in all dialects, and what those of one
// dialect are made of. A dialect's own are beside the tests of its sink.

var statements = []Idiom{
	// The sink does not send statements that begin or end a transaction.
	{Name: "COMMIT", Wire: true, Want: Costs, Says: []string{"COMMIT"}, Places: true, Do: Sends("COMMIT")},
	{Name: "COMMIT, and hides the error", Want: Costs, Says: []string{"COMMIT"}, Places: true, Do: Hides("COMMIT")},
	{Name: "COMMIT and an error of its own", Want: Costs, Says: []string{"COMMIT", errOfHandler.Error()}, Do: func(c *Call) error {
		_ = Hides("COMMIT")(c)
		return errOfHandler
	}},
	{Name: "ROLLBACK", Want: Costs, Says: []string{"ROLLBACK"}, Places: true, Do: Sends("ROLLBACK")},
	{Name: "ROLLBACK, and continues", Want: Costs, Says: []string{"ROLLBACK"}, Places: true, Do: Hides("ROLLBACK")},
	{Name: "BEGIN", Want: Costs, Says: []string{"BEGIN"}, Do: Sends("BEGIN")},
	{Name: "END", Want: Costs, Says: []string{"END"}, Do: Sends("END")},
	{Name: "commit; begin", Wire: true, Want: Costs, Says: []string{"commit; begin"}, Places: true, Do: Sends("commit; begin")},
	{Name: "rollback; begin, and continues", Want: Costs, Says: []string{"rollback; begin"}, Do: Hides("rollback; begin")},
	{Name: "COMMIT and BEGIN, and hides the errors", Want: Costs, Says: []string{"COMMIT"}, Do: Hides("COMMIT", "BEGIN")},
	{Name: "a comment and COMMIT", Want: Costs, Says: []string{"COMMIT"}, Do: Hides("/* done */ -- really\n COMMIT")},
	{Name: "an insert and COMMIT in one text", Wire: true, Want: Costs, Says: []string{"COMMIT"}, Do: func(c *Call) error { return c.Exec(c.Insert() + "; COMMIT") }},

	// Savepoints in SQL.
	{Name: "SAVEPOINT and RELEASE", Want: Alone, Places: true, Do: Sends("SAVEPOINT mine", "RELEASE SAVEPOINT mine")},
	{Name: "SAVEPOINT, ROLLBACK TO, and writes", Want: Alone, Do: func(c *Call) error {
		return inTurn(c.exec("SAVEPOINT mine"), c.Write, c.exec("ROLLBACK TO SAVEPOINT mine"), c.Write)
	}},
	{Name: "SAVEPOINT that is left, and ROLLBACK TO by the next message", Want: Alone, ThenWant: Costs,
		Do: Sends("SAVEPOINT mine"), Then: Sends("ROLLBACK TO SAVEPOINT mine")},
	{Name: "everybody has a SAVEPOINT of the same name", Everybody: true, Want: Alone, Do: Sends("SAVEPOINT mine")},
	{Name: "ROLLBACK TO a name that a sink might have", Want: Costs, Do: Sends("ROLLBACK TO SAVEPOINT epochfence_handler")},
	{Name: "ROLLBACK TO epochfence_1, and hides the error", Want: Costs, Do: func(c *Call) error {
		_ = c.Write()
		return c.Exec("ROLLBACK TO SAVEPOINT epochfence_1")
	}},
	{Name: "RELEASE of a name that a sink might have", Want: Costs, Do: Sends("RELEASE SAVEPOINT epochfence_1")},

	{Name: "a duplicate key, and returns the error", Wire: true, Want: Costs, Says: []string{"idiom_keys"}, Do: Sends("insert into idiom_keys values ('always there')")},
	{Name: "a text that is no SQL", Wire: true, Want: Costs, Says: []string{"syntax"}, Do: Sends("insert in to effects")},
	{Name: "a table that is not there", Wire: true, Want: Halts, Says: []string{"nowhere"}, Do: Sends("insert into nowhere values (1)")},
	{Name: "a table that is not there, in Permanent", Want: Costs, Says: []string{"nowhere"}, Answers: true, Do: func(c *Call) error {
		return consumer.Permanent(Sends("insert into nowhere values (1)")(c))
	}},
	{Name: "too few arguments", Wire: true, Want: Costs, Do: SendsWith("insert into effects (list, value) values ($1, $2)", "one")},
	{Name: "an argument of no type", Wire: true, Want: Costs, Do: SendsWith("insert into effects (list, value) values ('x', $1)", make(chan int))},

	// Another connection, which waits for this one.
	{Name: "waits for itself on another connection", Answers: true, Want: Costs, Says: []string{"ock"}, Do: func(c *Call) error { // a lock, or a Lock wait
		return inTurn(c.Write,
			c.exec("update idiom_counts set n = n + 1 where k = 'one'"),
			func() error { return c.Aside("update idiom_counts set n = n + 1 where k = 'one'") })
	}},
	{Name: "reads on another connection", Answers: true, Want: Applied, Do: func(c *Call) error {
		return inTurn(c.Write, func() error { return c.Aside("select count(*) from effects") })
	}},
}

// FailsAndWrites is a handler that hides the error of a statement, and then writes its effect.
func FailsAndWrites(c *Call) error {
	_ = c.Exec("INSERT INTO idiom_keys VALUES ('always there')")
	return c.Write()
}

// QueriesAndWrites returns a handler that uses the rows of a query, and then writes its effect.
func QueriesAndWrites(query string, use func(c *Call, rows Rows)) func(c *Call) error {
	return func(c *Call) error {
		rows, err := c.Query(query)
		if err != nil {
			return err
		}
		use(c, rows)
		return c.Write()
	}
}

// LeftOpen leaves the rows of a query as they are.
func LeftOpen(*Call, Rows) {}

// ClosedHalfRead reads one row.
func ClosedHalfRead(_ *Call, rows Rows) {
	rows.Next()
	rows.Close()
}

// ReadLater reads when the handler has returned.
func ReadLater(c *Call, rows Rows) {
	c.Go(func() {
		<-c.Returned
		ClosedHalfRead(c, rows)
	})
}
