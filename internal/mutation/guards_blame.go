package main

var guardsOfBlame = []guard{
	{"blame", "the methods of a handler's error are called wherever it comes to", []edit{
		{"consumer/guard.go", "return inert.Error(f())", "return f()"},
	}, "consumer", "TestAnErrorWhoseMethodsPanicCostsItsMessageAndNothingElse"},
	{"blame", "the methods of a panic's value are called wherever it comes to", []edit{
		{"consumer/errors.go", "e.cause = inert.Error(err)\n\t\te.text = e.cause.Error()", "e.cause = err"},
	}, "consumer", "TestAnErrorWhoseMethodsPanicCostsItsMessageAndNothingElse"},
	{"blame", "a permanent error asks a typed nil for its text", []edit{
		{"consumer/errors.go", "return &permanentError{inert.Error(err)}", "return &permanentError{err}"},
	}, "consumer", "TestAnErrorWhoseMethodsPanicCostsItsMessageAndNothingElse"},
	{"blame", "an error's method Is runs on the goroutine that asks, which it may end", []edit{
		{"internal/text/inert/error.go", "go func() {\n\t\ta := answer", "func() {\n\t\ta := answer"},
	}, "internal/text/inert", "TestNothingThatAnErrorHasPanics"},
	{"blame", "an error whose chain does not end is walked for ever", []edit{
		{"internal/text/inert/error.go", "if cause != nil && k.left > 0 {", "if cause != nil {"},
	}, "internal/text/inert", "TestNothingThatAnErrorHasPanics"},
	{"blame", "what is found in an error may be a nil pointer", []edit{
		{"internal/text/inert/error.go", "if v := reflect.ValueOf(err); v.Kind() == reflect.Pointer && v.IsNil() {", "if false {"},
	}, "internal/text/inert", "TestNothingThatAnErrorHasPanics"},
	{"blame", "pgsink asks a handler's error what it is", []edit{
		{"sinks/pgsink/tx.go", "inert.Error(apply(ctx, t))", "apply(ctx, t)"},
	}, "sinks/pgsink", onPostgres + "a handler's error whose methods panic, or that is a typed nil, is an error as any other"},
	{"blame", "pgsink asks an argument's error what it is", []edit{
		{"sinks/pgsink/tx.go", "pg, is := inert.As[*pgconn.PgError](err)", "pg, is := errors.AsType[*pgconn.PgError](err)"},
	}, "sinks/pgsink", "TestAnArgumentsErrorThatPanicsIsTheStatements"},
	{"blame", "the values of a copy are encoded on a goroutine of pgx's", []edit{
		{"sinks/pgsink/copy.go", "\ttag, err := copyRows(ctx, conn, table, columns, rows)\n", "\tvar tag pgconn.CommandTag\n\t_, err := conn.CopyFrom(ctx, table, columns, rows)\n"},
	}, "sinks/pgsink", "TestAValueThatPanicsInACopyPanicsInItsHandler"},
	{"blame", "the error of a copy's rows is asked for its text on a goroutine of its own", []edit{
		{"sinks/pgsink/copy.go", "w.CloseWithError(inert.Error(failed))", "w.CloseWithError(failed)"},
	}, "sinks/pgsink", "TestAValueThatPanicsInACopyPanicsInItsHandler"},
	{"blame", "the types of a table's columns are remembered after a copy has failed", []edit{
		{"sinks/pgsink/copy.go", "\t\tforgetColumnTypes(conn)\n", ""},
	}, "sinks/pgsink", "TestACopyAfterItsTableHasChangedFailsOnce"},
	{"blame", "a method Code of any error is called where it may panic", []edit{
		{"internal/sql/sqltx/sqlite_code.go", "return inert.Try(e.Code), e", "return e.Code(), e"},
	}, "internal/sql/sqltx", "TestAnErrorsOwnCodeMayPanic"},
	{"blame", "what dies alone again and again is in doubt for ever", []edit{
		{verdicts, "if deaths < enoughDeaths {", "if true {"},
	}, "consumer", "TestAMessageThatKillsItsConnectionAsItCommitsIsFoundOut"},
	{"blame", "one lost connection is an attempt", []edit{
		{verdicts, "if deaths < enoughDeaths {", "if false {"},
	}, "consumer", "TestWhatDiesAloneAgainAndAgainHasFailedAnAttempt"},
	{"blame", "messages that move their fence in company are not narrowed down", []edit{
		{verdicts, "if v.finding == doubted && t.doubts > 0 {", "if false {"},
	}, "consumer", "TestAMessageThatMovesItsOwnFenceHasFailedAnAttempt"},
	{"blame", "a message that moves its own fence is claimed again for ever", []edit{
		{verdicts, "v.finding = p.suspicion(t, shared)\n\t}\n\tif v", "}\n\tif v"},
	}, "consumer", "TestAMessageThatMovesItsOwnFenceHasFailedAnAttempt"},
	{"blame", "a message that replaces the claim in its own fence is taken for a sink that went back", []edit{
		{"consumer/ownership.go", "refused && o.unchanged()", "refused && false"},
	}, "consumer", "TestAMessageThatMovesItsOwnFenceHasFailedAnAttempt"},
	{"blame", "a connection that another claim or an operator has ended is an attempt", []edit{
		{"consumer/death.go", "seen.Claim == left.Claim", "true"},
	}, "consumer", "TestAConnectionThatSomebodyElseHasEndedIsNoAttempt"},
	{"blame", "a connection to a database that was away is an attempt", []edit{
		{"consumer/death.go", "o.attempts == 0 &&", ""},
	}, "consumer", "TestAConnectionThatSomebodyElseHasEndedIsNoAttempt"},
	{"blame", "a database on which nothing commits is the fault of each message", []edit{
		{"consumer/death.go", "&& !o.commits(ctx, got)", "&& false"},
	}, "consumer", "TestAPartitionThatIsInDoubtAgainAndAgainStaysHalted"},
	{"blame", "the message at hand when the connection was lost is not looked at first", []edit{
		{verdicts, "case r.cut && !alone:", "case false:"},
	}, "consumer", "TestJudgeSaysWhatATransactionsAnswerMeansForEachPartition"},
	{"blame", "the error of a slow handler does not say that it was slow", []edit{
		{verdicts, "case r.timedOut && r.limit > 0 && r.handling > r.limit:", "case false:"},
	}, "consumer", "TestTheErrorOfASlowHandlerSaysHowSlowItWas"},
	{"blame", "a handler's own timeout that it hides is in doubt", []edit{
		{"sinks/pgsink/tx.go", "t.broke = inert.Error(err)", "_ = inert.Error(err)"},
	}, "sinks/pgsink", "TestAHandlersOwnTimeoutIsNotInDoubt"},
	{"blame", "malformed input is a broken connection", []edit{
		{"sinks/pgsink/errors.go", "|| malformed(e)", ""},
	}, "sinks/pgsink", "TestMalformedInputIsTheMessages"},
	{"blame", "what a function of the user's raises is an unhealthy database", []edit{
		{"sinks/pgsink/errors.go", "e.Routine == raised ||", ""},
	}, "sinks/pgsink", "TestWhatAFunctionOfTheUsersRaisesIsTheMessages"},
	{"blame", "a connection on which a table was not found is used again", []edit{
		{"sinks/pgsink/errors.go", ",\n\t\tcodeUndefinedTable, codeUndefinedFunc, codeInvalidSchema, codePermission:\n\t\treturn blameless(e) != nil", ":\n\t\treturn blameless(e) != nil"},
	}, "sinks/pgsink", "TestAConnectionOnWhichSomethingWasNotFoundIsNotUsedAgain"},
	{"blame", "a handler that is late for itself has waited for a lock", []edit{
		{"sinks/pgsink/lockwait.go", "if !w.until.IsZero() && w.until.Before(end) {", "if false {"},
	}, "sinks/pgsink", onPostgres + "a handler that returns long after its time was up is not excused"},
	{"blame", "what a table of epochfence's refuses is the message's", []edit{
		{"sinks/pgsink/errors.go", "case \"23\", \"55\":", "case \"none\":"},
	}, "sinks/pgsink", "TestWhatTheTablesOfEpochfenceRefuseIsNoMessagesFault"},
	{"blame", "a statement of the outbox's is taken for the handler's", []edit{
		{"sinks/pgsink/tx.go", "t.ours = pgschema.IsOwn(ctx)", ""},
	}, "sinks/pgsink", "TestWhatTheTablesOfEpochfenceRefuseIsNoMessagesFault"},
	{"blame", "a queued statement of the outbox's is taken for the handler's", []edit{
		{"sinks/pgsink/queue.go", "case n < len(items) && items[n].ours:", "case false:"},
	}, "sinks/pgsink", "TestWhatTheTablesOfEpochfenceRefuseIsNoMessagesFault"},
	{"blame", "texts of several statements hide which of a queue's has failed", []edit{
		{"sinks/pgsink/queue.go", "return slices.ContainsFunc(items, func(q queuedStatement) bool { return q.ours }) &&", "return false &&"},
	}, "sinks/pgsink", "TestWhatTheTablesOfEpochfenceRefuseIsNoMessagesFault"},
	{"blame", "what the check of the fences meets with is the message's", []edit{
		{"sinks/pgsink/commit.go", "return t.failed(ctx, ours(explain(err)))", "return t.failed(ctx, explain(err))"},
	}, "sinks/pgsink", "TestWhatTheTablesOfEpochfenceRefuseIsNoMessagesFault"},
	{"blame", "who raises the code of an identity that is behind halts the partition", []edit{
		{"sinks/pgsink/tx.go", "if t.ours {", "if true {"},
	}, "sinks/pgsink", "TestWhatOnlyLooksLikeATableOfEpochfencesIsTheMessages"},
	{"R10", "an entry overtakes others, as the identity is behind them", []edit{
		{"outbox/pgoutbox/migrations/0001_outbox_entry.sql", "order by e.id limit 1) is not null then", "order by e.id limit 1) is not null and false then"},
	}, "outbox/pgoutbox", "TestAnEntryOvertakesNoneThatIsThere"},
	{"blame", "an entry is refused because another was committed while it was added", []edit{
		{"outbox/pgoutbox/migrations/0001_outbox_entry.sql", "language plpgsql stable", "language plpgsql volatile"},
	}, "outbox/pgoutbox", "TestAnEntryThatIsCommittedWhileAnotherIsAddedDoesNotRefuseIt"},
	{"blame", "SERIALIZABLE transactions that add entries at a time fail each other", []edit{
		{"outbox/pgoutbox/migrations/0001_outbox_entry.sql", "if once and current_setting", "if false and current_setting"},
	}, "outbox/pgoutbox", "TestEntriesThatAreAddedAtATimeDoNotRefuseEachOther"},
	{"blame", "an entry that is added reads the backlog", []edit{
		{"outbox/pgoutbox/migrations/0001_outbox_entry.sql", "set enable_seqscan = off", ""},
	}, "outbox/pgoutbox", "TestWhatIsReadForAFewEntriesDoesNotGrowWithTheBacklog"},
	{"R10", "an outbox is opened whose identity is behind its entries", []edit{
		{"outbox/pgoutbox/store.go", "checked(ctx, db, o, follows)", "checked(ctx, db, o)"},
	}, "outbox/pgoutbox", "TestAnEntryOvertakesNoneThatIsThere"},
	{"R10", "a dead letter or a decision is numbered below older ones", []edit{
		{"sinks/pgsink/migrations/0002_dead_letter.sql", "if later is not null then", "if false then"},
	}, "sinks/pgsink", "TestAnIdentityThatIsBehindItsRowsIsFoundBeforeTheFirstNewOne"},
	{"R10", "the identities of another server are not looked at", []edit{
		{"sinks/pgsink/server.go", "done := v.followed.equal(now)", "done := v.followed != (serverID{})"},
	}, "sinks/pgsink", "TestIdentitiesAreLookedAtWhenTheServerIsAnotherOne"},
}
