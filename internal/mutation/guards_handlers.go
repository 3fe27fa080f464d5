package main

const (
	statementText = "sinks/pgsink/statement.go"
	pgHandle      = "sinks/pgsink/handle.go"
	pgTx          = "sinks/pgsink/tx.go"

	inCompany = "TestWhatACallDoesToItsSessionNoOtherCallMeets"
	byPgx     = "TestAHandleMeansWhatItMeansToPgxAsFarAsItsCallIsConcerned"
)

var guardsOfHandlers = []guard{
	{"R3", "a text that ends the transaction is sent", []edit{
		{statementText, "case c.has(controls):", "case false:"},
	}, "sinks/pgsink", "TestAHandlerThatLeavesTheTransactionIsFoundOut"},
	{"R3", "a handler continues after the transaction that it has left", []edit{
		{pgTx, "case t.left:\n\t\treturn errLeft\n\tcase t.undone:", "case t.undone:"},
	}, "sinks/pgsink", "TestAHandlerThatHasLeftTheTransactionCommitsNothingOfItsOwn"},
	{"R3", "a transaction that a hidden text has begun passes for the sink's", []edit{
		{pgTx, "t.left = !within(t.conn, *t.fenced.xid)", "t.left = false"},
	}, "sinks/pgsink", "TestAHandlerThatHasLeftTheTransactionCommitsNothingOfItsOwn"},
	{"R3", "a transaction that was rolled back counts as one that may be committed", []edit{
		{"sinks/pgsink/commit.go", ") + \") <> 'aborted'\"", ") + \") <> 'unknown'\""},
	}, "sinks/pgsink", "TestAHandlerThatHasLeftTheTransactionCommitsNothingOfItsOwn"},
	{"R3", "a text by which the sink would be lost in another protocol is sent", []edit{
		{statementText, "case c.has(copies):", "case false:"},
	}, "sinks/pgsink", "TestACopyFromTheClientIsRefusedAndCostsNoConnection"},
	{"blame", "a call that has done what it may not is committed if it returns nil", []edit{
		{pgTx, "case t.refused != nil:\n\t\treturn &epoch.CallError{Call: t.call, Err: t.refused}\n\tcase t.left:", "case t.left:"},
	}, "sinks/pgsink", inCompany},
	{"blame", "what changes the session is sent in company", []edit{
		{statementText, "case c.has(apart) && !alone:", "case false:"},
	}, "sinks/pgsink", inCompany},
	{"blame", "what a function leaves is not seen in company", []edit{
		{fenceSQL, "if dirty then", "if false then"},
		{fenceSQL, "if not dirty and pg_current_xact_id", "if pg_current_xact_id"},
	}, "sinks/pgsink", inCompany},
	{"blame", "what a function leaves stays on the connection", []edit{
		{"sinks/pgsink/session.go", "if is == \"true\" && t.altered == \"\" {", "if false {"},
	}, "sinks/pgsink", inCompany},
	{"blame", "what a statement leaves behind its transaction is met by the next one", []edit{
		{"sinks/pgsink/commit.go", "t.forget()", "_ = t"},
	}, "sinks/pgsink", inCompany},
	{"blame", "sessions that differ are taken for alike for ever", []edit{
		{"sinks/pgsink/session.go", "t.sink.varies.Store(true)", "t.sink.varies.Store(false)"},
	}, "sinks/pgsink", "TestSessionsThatDifferBetweenTransactionsCostOneOfThem"},
	{"blame", "a handler's role is in force when the position is moved", []edit{
		{"sinks/pgsink/commit.go", "if t.altered == \"\" {\n\t\treturn nil\n\t}\n\tunprepared", "if true {\n\t\treturn nil\n\t}\n\tunprepared"},
	}, "sinks/pgsink", "TestARoleThatACallSetsIsItsOwn"},
	{"blame", "a handler's own read-only transaction is the database's trouble", []edit{
		{"sinks/pgsink/commit.go", "if t.altered != \"\" && t.alone && t.refused(err) == nil {", "if false {"},
	}, "sinks/pgsink", "TestAStatementAfterWhichThePositionCannotBeMovedIsTheMessages"},
	{"blame", "a savepoint that is left open is committed", []edit{
		{pgTx, "case t.refused == nil && err == nil && t.savepoints.Err() != nil:", "case false:"},
	}, "sinks/pgsink", byPgx},
	{"blame", "a call whose handle was rolled back commits what it wrote", []edit{
		{pgHandle, "if !t.undone || !t.sent {", "if true {"},
	}, "sinks/pgsink", byPgx},
	{"blame", "a call whose handle was rolled back takes what others wrote with it", []edit{
		{pgTx, "case t.refused == nil && t.undone && t.sent && err == nil && !t.fenced.alone:", "case false:"},
	}, "sinks/pgsink", "TestACallThatUndoesWhatItWroteIsToBeAlone"},
	{"blame", "a handle continues after its Rollback", []edit{
		{pgTx, "case t.undone:\n\t\tt.refused = errUndone\n\t\treturn errUndone\n", ""},
	}, "sinks/pgsink", byPgx},
	{"blame", "a handle within one that has ended continues", []edit{
		{"sinks/pgsink/pgxtx.go", "return t.ended || t.outer != nil && t.outer.closed()", "return t.ended"},
		{savepoints, "if i < 0 {\n\t\treturn 0, sql.ErrTxDone\n\t}", "if i < 0 {\n\t\ti = 0\n\t}"},
	}, "sinks/pgsink", byPgx},
	{"blame", "a callback of a batch is given the connection", []edit{
		{"sinks/pgsink/rows.go", "return &rows{tx: r.tx, inner: inner}, err", "return inner, err"},
	}, "sinks/pgsink", "TestACallbackOfABatchIsGivenRowsOfTheCall"},
	{"blame", "a query rewriter is given the connection", []edit{
		{pgTx, "if sql, args, err = rewritten(ctx, sql, args); err != nil {\n\t\treturn tag, err\n\t}", ""},
	}, "sinks/pgsink", inCompany},
	{"blame", "a call that needs its own transaction has failed an attempt", []edit{
		{verdicts, "case errors.Is(cause, epoch.ErrOwnTransaction) && (shared || t.messages > 1 && r.at >= 0):", "case false:"},
	}, "consumer", "TestJudgeSaysWhatATransactionsAnswerMeansForEachPartition/a call that needs a transaction of its own gets one"},
	{"blame", "each message that needs its own transaction begins one in vain", []edit{
		{bisects, "b.streak = min(max(2*b.streak, 1), maxStreak)", "b.streak = 1"},
	}, "consumer", "TestMessagesThatNeedTheirOwnTransactionsCostFewInVain"},
	{"blame", "those whose handlers were not called halt with one that ended the transaction", []edit{
		{verdicts, "vs[i].action = retry\n\t\t\t}\n\t\t}\n\t\treturn vs", "vs[i].action = haltForGood\n\t\t\t}\n\t\t}\n\t\treturn vs"},
	}, "consumer", "TestJudgeSaysWhatATransactionsAnswerMeansForEachPartition/those whose handlers were not called yet continue"},
}
