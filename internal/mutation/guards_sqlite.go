package main

const (
	lending      = "internal/sql/sqltx/guard.go"
	lent         = "internal/sql/sqltx/call.go"
	sqliteTexts  = "internal/sql/sqltx/effect_sqlite.go"
	sqliteCommit = "sinks/sqlsink/tx.go"
	dbOfTx       = "internal/sql/txdb/txdb.go"
	savepoints   = "internal/sql/txdb/savepoints.go"
)

var guardsOfSQLite = []guard{
	{"R3", "a text that ends the transaction is sent to SQLite", []edit{
		{"internal/sql/sqltx/effect.go", "case e.has(Controls):", "case false:"},
	}, "sinks/sqlsink", "TestAHandlersTransactionControlIsNotSentAndFailsItsCall"},
	{"R3", "a text that ends the receiver's transaction is sent", []edit{
		{"internal/sql/sqltx/effect.go", "case e.has(Controls):", "case false:"},
	}, "outbox/httpfence", "TestAHandlerThatEndsTheTransactionByItselfHasFailedAndItsAnswerIsNotKept"},
	{"R3", "a text that hides a COMMIT is not looked after", []edit{
		{lent, "defer c.g.prove(savepoint, text)", ""},
	}, "sinks/sqlsink", "TestAHiddenCommitIsFoundOut"},
	{"R3", "the trigger that a text makes hides what follows it", []edit{
		{sqliteTexts, "return !s.trigger", "return s.first != \"create\""},
	}, "internal/sql/sqltx", "TestTheEffectOfATextIsThatOfItsStatements"},
	{"R3", "a handler of the SQLite sink writes on where SQLite has rolled back", []edit{
		{lending, "if !in || probeErr != nil {", "if (!in || probeErr != nil) && false {"},
	}, "sinks/sqlsink", "TestNothingIsSentOnceTheDatabaseHasRolledBack"},
	{"R3", "a handler writes on where SQLite has rolled back", []edit{
		{lending, "if !in || probeErr != nil {", "if (!in || probeErr != nil) && false {"},
	}, "outbox/httpfence", "TestAHandlerWhoseStatementIsInterruptedCanWriteNothingMore/SQLite"},
	{"R3", "a prepared statement writes on where SQLite has rolled back", []edit{
		{lending, "if !in || probeErr != nil {", "if (!in || probeErr != nil) && false {"},
	}, "outbox/httpfence", "TestATransactionThatEndedUnderAPreparedStatementIsNotWrittenAround/500"},
	{"R3", "a call runs in a transaction that SQLite has rolled back", []edit{
		{sqliteCommit, "case gone != nil && !t.guard.Told(err):", "case false:"},
	}, "sinks/sqlsink", "TestNothingIsSentOnceTheDatabaseHasRolledBack"},
	{"R3", "a transaction serves after its handler has returned", []edit{
		{lent, "case c.ended:", "case false:"},
	}, "outbox/httpfence", "TestATransactionIsOfNoUseOnceItsHandlerHasReturned/SQLite"},
	{"R3", "a Tx serves in the call after its own", []edit{
		{lent, "case c.ended:", "case false:"},
	}, "sinks/sqlsink", "TestWhatACallLeavesBehindIsRefusedInTheNext"},
	{"blame", "a call that has sent what it may not is committed if it returns nil", []edit{
		{sqliteCommit, "case c.Refused() != nil:", "case false:"},
	}, "sinks/sqlsink", "TestAHandlersTransactionControlIsNotSentAndFailsItsCall"},
	{"blame", "what changes the connection is sent to SQLite in company", []edit{
		{"internal/sql/sqltx/effect.go", "case e.has(Apart) && !alone:", "case false:"},
	}, "sinks/sqlsink", "TestWhatAMessageLeavesOnItsConnectionIsNotMetWithByOthers"},
	{"blame", "a connection that a message has changed is used again", []edit{
		{lent, "if effect.has(Lasting) {", "if false {"},
	}, "sinks/sqlsink", "TestWhatAMessageLeavesOnItsConnectionIsNotMetWithByOthers"},
	{"blame", "a connection that a message has made read-only is the database's fault", []edit{
		{sqliteCommit, "if tx == nil || tx.Spoiled() == \"\" ||", "if true || tx.Spoiled() == \"\" ||"},
	}, "sinks/sqlsink", "TestWhatAMessageLeavesOnItsConnectionIsNotMetWithByOthers"},
	{"R1", "a temporary table takes the advance", []edit{
		{"sinks/sqlsink/dialect.go", "return `main.`", "return ``"},
	}, "sinks/sqlsink", "TestATemporaryTableDoesNotTakeTheAdvance"},
	{"R1", "a handle that was left open is committed", []edit{
		{sqliteCommit, "case c.Left() != nil:", "case false:"},
	}, "sinks/sqlsink", "TestATransactionOfOpenDBThatIsNotEndedFailsItsMessageAndNoOther"},
	{"R1", "a handle that database/sql rolls back takes others' writes away", []edit{
		{dbOfTx, "if t.ctx.Err() != nil {", "if false {"},
	}, "sinks/sqlsink", "TestATransactionOfOpenDBThatIsNotEndedFailsItsMessageAndNoOther"},
	{"R1", "a handle writes on after the one that it was begun in has ended", []edit{
		{lent, "if err := c.savepoints.Use(h); err != nil {", "if err := c.savepoints.Use(h); err != nil && false {"},
	}, "sinks/sqlsink", "TestATransactionOfOpenDBThatIsNotEndedFailsItsMessageAndNoOther/an inner one that outlives its outer one"},
	{"R1", "what another handle wrote is lost with one that is rolled back", []edit{
		{savepoints, "if p.others || slices.", "if slices."},
	}, "internal/sql/txdb", "TestWhatIsCommittedIsWhatDatabaseSQLWouldKeep"},
}
