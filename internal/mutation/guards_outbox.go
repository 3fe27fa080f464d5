package main

const (
	receiver = "outbox/httpfence/transaction.go"
	sending  = "outbox/send.go"
	relaying = "outbox/relay.go"
	settling = "outbox/settlement.go"
)

var guardsOfTheOutbox = []guard{
	{"R1", "the receiver admits a lower epoch", []edit{
		{receiver, "if highest > c.Epoch {", "if false {"},
	}, "outbox/httpfence", "TestALowerEpochIsRefusedAfterAHigherOneAndAnEqualOneIsNot/SQLite"},
	{"R1", "the receiver in memory admits a lower epoch", []edit{
		{"outbox/httpfence/memory.go", "h > c.Epoch {", "h > c.Epoch && false {"},
	}, "outbox/httpfence", "TestALowerEpochIsRefusedAfterAHigherOneAndAnEqualOneIsNot/memory"},
	{"R1", "the receiver notes no higher epoch", []edit{
		{"outbox/httpfence/sqlstore.go", "SET epoch = excluded.epoch WHERE ", "SET epoch = ` + scopes + `.epoch WHERE "},
	}, "outbox/httpfence", "TestALowerEpochIsRefusedAfterAHigherOneAndAnEqualOneIsNot/PostgreSQL"},
	{"R1", "the epoch of a replay does not count", []edit{
		{"outbox/httpfence/sqlstore.go", "if err == nil && raised {", "if err == nil && raised && false {"},
	}, "outbox/httpfence", "TestTheEpochOfAReplayCountsAndIsCheckedBeforeIt/SQLite"},
	{"R1", "the epoch of a handler whose connection was lost does not count", []edit{
		{receiver, "\t\treturn t.remember(c)\n", "\t\treturn nil\n"},
	}, "outbox/httpfence", "TestAHandlerWhoseConnectionIsLostIsUndoneAndItsEpochCounts"},
	{"R1", "the epoch of a handler that lost its transaction does not count", []edit{
		{receiver, "return errors.Join(err, t.remember(c))", "return err"},
	}, "outbox/httpfence", "TestAHandlerWhoseStatementIsInterruptedCanWriteNothingMore/SQLite"},
	{"R1", "the epoch of a handler whose statement overran its time does not count", []edit{
		{"outbox/httpfence/sqlstore.go", "return Reply{Answer: a}, t.remember(c)", "return Reply{Answer: a}, nil"},
	}, "outbox/httpfence", "TestAHandlerWhoseStatementOverrunsItsTimeIsUndone/SQLite"},
	{"R3", "a handler that lost its transaction is believed that all is well", []edit{
		{"outbox/httpfence/sqlstore.go", "case err != nil && (keep || errors.Is(err, epoch.ErrTxEndedByHandler)", "case err != nil && (false || errors.Is(err, epoch.ErrTxEndedByHandler)"},
	}, "outbox/httpfence", "TestAHandlerWhoseStatementIsInterruptedCanWriteNothingMore/SQLite"},
	{"R1", "the epoch of a handler that panicked does not count", []edit{
		{receiver, "_ = t.undo(c)", ""},
	}, "outbox/httpfence", "TestAHandlerThatFailsIsUndoneItsAnswerNotKeptAndItsEpochCounts/panic/SQLite"},
	{"R1", "the receiver in memory serves a scope's requests at a time", []edit{
		{"outbox/httpfence/memory.go", "m.turns.enter(ctx, c.Scope)", "m.turns.enter(ctx, c.Scope+c.Key)"},
	}, "outbox/httpfence", "TestAHigherEpochWaitsUntilTheHandlerOfALowerOneIsOver/memory"},
	{"R1", "a key's answer is given to another request", []edit{
		{receiver, "case string(known) != string(f[:]):", "case false:"},
	}, "outbox/httpfence", "TestAKeyBelongsToOneRequestOfOneScope/SQLite"},
	{"R1", "what a failed handler wrote is committed", []edit{
		{"outbox/httpfence/sqlstore.go", "return Reply{Answer: a}, t.undo(c)", "return Reply{Answer: a}, t.commit()"},
	}, "outbox/httpfence", "TestAHandlerThatFailsIsUndoneItsAnswerNotKeptAndItsEpochCounts/500/SQLite"},
	{"R1", "a failed handler's answer is kept", []edit{
		{"outbox/httpfence/handler.go", "return a, !Retryable(a.Status)", "return a, true"},
	}, "outbox/httpfence", "TestAHandlerThatFailsIsUndoneItsAnswerNotKeptAndItsEpochCounts/429/memory"},

	{"R3", "an answer is made up for a handler that committed and died", []edit{
		{receiver, "case a.Status == 0:", "case false:"},
	}, "outbox/httpfence", "TestAnAnswerThatACommitOfTheHandlersLeftOutIsNotMadeUp/SQLite"},
	{"R3", "every 412 is a stale epoch", []edit{
		{sending, " && p.Type == httpfence.TypeStale:", ":"},
	}, "outbox", "TestA412ThatIsNoStaleEpochIsARefusal"},
	{"R3", "a stale answer is cut off before it is understood", []edit{
		{sending, "int64(max(b.o.MaxAnswer, maxProblem))+1", "int64(b.o.MaxAnswer)+1"},
	}, "outbox", "TestAStaleAnswerIsRecognisedHoweverLittleOfAnswersIsKept"},
	{"R3", "a sink that does not answer has refused", []edit{
		{settling, "\tr.ask = append(r.ask, t.ask...)\n", ""},
	}, "outbox", "TestWhoIsRightAboutAStaleAnswerIsAskedUntilTheSinkAnswers"},

	{"R6", "a relay continues that its receiver took for a zombie's", []edit{
		{"outbox/stopped.go", "r.ask = append(r.ask, at)", "r.ask = append(r.ask[:0:0], r.ask...)"},
	}, "outbox", "TestAReceiverThatHasSeenAHigherEpochEndsTheRelay"},
	{"R6", "a wrong answer is taken for a higher epoch", []edit{
		{sending, "&& p.Highest <= e.Epoch:", "&& p.Highest <= e.Epoch && false:"},
	}, "outbox", "TestAStaleAnswerStopsOnlyTheScopeThatItIsAbout"},
	{"R6", "two partitions of one scope claim above each other without end", []edit{
		{"outbox/stopped.go", "\tmaxClimbs = 3\n", "\tmaxClimbs = 1 << 30\n"},
	}, "outbox", "TestTwoPartitionsOfOneScopeDoNotClimbWithoutEnd"},
	{"R1", "a claim starts at an epoch that another system has seen", []edit{
		{"epoch/fence.go", "max(f.Epoch, c.Above, Epoch(c.Generation-1))", "max(f.Epoch, Epoch(c.Generation-1))"},
	}, "epoch", "TestClaimedGivesAnEpochAboveTheOneThatTheClaimNames"},
	{"R1", "a claim in PostgreSQL starts at an epoch that another system has seen", []edit{
		{fenceSQL, "greatest(f.epoch, above, generation - 1)", "greatest(f.epoch, generation - 1)"},
	}, "sinks/pgsink", "TestSuite/cache_statement/queries/a claim starts above the epoch that another system has seen, and so do those after it"},
	{"R1", "any epoch that somebody has seen is followed", []edit{
		{"consumer/background.go", "if seen > MaxAbove || seen-now > epoch.MaxStep {", "if false {"},
	}, "consumer", "TestNoClaimIsMadeAboveAnEpochThatIsOutOfReach"},
	{"R6", "a relay continues whose claim was lost", []edit{
		{settling, "if ctx.Err() != nil || ended(err) {", "if ctx.Err() != nil {"},
	}, "outbox", "TestALostClaimDeletesNothingAndEndsTheRelay"},
	{"R6", "a relay returns while its requests are under way", []edit{
		{relaying, "\tdefer r.working.Wait()\n", ""},
	}, "outbox", "TestTheRelayReturnsAfterItsRequestsHaveEnded"},

	{"R10", "what comes after a waiting entry of its key is sent", []edit{
		{settling, "if l := r.lanes[at]; l != nil {", "if l := r.lanes[at]; l != nil && false {"},
	}, "outbox", "TestAFailingKeyHoldsUpOnlyItself"},
	{"R10", "what came after an entry of its key is forgotten", []edit{
		{settling, "l.more = l.more || l.id != row.ID", "_ = l.more"},
	}, "outbox", "TestEntriesOfOneKeyComeInOrderAlsoThroughFailures"},
	{"R10", "what came after an entry that is gone is forgotten", []edit{
		{settling, "if t.next[l] == nil && l.key.key != \"\" {", "if false {"},
	}, "outbox", "TestAnEntryThatAPersonDeletedIsNotMissed"},
	{"R10", "a refusal that nobody takes deletes", []edit{
		{relaying, "if r.o.OnRefused != nil && l.outcome.answered {", "if true {"},
	}, "outbox", "TestARefusalThatNobodyTakesStaysIsReportedAndHoldsUpItsKey"},
	{"R10", "what was never sent is refused", []edit{
		{relaying, "if r.o.OnRefused != nil && l.outcome.answered {", "if r.o.OnRefused != nil {"},
	}, "outbox", "TestAnEntryThatCannotBeSentStaysAndIsReported"},
	{"R10", "the answer to an entry that is gone is recorded", []edit{
		{settling, "if !slices.Contains(there, l.id) {", "if len(there) < 0 {"},
	}, "outbox", "TestNobodyIsToldOfTheAnswerToAnEntryThatAPersonHasDeleted"},
	{"R10", "entries that are added later are not looked for", []edit{
		{relaying, "\tcase <-r.claim.Applied():\n\t\tr.more = true\n", "\tcase <-r.claim.Applied():\n"},
	}, "outbox", "TestEntriesThatAreThereAndThoseThatComeAreSentAndDeleted"},
	{"R10", "entries that OnAnswer adds are not looked for", []edit{
		{settling, "\t\tr.more = r.more || r.tells(t)\n", ""},
	}, "outbox", "TestWhatOnAnswerAndOnRefusedAddIsSentAtOnce/SQLite"},
	{"R10", "entries that are added while the relay looks are missed", []edit{
		{settling, "r.more = r.more || len(t.rows) == scanLimit", "r.more = len(t.rows) == scanLimit"},
	}, "outbox", "TestEntriesThatAreAddedWhileTheRelayLooksAreNotMissed"},
	{"R10", "what commits late under a lower ID is skipped, if it was open at the last look", []edit{
		{"outbox/pgoutbox/snapshot.go", "s.open = append(s.open, id)", "_ = id"},
	}, "outbox", "TestWhatCommitsLateUnderALowerIDIsRead/PostgreSQL"},
	{"R10", "what commits late under a lower ID is skipped, if it began since", []edit{
		{"outbox/pgoutbox/snapshot.go", "select least((select min(low) from began), (", "select least(null::bigint, ("},
	}, "outbox", "TestWhatCommitsLateUnderALowerIDIsRead/PostgreSQL"},
	{"R10", "PostgreSQL's outbox is read by a plain cursor", []edit{
		{"outbox/pgoutbox/store.go", "least($4, (select id - 1 from late))", "least($4, (select 1 + $4 from late))"},
	}, "outbox", "TestWhatCommitsLateUnderALowerIDIsRead/PostgreSQL"},
	{"R10", "an entry is followed by one that may come after another that has not been read", []edit{
		{"outbox/pgoutbox/store.go", "and not (found.added_by >= $6 and found.added_by < ", "and ($6::bigint > 0 or found.added_by < "},
	}, "outbox", "TestWhatCommitsLateUnderALowerIDIsRead/PostgreSQL"},
	{"R10", "an entry of a key is followed by the next higher one, also where a lower one came late", []edit{
		{settling, "\t\t\tplace = min(place, l.late-1)\n", ""},
		{settling, "\t\t\tplace = min(place, t.rows[0].ID-1)\n", ""},
	}, "outbox", "TestEntriesOfAKeyKeepTheirOrderBehindOneThatIsLate"},
	{"R10", "a body that broke off is a refusal for good", []edit{
		{"outbox/httpfence/handler.go", "\tcase errors.As(err, &body): //", "\tcase errors.As(err, &body) && false: //"},
	}, "outbox/httpfence", "TestABodyThatDoesNotArriveWholeIsNotRefusedForGood"},

	{"R12", "a request waits for its scope for ever", []edit{
		{"outbox/httpfence/handler.go", "context.WithTimeout(r.Context(), h.o.Wait)", "context.WithCancel(r.Context())"},
	}, "outbox/httpfence", "TestTheWaitForATurnIsBoundedAndHasNoEffect/memory"},
	{"R12", "a request waits for PostgreSQL's lock for ever", []edit{
		{"internal/sql/sqltx/postgres.go", "LockTimeout(l.Wait), l.Idle.", "LockTimeout(l.Wait+time.Hour), l.Idle."},
	}, "outbox/httpfence", "TestTheWaitForATurnIsBoundedAndHasNoEffect/PostgreSQL"},
	{"R12", "a request is begun whose client left while it waited for another process", []edit{
		{"outbox/httpfence/sqlstore.go", "if err := ctx.Err(); err != nil {", "if err := ctx.Err(); err != nil && false {"},
	}, "outbox/httpfence", "TestAClientThatLeavesWhileAnotherProcessServesTheScopeHasNoEffect/PostgreSQL"},
	{"R12", "a request is begun whose client has left", []edit{
		{"outbox/httpfence/turns.go", "if err := ctx.Err(); err != nil {", "if err := ctx.Err(); err != nil && false {"},
	}, "outbox/httpfence", "TestARequestWhoseClientHasLeftIsNotBegun/memory"},
	{"R12", "a frozen receiver keeps its scope", []edit{
		{"internal/sql/sqltx/postgres.go", "LockTimeout(l.Wait), l.Idle.Milliseconds())", "LockTimeout(l.Wait), 1000*l.Idle.Milliseconds())"},
	}, "outbox/httpfence", "TestAFrozenHandlerLosesItsScopeAfterTheIdleTimeout"},
	{"R12", "a handler of the receiver has no deadline", []edit{
		{"outbox/httpfence/handler.go", "context.WithTimeout(ctx, h.o.HandlerTimeout)", "context.WithCancel(ctx)"},
	}, "outbox/httpfence", "TestAHandlerThatOverrunsItsTimeIsUndone/SQLite"},
	{"R12", "a request of the outbox has no deadline", []edit{
		{sending, "context.WithTimeout(ctx, b.o.RequestTimeout)", "context.WithCancel(ctx)"},
	}, "outbox", "TestARequestIsBoundedInTime"},

	{"R13", "the end of a claim does not end its requests", []edit{
		{relaying, "l.outcome = r.send(ctx, sent)", "l.outcome = r.send(context.WithoutCancel(ctx), sent)"},
	}, "outbox", "TestTheEndOfTheClaimEndsTheRequestsUnderWay"},
	{"R13", "a receiver that switches protocols holds up the end of a claim", []edit{
		{sending, "if a.Status == http.StatusSwitchingProtocols {", "if false {"},
	}, "outbox", "TestAReceiverThatSwitchesProtocolsDoesNotHoldUpTheEndOfAClaim"},

	{"blame", "an answer that nobody can take holds up the others", []edit{
		{settling, "\t\tr.alone = true\n", ""},
	}, "outbox", "TestAFailureThatOnlyTheCommitShowsIsFoundAndHoldsUpOnlyItsEntry"},
	{"blame", "answers that nobody can take hold up a good one that comes later", []edit{
		{settling, "r.apart = len(t.settle) > 0 && t.reads()", "r.apart = false"},
	}, "outbox", "TestManyAnswersThatNobodyCanTakeDoNotHoldUpAGoodOne"},
	{"blame", "answers that nobody can take hold up a good one among them", []edit{
		{settling, "\tr.again = max(0, r.again-len(t.settle)) + len(again)\n", ""},
		{settling, "\t\tr.alone = true\n", "\t\tr.alone, r.again = true, len(again)\n"},
	}, "outbox", "TestManyAnswersThatNobodyCanTakeDoNotHoldUpAGoodOne"},
	{"blame", "what a transaction has settled is not told when the relay ends", []edit{
		{relaying, "\tdefer r.last()\n", ""},
	}, "outbox", "TestTheLastTransactionOfAClaimIsReported"},
	{"blame", "nothing is sent while a transaction waits for its turn", []edit{
		{relaying, "\tr.sendReady(ctx)\n", "\tif r.underWay == nil {\n\t\tr.sendReady(ctx)\n\t}\n"},
	}, "outbox", "TestRequestsGoOnWhileATransactionWaitsForItsTurn"},
	{"blame", "a failure of OnAnswer is the database's", []edit{
		{settling, "case errors.As(err, &own):", "case errors.As(err, &own) && false:"},
	}, "outbox", "TestATransientFailureOfOnAnswerHoldsUpOnlyItsKey"},
	{"blame", "a panic of OnAnswer is taken for success", []edit{
		{settling, "err = fmt.Errorf(\"outbox: Options.%s panicked: %v\\n%s\",", "_ = fmt.Errorf(\"outbox: Options.%s panicked: %v\\n%s\","},
	}, "outbox", "TestAnAnswerThatNobodyCanTakeHoldsUpOnlyItsKey"},
	{"blame", "a database that fails is asked again at once", []edit{
		{relaying, "if r.underWay == nil && !now.Before(r.resume) {", "if r.underWay == nil {"},
	}, "outbox", "TestADatabaseThatFailsIsGivenTime"},
	{"blame", "answers pile up", []edit{
		{relaying, " && r.held() < maxKept {", " {"},
		{relaying, "if r.held() >= maxKept {", "if r.held() >= 1<<20 {"},
	}, "outbox", "TestAnswersThatNobodyCanTakeAreBounded"},
	{"blame", "requests pile up at a receiver", []edit{
		{relaying, "r.sending < r.o.Concurrency", "r.sending < 1<<10"},
		{relaying, "make(chan *lane, b.o.Concurrency)", "make(chan *lane, 1<<10)"},
	}, "outbox", "TestNoMoreRequestsAreUnderWayThanConcurrencyAllows"},
	{"blame", "a receiver puts a try off for as long as it likes", []edit{
		{relaying, "min(l.outcome.retryAfter, r.o.RetryMax)", "l.outcome.retryAfter"},
	}, "outbox", "TestAReceiverCannotPutATryOffForLongerThanRetryMax"},
	{"blame", "a redirect is followed", []edit{
		{sending, "c.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }", "_ = http.ErrUseLastResponse"},
	}, "outbox", "TestARedirectIsNotFollowed"},
	{"blame", "the headers of an answer are not bounded", []edit{
		{sending, "\t\tt.MaxResponseHeaderBytes = maxAnswerHeader\n", ""},
	}, "outbox", "TestTheHeadersOfAnAnswerAreBounded"},
	{"blame", "entries of another group are sent", []edit{
		{"outbox/sqloutbox/store.go", "` WHERE group_name = ? AND", "` WHERE (group_name = ? OR 1) AND"},
	}, "outbox", "TestAStoreDeletesLoadsAndFollowsManyEntriesAtOnce/SQLite"},
	{"blame", "a client that leaves stops the handler", []edit{
		{receiver, "effect(context.WithValue(context.WithoutCancel(ctx), ", "effect(context.WithValue(ctx, "},
	}, "outbox/httpfence", "TestAClientThatLeavesDoesNotStopAHandlerAndGetsTheAnswerLater/SQLite"},
	{"blame", "any number of requests is inside", []edit{
		{"outbox/httpfence/handler.go", "make(chan struct{}, o.MaxInside)", "make(chan struct{}, 1000+o.MaxInside)"},
	}, "outbox/httpfence", "TestMoreThanMaxInsideAreRefusedAtOnce"},
	{"blame", "any number of failing keys is known", []edit{
		{relaying, "len(r.lanes) < maxLanes", "len(r.lanes) < 100*maxLanes"},
	}, "outbox", "TestWhatIsKnownOfFailingKeysIsBounded"},
}
