package mutation

const (
	histories = "cas/guard/history.go"
	guarding  = "cas/guard/item.go"
	relaying  = "outbox/relay.go"
	settling  = "outbox/settlement.go"
)

// Effects outside the database: items of other stores, the outbox and its receivers, tokens of locks.
var guardsOfOutside = []guard{
	{"R1", "a message that is delivered again changes the item again", []edit{{histories, "return &own, nil", "return nil, nil"}},
		"cas/guard", "TestInEachEraEachMessageChangesAnItemOnceAndInOrder"},
	{"R1", "a message changes an item after a later one", []edit{{histories, "return nil, &PassedError{was.From}", "return nil, nil"}},
		"cas/guard", "TestInEachEraEachMessageChangesAnItemOnceAndInOrder"},
	{"R1", "an owner that wakes up changes what its successor has changed", []edit{{histories, "case s.Epoch < was.Epoch:\n\t\treturn nil, &StaleError{s.Partition, s.Epoch, was.Epoch}", "case s.Epoch < was.Epoch:\n\t\treturn nil, nil"}},
		"cas/guard", "TestAnOwnerThatWakesUpIsStoppedWhereItsSuccessorHasBeen"},
	{"R1", "a message whose write is in doubt is passed", []edit{{guarding, "if doubts++; doubts == tries {\n\t\t\t\treturn fmt.Errorf(\"%w: %w\", ErrDoubt, err)", "if doubts++; doubts == tries {\n\t\t\t\treturn nil"}},
		"cas/guard", "TestAStoreThatDoesNotAnswerLeavesDoubtAndStopsTheMessage"},
	{"R1", "one message changes an item twice", []edit{{"cas/guard/message.go", "if m.changed[key] {", "if false {"}},
		"cas/guard", "TestAMessageDoesNotChangeAnItemTwice"},
	{"R1", "a deletion forgets who has changed the item", []edit{{guarding, "return it.note.with(it.batch.first", "if !after.Exists {\n\t\treturn note{}\n\t}\n\treturn it.note.with(it.batch.first"}},
		"cas/guard", "TestADeletedItemRemembersWhoDeletedIt"},
	{"R1", "a decision stands although the item has changed since", []edit{{guarding, "!bytes.Equal(outcome, m.Outcome)", "len(outcome) > MaxOutcome"}},
		"cas/guard", "TestAnOutcomeThatOthersHaveChangedIsNotWritten"},

	{"R9", "a fence that has lost an operator's action is believed", []edit{{histories, "case s.Era != was.Era:\n\t\treturn nil, ErrFenceLost", "case s.Era != was.Era:\n\t\treturn nil, nil"}},
		"cas/guard", "TestWhatBecomesOfAChangeFollowsFromTheHistoriesAlone/a fence that has lost an operator's action"},

	{"R10", "another message at the same offset counts as applied", []edit{{histories, "return nil, ErrTruncated", "return &change{At: s.Offset}, nil"}},
		"cas/guard", "TestWhatBecomesOfAChangeFollowsFromTheHistoriesAlone/another message at the offset"},

	{"R1", "the receiver admits a lower epoch", []edit{{"outbox/httpfence/transaction.go", "if highest > c.Epoch {", "if false {"}},
		"outbox/httpfence", "TestALowerEpochIsRefusedAfterAHigherOneAndAnEqualOneIsNot/SQLite"},
	{"R1", "the receiver notes no higher epoch", []edit{{"outbox/httpfence/sqlstore.go", "SET epoch = excluded.epoch WHERE ", "SET epoch = ` + scopes + `.epoch WHERE "}},
		"outbox/httpfence", "TestALowerEpochIsRefusedAfterAHigherOneAndAnEqualOneIsNot/PostgreSQL"},
	{"R1", "a key's answer is given to another request", []edit{{"outbox/httpfence/transaction.go", "case string(known) != string(f[:]):", "case false:"}},
		"outbox/httpfence", "TestAKeyBelongsToOneRequestOfOneScope/SQLite"},
	{"R1", "what a failed handler wrote is committed", []edit{{"outbox/httpfence/sqlstore.go", "return Reply{Answer: a}, t.undo(c)", "return Reply{Answer: a}, t.commit()"}},
		"outbox/httpfence", "TestAHandlerThatFailsIsUndoneItsAnswerNotKeptAndItsEpochCounts/500/SQLite"},

	{"R12", "a request waits for its scope for ever", []edit{{"outbox/httpfence/handler.go", "context.WithTimeout(r.Context(), h.o.Wait)", "context.WithCancel(r.Context())"}},
		"outbox/httpfence", "TestTheWaitForAScopeIsBoundedAndHasNoEffect/memory"},
	{"R12", "a frozen receiver keeps its scope", []edit{{"internal/sql/sqltx/postgres.go", "LockTimeout(l.Wait), l.Idle.Milliseconds())", "LockTimeout(l.Wait), 1000*l.Idle.Milliseconds())"}},
		"outbox/httpfence", "TestAFrozenHandlerLosesItsScopeAfterTheIdleTimeout"},

	{"R3", "every 412 is a stale epoch", []edit{{"outbox/send.go", " && p.Type == httpfence.TypeStale:", ":"}},
		"outbox", "TestA412ThatIsNoStaleEpochIsARefusal"},

	{"R6", "a relay continues although its receiver refused it as a zombie's", []edit{{"outbox/stopped.go", "r.ask = append(r.ask, at)", "r.ask = append(r.ask[:0:0], r.ask...)"}},
		"outbox", "TestAReceiverThatHasSeenAHigherEpochEndsTheRelay"},
	{"R6", "a relay continues whose claim was lost", []edit{{settling, "if ctx.Err() != nil || ended(err) {", "if ctx.Err() != nil {"}},
		"outbox", "TestALostClaimDeletesNothingAndEndsTheRelay"},

	{"R10", "what comes after a waiting entry of its key is sent", []edit{{settling, "if l := r.lanes[at]; l != nil {", "if l := r.lanes[at]; l != nil && false {"}},
		"outbox", "TestAFailingKeyHoldsUpOnlyItself"},
	{"R10", "an entry that commits late under a lower ID is skipped", []edit{{"outbox/pgoutbox/store.go", "s.open = append(s.open, id)", "_ = id"}},
		"outbox", "TestWhatCommitsLateUnderALowerIDIsRead/PostgreSQL"},

	{"R13", "the end of a claim does not end its requests", []edit{{relaying, "l.outcome = r.send(ctx, sent)", "l.outcome = r.send(context.WithoutCancel(ctx), sent)"}},
		"outbox", "TestTheEndOfTheClaimEndsTheRequestsUnderWay"},

	{"L4", "an answer whose handling fails holds up the others", []edit{{settling, "\t\tr.alone = true\n", ""}},
		"outbox", "TestAFailureThatOnlyTheCommitShowsIsFoundAndHoldsUpOnlyItsEntry"},

	{"L6", "a panic of OnAnswer is taken for success", []edit{{settling, "err = fmt.Errorf(\"outbox: Options.%s panicked: %v\\n%s\",", "_ = fmt.Errorf(\"outbox: Options.%s panicked: %v\\n%s\","}},
		"outbox", "TestAnAnswerThatNobodyCanTakeHoldsUpOnlyItsKey"},

	{"L8", "answers pile up", []edit{
		{relaying, " && r.held() < maxKept {", " {"},
		{relaying, "if r.held() >= maxKept {", "if r.held() >= 1<<20 {"},
	}, "outbox", "TestAnswersThatNobodyCanTakeAreBounded"},

	{"R1", "a lower token may write a row in PostgreSQL", []edit{{"lease/sqlfence/migrations/postgres/0001_token.sql", "row_token > token or row_token = token", "row_token = token"}},
		"lease/sqlfence", "TestALowerTokenIsRefusedAndAnEqualOneIsNot/PostgreSQL"},
	{"R1", "the numbers of two locks are compared in PostgreSQL", []edit{{"lease/sqlfence/migrations/postgres/0001_token.sql", `if row_lock collate "C" is distinct from lock collate "C" then`, "if false then"}},
		"lease/sqlfence", "TestNumbersOfTwoLocksAreNotCompared/PostgreSQL"},
	{"R1", "a lower token may write a row in SQLite", []edit{{"lease/sqlfence/migrations/sqlite/0001_token.sql", "WHERE old.lock_epoch {{refused}} new.lock_epoch", "WHERE old.lock_epoch {{refused}} new.lock_epoch AND 0"}},
		"lease/sqlfence", "TestALowerTokenIsRefusedAndAnEqualOneIsNot/SQLite"},
	{"R1", "the numbers of two locks are compared in SQLite", []edit{{"lease/sqlfence/migrations/sqlite/0001_token.sql", "WHERE old.lock_name IS NOT new.lock_name COLLATE BINARY", "WHERE 0"}},
		"lease/sqlfence", "TestNumbersOfTwoLocksAreNotCompared/SQLite"},
}
