package main

const (
	guarding  = "cas/guard/item.go"
	stamps    = "cas/guard/stamp.go"
	changes   = "cas/guard/message.go"
	decisions = "cas/guard/event.go"
	ofStores  = "sinks/cassink/commit.go"
	ofOutbox  = "sinks/cassink/outbox.go"
	ofEntries = "sinks/cassink/entries.go"

	inEachEra  = "TestInEachEraEachMessageChangesAnItemOnceAndInOrder"
	ofAnswers  = "TestALostAnswerResolvesIntoWhatBecameOfTheWrite"
	byStamps   = "TestWhatBecomesOfAChangeFollowsFromTheStampsAlone/"
	ofFences   = "TestInEachEraEachMessageTakesEffectOnce"
	suiteItems = "TestSuite/"
)

var guardsOfItems = []guard{
	{"R1", "a message that is delivered again changes the item again", []edit{
		{stamps, "return &own, nil", "return nil, nil"},
	}, "cas/guard", inEachEra},
	{"R1", "a message changes an item after a later one", []edit{
		{stamps, "return nil, &PassedError{was.From}", "return nil, nil"},
	}, "cas/guard", inEachEra},
	{"R1", "the rest of a message that was passed is applied", []edit{
		{stamps, "return nil, &PassedError{was.From}", "return &change{}, nil"},
	}, "cas/guard", byStamps + "a message before the position"},
	{"R1", "a message that did not change the item then does so after a later one", []edit{
		{stamps, "return nil, ErrNew", "return nil, nil"},
	}, "cas/guard", byStamps + "one that did not change the item then"},
	{"R1", "a message that an operator has rewound over changes nothing", []edit{
		{stamps, "case s.Era > was.Era && s.Epoch > was.Epoch:", "case s.Era > was.Era && s.Epoch > was.Epoch && s.Offset > was.last():"},
	}, "cas/guard", byStamps + "an earlier message, after a rewind"},
	{"R1", "a full store ends the doubt about an earlier write", []edit{
		{guarding, "if doubts > 0 {\n\t\t\t\treturn fmt.Errorf(\"%w, and then: %w\", ErrDoubt, err) // an earlier", "if false {\n\t\t\t\treturn fmt.Errorf(\"%w, and then: %w\", ErrDoubt, err) // an earlier"},
	}, "cas/guard", "TestAStoreThatIsFullAfterAWriteInDoubtLeavesTheDoubt"},
	{"R1", "a message whose write is in doubt is passed", []edit{
		{guarding, "if doubts++; doubts == tries {\n\t\t\t\treturn fmt.Errorf(\"%w: %w\", ErrDoubt, err)", "if doubts++; doubts == tries {\n\t\t\t\treturn nil"},
	}, "cas/guard", "TestAStoreThatDoesNotAnswerLeavesDoubtAndStopsTheMessage"},
	{"R1", "a message goes on after a write in doubt", []edit{
		{changes, "m.fail(err)", "_ = declined"},
	}, "cas/guard", "TestAStoreThatDoesNotAnswerLeavesDoubtAndStopsTheMessage"},
	{"R1", "an item that is loaded loses the changes that were made meanwhile", []edit{
		{guarding, "if it.loaded {\n\t\treturn nil\n\t}\n\treturn it.take(found)", "return it.take(found)"},
	}, "cas/guard", "TestAnItemThatIsChangedWhileItIsLoadedKeepsTheChange"},
	{"R1", "a deletion forgets who has changed the item", []edit{
		{guarding, "return it.note.with(it.first", "if !after.Exists {\n\t\treturn note{}\n\t}\n\treturn it.note.with(it.first"},
	}, "cas/guard", "TestADeletedItemRemembersWhoDeletedIt"},
	{"R1", "one message changes an item twice", []edit{
		{changes, "if m.changed[key] {", "if false {"},
	}, "cas/guard", "TestAMessageDoesNotChangeAnItemTwice"},
	{"R1", "one message of a batch changes an item twice", []edit{
		{guarding, "return nil, false, Event{}, ErrTwice", "_ = n"},
	}, "cas/guard", "TestABatchRefusesWhatWouldNotBeExact"},
	{"R1", "messages of a batch change an item in any order", []edit{
		{guarding, "return nil, false, Event{}, ErrOrder", "_ = n"},
	}, "cas/guard", "TestABatchRefusesWhatWouldNotBeExact"},
	{"R1", "an item forgets the messages that may be delivered again", []edit{
		{stamps, "now.Changes = slices.Concat(now.rest(), changes)", "now.Changes = changes"},
	}, "cas/guard", inEachEra},
	{"R1", "an item forgets that all messages before an offset were applied", []edit{
		{stamps, "now.From = max(now.From, first.Offset)", "now.From = first.Offset"},
	}, "cas/guard", inEachEra},
	{"R1", "a decision stands although the item has changed since", []edit{
		{guarding, "!bytes.Equal(outcome, m.Outcome)", "len(outcome) > MaxOutcome"},
	}, "cas/guard", "TestAnOutcomeThatOthersHaveChangedIsNotWritten"},
	{"R1", "an owner that wakes up changes what its successor has changed", []edit{
		{stamps, "case s.Epoch < was.Epoch:\n\t\treturn nil, &StaleError{s.Partition, s.Epoch, was.Epoch}", "case s.Epoch < was.Epoch:\n\t\treturn nil, nil"},
	}, "cas/guard", "TestAnOwnerThatWakesUpIsStoppedWhereItsSuccessorHasBeen"},
	{"R9", "a fence that has lost an operator's action is believed", []edit{
		{stamps, "case s.Era != was.Era:\n\t\treturn nil, ErrFenceLost", "case s.Era != was.Era:\n\t\treturn nil, nil"},
	}, "cas/guard", byStamps + "a fence that has lost an operator's action"},
	{"R10", "another message at the same offset counts as applied", []edit{
		{stamps, "return nil, ErrTruncated", "return &change{At: s.Offset}, nil"},
	}, "cas/guard", byStamps + "another message at the offset"},
	{"R10", "another log's offsets are compared", []edit{
		{stamps, "return nil, ErrOtherLog", "return nil, nil"},
	}, "cas/guard", byStamps + "another log"},
	{"R1", "a replay that is repeated changes the item again", []edit{
		{stamps, "return &change{At: s.Offset, Outcome: was.Replays[i].Outcome}", "_ = i"},
	}, "cas/guard", "TestTheReplayOfADeadLetterChangesAnItemOnce"},
	{"R1", "an item forgets what a message had changed before it failed", []edit{
		{stamps, "rs = append(rs, replayed{d.ID, s.Changes[i].Outcome})", "_ = d"},
	}, "sinks/cassink", ofFences},
	{"R1", "the position moves although not all items were written", []edit{
		{ofStores, "if err := t.write(ctx); err != nil {", "if err := t.write(ctx); err != nil && false {"},
	}, "sinks/cassink", "TestThePositionStaysWhereAnItemWasNotWritten"},
	{"R1", "the position moves under another claim", []edit{
		{ofStores, "next, err := t.goal.after(at.record.Fence)\n\t\tif err != nil {\n\t\t\treturn err\n\t\t}", "next, err := t.goal.after(at.record.Fence)\n\t\t_ = err"},
	}, "sinks/cassink", ofFences},
	{"R3", "a process that has lost the fence writes items", []edit{
		{ofStores, "if err := <-stillOurs; err != nil {", "if err := <-stillOurs; err != nil && false {"},
	}, "sinks/cassink", suiteItems + "stale writer: whoever lost its claim commits nothing"},
	{"R9", "what one seeding has decided is decided again", []edit{
		{"sinks/cassink/seed.go", "_, err = s.store.Swap(ctx, stored, value, nil)", "_, err = s.store.Swap(ctx, stored, value, nil)\n\tif errors.Is(err, cas.ErrConflict) {\n\t\terr = nil\n\t}"},
	}, "sinks/cassink", suiteItems + "of concurrent seedings of different partitions, one begins at the policy's offset, the others at the earliest"},
	{"R9", "a partition waits for a decision about another one that was made", []edit{
		{"sinks/cassink/seed.go", "\t\tmaps.Copy(fences, now)\n", "\t\t_ = now\n"},
	}, "sinks/cassink", actsInMemory + "another log and another lease source are accepted with a position"},
	{"R6", "a dead letter is gone before its effects are written", []edit{
		{ofStores, "if err := t.write(ctx); err != nil {", "_ = s.finishReplay(ctx, t)\n\tif err := t.write(ctx); err != nil {"},
	}, "sinks/cassink", "TestADeadLetterStaysUntilTheItemsOfItsReplayAreWritten"},
	{"R1", "the rest of a call is left out with a message that was passed", []edit{
		{"sinks/cassink/tx.go", "if t.passed == nil || calls > 1 || t.passed.Position >= t.goal.To {", "if true {"},
	}, "sinks/cassink", "TestAMessageThatWasPassedIsNotAppliedAgain"},
	{"R3", "background work commits under a claim that is not its own", []edit{
		{ofStores, "return f, f.Holds(epoch.Hold{Partition: g.Partition, Claim: g.Claim})", "return f, nil"},
	}, "sinks/cassink", "TestATransactionThatIsRefusedLeavesNoEntry"},
	{"R1", "a replay that is repeated adds its entries again", []edit{
		{"sinks/cassink/operable.go", "tx.added = nil // it has added them", "_ = 0"},
	}, "sinks/cassink", "TestAReplayThatIsRepeatedAddsItsEntriesOnce"},
	{"R1", "an item forgets an answer whose entry is there still", []edit{
		{"sinks/cassink/tx.go", "b.Keep(t.isEntry)", "_ = 0"},
	}, "sinks/cassink", "TestAnItemRemembersAnAnswerForAsLongAsItsEntryIsThere"},
	{"R1", "background work changes items for no entry", []edit{
		{"sinks/cassink/tx.go", "case a.held && (m.Replay == 0 || !slices.Contains(t.lists.Entries, m.Replay)):", "case a.held && m.Replay == 0:"},
	}, "sinks/cassink", "TestBackgroundWorkChangesItemsForEntriesAlone"},
	{"R12", "an entry gets an id below those of an owner whose clock is ahead", []edit{
		{ofEntries, "last := at.record.LastEntry", "last := min(at.record.LastEntry, 0)"},
	}, "sinks/cassink", "TestAnEntryFollowsThoseOfAProcessWhoseClockIsAhead"},
	{"R12", "an entry is committed before one with a lower id", []edit{
		{"sinks/cassink/turn.go", "turn = make(chan struct{}, 1)", "turn = make(chan struct{}, 99)"},
	}, "sinks/cassink", "TestEntriesAreCommittedInTheOrderOfTheirIDs"},
	{"R1", "the item of an entry that is about to be committed is swept away", []edit{
		{ofEntries, "id <= at.record.LastEntry && !slices", "!slices"},
	}, "sinks/cassink", "TestTheItemOfAnEntryThatIsAboutToBeCommittedStays"},
	{"R12", "an abandoned transaction keeps messages from being committed", []edit{
		{"sinks/cassink/tx.go", "t.pass()", "_ = 0"},
	}, "sinks/cassink", "TestAnAbandonedTransactionLetsOthersWriteTheFence"},
	{"R1", "an answer to an entry that was discarded meanwhile is recorded", []edit{
		{ofStores, "if !at.lists.hasAll(t.deleted) {", "if false {"},
	}, "sinks/cassink", "TestAnAnswerToAnEntryThatIsDiscardedMeanwhileIsNotRecorded"},
	{"R1", "a fence forgets what has left its lists while an older owner may write them", []edit{
		{"sinks/cassink/lists.go", "if k.Number > r.Upon {", "if true {"},
	}, "sinks/cassink", "TestAnOwnerThatWasPausedBringsNoEntryBack"},
	{"R12", "a read that lags hides an entry", []edit{
		{"sinks/cassink/fence.go", "(r.Next < last.Next || r.LastEntry < last.LastEntry)", "r.Next < last.Next"},
		{ofEntries, "now, err := t.sink.newest(ctx, t.goal.Partition)", "now, err := t.sink.fence(ctx, t.goal.Partition)"},
	}, "sinks/cassink", "TestAStoreThatLagsHidesNoEntry"},
	{"blame", "waiting for another transaction is the message's fault", []edit{
		{"sinks/cassink/turn.go", "return fmt.Errorf(\"%w: another transaction of this process writes the fence: %w\", epoch.ErrTransient, ctx.Err())", "return fmt.Errorf(\"%w\", ctx.Err())"},
	}, "sinks/cassink", "TestWaitingForAnotherTransactionIsNoMessagesFault"},
	{"blame", "answers wait for room in a full outbox", []edit{
		{ofOutbox, "case !tx.goal.held && len", "case len"},
	}, "sinks/cassink", "TestAFullOutboxHasMessagesWaitAndNotItsOwnAnswers"},
	{"blame", "an entry that an operator has discarded is waited for", []edit{
		{ofEntries, "if !slices.Contains(now.lists.Entries, id) {", "if false {"},
	}, "sinks/cassink", "TestAnEntryThatIsDiscardedBesideItsRelayIsGone"},
	{"R1", "an item is written before the outcome that its change may depend on", []edit{
		{"cas/guard/rounds.go", "n = max(n, of[before]+1)", "_ = before"},
	}, "cas/guard", "TestAnItemIsNotWrittenBeforeTheOutcomesThatItsChangeMayDependOn"},
	{"blame", "a later message changes an item before an outcome is written by which an earlier one may", []edit{
		{"cas/guard/rounds.go", "told.besides(s.item)", "min(told.besides(s.item), 0)"},
	}, "cas/guard", "TestAnItemTakesNoLaterMessageBeforeAnOutcomeIsWritten"},
	{"R1", "a change that did not return when it was made again is taken for written", []edit{
		{guarding, "err = errNoReturn\n", "err = nil\n"},
	}, "cas/guard", "TestAChangeThatDoesNotReturnWhenItIsMadeAgainIsNotTakenForWritten"},
	{"R9", "an era of a lost history is taken for the present one", []edit{
		{stamps, "case s.Act != was.Act && s.Act != \"\" && was.Act != \"\":", "case false:"},
	}, "sinks/cassink", "TestAnEraOfTheLostHistoryIsNotTakenForTheNewOne"},
	{"R1", "skipping messages begins an era", []edit{
		{acts, "if a.Kind != ActSkip {", "if true {"},
	}, "consumer", "TestSkippingAMessageDoesNotRepeatWhatThoseBehindItHaveDoneToItems"},
	{"R1", "skipping messages begins an era in PostgreSQL", []edit{
		{operateSQL, "set_offset is null or kind = 'skip' then t.set_under", "set_offset is null then t.set_under"},
	}, "sinks/pgsink", actsOnPostgres + "a live owner is fenced by an act, claims again, and continues from where it was told"},
	{"R1", "a handler's message does not say under which claim it is handled", []edit{
		{"consumer/transaction.go", "ms[i].Under = p.under", "_ = i"},
	}, "consumer", "TestAHandlerGuardsItemsOfAnotherStoreWithItsMessages"},
	{"R1", "a replayed message does not say that it is one", []edit{
		{"consumer/replays.go", "m.Under, m.Replay = p.under, r.ID", "m.Under = p.under"},
	}, "consumer", "TestAHandlerGuardsItemsOfAnotherStoreWithItsMessages"},
	{"blame", "a refusal by an item is observed by nobody", []edit{
		{guarding, "e = it.refused(at, it.doubted, err)", "_ = err"},
	}, "cas/guard", "TestEachDecisionIsReportedOnceWithTheItemTheStampAndTheEpochThatTheItemHasSeen"},
	{"blame", "an error of a change is observed as a refusal by the item", []edit{
		{decisions, "if _, declined := errors.AsType[*declinedError](err); declined {", "if false {"},
	}, "cas/guard", "TestWhereNothingIsDecidedNothingIsReported"},
	{"blame", "a change that was written without an answer is observed as an earlier one", []edit{
		{decisions, "if doubted && e.Seen == it.first.Epoch {", "if false {"},
	}, "cas/guard", ofAnswers},
	{"blame", "what an owner of before has changed is observed as a change of this one", []edit{
		{decisions, "if doubted && e.Seen == it.first.Epoch {", "if doubted {"},
	}, "cas/guard", ofAnswers},
	{"blame", "a change that may have been written is observed as refused", []edit{
		{decisions, "if doubted && d != undecided && d != Passed {", "if false {"},
	}, "cas/guard", ofAnswers},
	{"blame", "a change in doubt is observed by nobody", []edit{
		{decisions, "case errors.Is(err, ErrDoubt):", "case false:"},
	}, "cas/guard", "TestAMessageInDoubtIsSaidToBeAndTheNextDeliverySaysWhatBecameOfIt"},
	{"blame", "a lost answer is forgotten when the change is made again", []edit{
		{changes, "doubted = doubted || errors.Is(err, ErrDoubt)", "_ = doubted"},
	}, "cas/guard", "TestALostAnswerIsRememberedWhenTheChangeIsMadeAgainFromTheBeginning"},
	{"blame", "a change is observed before it is made again", []edit{
		{changes, "doubted = doubted || errors.Is(err, ErrDoubt)", "doubted = doubted || errors.Is(err, ErrDoubt)\n\t\t\tb.report(events...)"},
	}, "cas/guard", "TestALostAnswerIsRememberedWhenTheChangeIsMadeAgainFromTheBeginning"},
	{"blame", "what a write finds in the item is observed by nobody", []edit{
		{guarding, "it.events = append(it.events, it.found(at, doubted))", "_ = doubted"},
	}, "cas/guard", "TestABatchThatFailsReportsWhatWasDecidedAndNoMore"},
	{"blame", "a change is observed at each Write of its batch", []edit{
		{"cas/guard/batch.go", "events, it.events = append(events, it.events...), nil", "events = append(events, it.events...)"},
	}, "cas/guard", "TestABatchReportsItsChangesOnceTheyAreWrittenAndOneAtATime"},
	{"blame", "the changes of a cassink are observed by nobody", []edit{
		{"sinks/cassink/tx.go", "b.Observe(t.sink.observe)", "_ = 0"},
	}, "sinks/cassink", "TestEachUpdateIsObservedOnceItsItemIsWrittenAndBeforeThePositionIs"},
	{"blame", "a refusal by an item is not counted among those of fences", []edit{
		{"operate/stats/stats.go", "if e.Decision == guard.Stale {", "if false {"},
	}, "operate/stats", "TestEachEventCountsWhatItSays"},
}
