package mutation

const (
	takeover   = "epoch/takeover.go"
	claiming   = "consumer/claim.go"
	owning     = "consumer/partition.go"
	applying   = "consumer/apply.go"
	committing = "consumer/committer.go"
	verdicts   = "consumer/verdict.go"
	sizes      = "consumer/sizing.go"
	transact   = "consumer/transaction.go"
	hanging    = "consumer/hang.go"
	background = "consumer/background.go"
)

// Where package consumer claims, applies, finds out what an answer means, and gives up.
var guardsOfConsumer = []guard{
	{"R1", "an epoch that a store has seen is not claimed above", []edit{
		{verdicts, "return verdict{action: claimAbove, above: low.Seen, err: err}, low.Partition", "return verdict{action: claimAgain, err: err}, low.Partition"},
	}, "consumer", "TestJudgeSaysWhatATransactionsAnswerMeansForEachPartition"},

	{"R2", "the fence is read again after the confirmation", []edit{
		{takeover, "\tgot, err = sink.Claim(ctx, seen,", "\tif seen, err = FenceOf(ctx, sink, c.Origin.Partition); err != nil {\n\t\treturn got, seen, err\n\t}\n\tgot, err = sink.Claim(ctx, seen,"},
	}, "consumer", "TestR2TheConfirmationIsAskedForAfterTheRead"},
	{"R2", "the source is not asked", []edit{
		{claiming, "lease, err := t.Confirm(ctx, seen)", "lease, err := epoch.Lease{Origin: c.Origin, Generation: max(seen.Generation, 1)}, error(nil)"},
	}, "consumer", "TestR6AfterStaleNothingIsTakenBackWithoutAConfirmation"},
	{"R2", "a confirmation that failed counts", []edit{
		{claiming, "lease, err := t.Confirm(ctx, seen)\n", "lease, err := t.Confirm(ctx, seen)\n\t\tif err != nil && reasonOf(err) != ReasonLeaseTaken {\n\t\t\tlease, err = epoch.Lease{Origin: c.Origin, Generation: 1}, nil\n\t\t}\n"},
	}, "consumer", "TestR2AnAnswerThatIsNotKnownMakesNoClaim"},

	{"R3", "a missing fence is taken for doubt", []edit{
		{verdicts, "verdict{action: halt, err: err}, missing.Partition", "verdict{action: claimAgain, err: err}, missing.Partition"},
	}, "consumer", "TestR9AFenceMissingAtTheCommitHaltsAtOnce"},

	{"R4", "partitions are applied in the order they became ready", []edit{
		{committing, "\tslices.SortFunc(ws, func(a, b *work) int { return a.fence.Partition.Compare(b.fence.Partition) })\n", ""},
	}, "consumer", "TestR4PartitionsAreAppliedInKeyOrder"},

	{"R5", "a commit in doubt is a message's failure", []edit{
		{verdicts, "case errors.Is(err, epoch.ErrInDoubt):", "case errors.Is(err, epoch.ErrInDoubt) && false:"},
	}, "consumer", "TestR5AfterALostAcknowledgementThePartitionIsClaimedAgain"},
	{"R5", "in doubt, the old claim continues", []edit{
		{verdicts, "\tvs := each(tried, verdict{action: claimAgain, err: r.err})", "\tvs := each(tried, verdict{action: retry, err: r.err})"},
	}, "consumer", "TestR5ACommitStillInFlightCannotLandAfterTheNextClaim"},
	{"R5", "a position that moved is followed under the old claim, or halts", []edit{
		{verdicts, "verdict{action: claimAgain, err: err}, moved.Partition", "verdict{action: halt, err: err}, moved.Partition"},
	}, "consumer", "TestR5AMovedPositionIsClaimedAgainAndFollowed"},
	{"R5", "reading starts where the fence was seen, not where it was claimed", []edit{
		{claiming, "\tp.adoptFence(got)\n", "\tgot.Next = seen.Next\n\tp.adoptFence(got)\n"},
	}, "consumer", "TestR5ReadingStartsAtThePositionThatTheSwapReturned"},
	{"R5", "doubt in background work keeps the claim", []edit{
		{background, "case errors.Is(err, epoch.ErrInDoubt):", "case false:"},
	}, "consumer", "TestBackgroundWorkInDoubtIsFollowedByANewClaim"},
	{"R5", "the fence of a partition that has nothing to commit is not read", []edit{
		{"consumer/watch.go", "\tat := w.next\n", "\tat := time.Now().Add(time.Hour)\n"},
	}, "consumer", "TestEffectsThatASinkLostComeBackThoughNoMessageComes/within two terms, by a look now and then"},

	{"R6", "a sink that went back is taken for a later claim", []edit{
		{"consumer/next.go", "back := wentBack(ours, out.err); back != nil {", "back := wentBack(ours, out.err); back != nil && back.Now.Next < 0 {"},
	}, "consumer", "TestASinkThatWentBackIsSaidAsThatAndNotAsALaterClaim/a refusal under a lost claim"},
	{"R6", "one refusal ends the claims of all that shared the transaction", []edit{
		{verdicts, "but(each(tried, verdict{action: retry, err: err}), i, p.refused(tried[i], refused, len(tried) > 1))", "each(tried, refused)"},
	}, "consumer", "TestR6TheRefusalOfOnePartitionLeavesTheClaimsOfTheOthersAlone"},
	{"R6", "a lease known to be lost is confirmed again", []edit{
		{owning, "errors.Is(err, ErrLost) {", "errors.Is(err, ErrLost) && false {"},
	}, "consumer", "TestR6ALeaseThatIsKnownToBeLostEndsTheTenure"},
	{"R6", "a zombie's background work ends no claim", []edit{
		{background, "\t\tb.end(outcome{action: v.action, above: v.above, err: err})\n", "\t\t_ = v\n"},
	}, "consumer", "TestAZombiesBackgroundWorkIsRefusedAndEndsItsClaim"},
	{"R6", "the next claim does not wait for the last one's background work", []edit{
		{background, "b.calls.close()", ""},
	}, "consumer", "TestTheNextClaimWaitsForTheWorkOfTheLastOne"},

	{"R7", "a halt makes a new claim", []edit{
		{claiming, "if ours, err := p.stillOurs(revoked); err != nil || ours {", "if ours, err := false, error(nil); err != nil || ours {"},
	}, "consumer", "TestAHaltKeepsTheClaim"},

	{"R8", "the policy's position replaces the fence's", []edit{
		{takeover, "errors.Is(err, ErrMissing) && c.Missing", "c.Missing"},
		{claiming, "\t\tif _, err := epoch.FenceOf(ctx, r.effects, p); !errors.Is(err, epoch.ErrMissing) {\n\t\t\treturn err\n\t\t}\n", ""},
		{"epoch/fences.go", "\t\tif _, ok := fs[s.Partition]; ok {\n\t\t\tcontinue\n\t\t}\n", ""},
	}, "consumer", "TestR8ThePositionOfTheSinkIsTheTruth"},
	{"R8", "what the group had committed is not adopted", []edit{{claiming, "claim.Adopt, claim.Above = adopt, above", "_, claim.Above = adopt, above"}}, "consumer", "TestAPartitionWithoutAFenceStartsAsThePolicySays"},
	{"R8", "the position of an advance is not published", []edit{
		{applying, "\tp.tenure.Mirror(p.fence)\n", ""},
	}, "consumer", "TestStopDrainsCommitsTheTransactionUnderWayAndReturnsNil"},

	{"R9", "each partition gets its fence when it is first claimed", []edit{
		{claiming, "r.effects.Seed(ctx, starts)", "r.effects.Seed(ctx, starts[t.Origin().Partition.Number:][:1])"},
	}, "consumer", "TestR9APartitionClaimedLaterStartsWhereItWasWhenTheGroupBegan"},
	{"R9", "a fence that vanished under its owner is made again", []edit{
		{claiming, "if !known {", "if true {"},
	}, "consumer", "TestR9AFenceMissingWhileInDoubtIsNotMadeAgain"},

	{"R10", "an offset below the position is applied again", []edit{
		{"consumer/source.go", "if m.Offset < next {", "if false {"},
	}, "consumer", "TestR10AnOffsetBelowThePositionThatComesAgainHalts"},
	{"R10", "an advance begins at its first message, not at the fence", []edit{
		{transact, "From: f.Next,", "From: w.batch.Messages[0].Offset,"},
	}, "consumer", "TestR10AGapThatTheSourceExplainsIsPassedOver"},
	{"R10", "the mark is not recorded", []edit{
		{transact, "Mark: to.Mark}", "Mark: epoch.NoMark}"},
	}, "consumer", "TestR10ALogRewrittenBelowThePositionIsRecognisedByItsMark"},
	{"R10", "a read that failed is doubt", []edit{
		{applying, "return outcome{action: halt, err: &sourceError{err}}", "return outcome{action: claimAgain, err: err}"},
	}, "consumer", "TestR10ALogThatNoLongerHoldsThePositionHaltsWithBothNumbers"},

	{"R12", "an attempt to claim may last for ever", []edit{
		{"consumer/handlers.go", "context.WithTimeout(ctx, s.limit)\n\tdefer done()\n\treturn s.Sink.Look", "context.WithCancel(ctx)\n\tdefer done()\n\treturn s.Sink.Look"},
	}, "consumer", "TestR12AnAttemptToClaimIsBoundedInTime"},

	{"R13", "a transaction may be given more time than the lease has", []edit{
		{"consumer/run.go", "r.BatchTimeout > most {", "r.BatchTimeout > most && false {"},
	}, "consumer", "TestR13BatchTimeoutMustBeShorterThanTheLease"},
	{"R13", "a transaction has no deadline", []edit{
		{transact, "context.WithTimeoutCause(ctx, t.timeout, errTimeout)", "context.WithTimeoutCause(ctx, 1000*time.Hour, errTimeout)"},
	}, "consumer", "TestR13TransactionsThatTakeTooLongAreCutOffAndMadeSmaller"},
	{"R13", "the loss of a partition does not abort its transaction", []edit{
		{transact, "cancel(context.Cause(lost))\n\t\t\tif errors.Is", "if errors.Is"},
	}, "consumer", "TestALostPartitionAbortsItsTransactionAtOnce"},
	{"R13", "messages are handled after the context has ended", []edit{
		{transact, "if err == nil || n == 0 {", "if true {"},
	}, "consumer", "TestR13NoMessageIsHandledAfterTheTransactionsContextHasEnded"},

	{"L1", "a transaction that does not fit is tried again as large as it was", []edit{
		{verdicts, "case errors.Is(r.err, epoch.ErrTooLarge) && !alone:", "case false:"},
	}, "consumer", "TestJudgeSaysWhatATransactionsAnswerMeansForEachPartition"},
	{"L1", "transactions stay as large as those that did not fit", []edit{
		{committing, "c.sizing.tooLarge(n, r.took)", "_ = n"},
	}, "consumer", "TestASinkOfFiveMethodsIsEnough"},

	{"L2", "a transaction that could not begin is a message's failure", []edit{
		{verdicts, "case !r.called:", "case !r.called && false:"},
	}, "consumer", "TestR5ATransactionThatCouldNotBeginIsBlamedOnNoMessage"},
	{"L2", "a failure among other partitions' messages counts", []edit{
		{verdicts, "case t.messages > 1 || shared:", "case t.messages > 1:"},
	}, "consumer", "TestWhatFailsInASharedTransactionIsTriedAloneBeforeItIsBlamed/an error"},
	{"L2", "a message is blamed for an unhealthy database", []edit{
		{verdicts, "case errors.Is(r.err, epoch.ErrUnhealthy) && !permanent && t.failed == nil:", "case false:"},
	}, "consumer", "TestAnUnhealthyDatabaseHaltsThePartitionAndCostsNoMessage/a statement/refused"},
	{"L2", "a message is blamed for a freeze", []edit{
		{verdicts, "case r.froze > 0 && !permanent:", "case false:"},
	}, "consumer", "TestAfterAThawNobodyIsBlamed"},
	{"L2", "one lost connection is an attempt", []edit{
		{verdicts, "if deaths < enoughDeaths {", "if false {"},
	}, "consumer", "TestWhatDiesAloneAgainAndAgainHasFailedAnAttempt"},
	{"L2", "a connection that another claim or an operator has ended is an attempt", []edit{
		{claiming, "seen.Claim == left.Claim", "true"},
	}, "consumer", "TestAConnectionThatSomebodyElseHasEndedIsNoAttempt"},
	{"L2", "an error of the handler's own fenced store passes for one of this sink", []edit{
		{background, "return &maskedError{r.handler}", "return r.handler"},
	}, "consumer", "TestAFailureOfBackgroundWorkIsTheWorksOwn"},

	{"L4", "the loss of one partition costs the others their claims", []edit{
		{verdicts, "case lost:", "case lost && false:"},
	}, "consumer", "TestAPartitionLostWhileWaitingForAConnectionCostsNoOtherItsClaim"},
	{"L4", "a message that waits for a lock continues in the others' transactions", []edit{
		{sizes, "if !b.active() && b.refusals < 2 {", "if !b.active() {"},
	}, "consumer", "TestAMessageThatIsRefusedAloneDoesNotHoldUpTheOthers"},
	{"L4", "a majority that is silent is removed one by one", []edit{
		{"consumer/internal/failover/decide.go", "return !c.allows(s, one)", "return c.name != \"never a majority\" && !c.allows(s, one)"},
	}, "consumer/internal/failover", "TestEachCapTakenAwayShowsItsStorm"},
	{"L4", "a call that hangs blocks its committer", []edit{
		{committing, "func() { c.abandon(t) }", "func() {}"},
	}, "consumer", "TestAHandlerThatHangsCostsItsOwnPartitionAlone/1 committers"},
	{"L4", "what shares a transaction with a call that hangs is not tried again", []edit{
		{hanging, "\tcase a.hang == nil:\n\t\treturn outcome{action: advance}", "\tcase a.hang == nil:\n\t\treturn outcome{action: halt, err: a.err}"},
	}, "consumer", "TestWhatSharesATransactionWithACallThatHangsIsAppliedAgainAtOnce"},

	{"L5", "a standstill is not reported", []edit{
		{"consumer/report.go", "\t\tr.standstill(at, v.err, took, in)\n", ""},
	}, "consumer", "TestAMessageThatIsRefusedAloneDoesNotHoldUpTheOthers"},
	{"L5", "a partition that does not move is reported as running whenever it is claimed again", []edit{
		{"consumer/report.go", "r.halted = r.halted && r.still.Reported", "r.halted = false"},
	}, "consumer", "TestAPartitionThatIsInDoubtAgainAndAgainStaysHalted"},

	{"L6", "the methods of a handler's error are called wherever it comes to", []edit{
		{"consumer/handlers.go", "return inert.Error(f())", "return f()"},
	}, "consumer", "TestAnErrorWhoseMethodsPanicCostsItsMessageAndNothingElse"},
	{"L6", "an error's method Is runs on the goroutine that asks, which it may end", []edit{
		{"internal/text/inert/error.go", "go func() {\n\t\ta := answer", "func() {\n\t\ta := answer"},
	}, "internal/text/inert", "TestNothingThatAnErrorHasPanics"},
	{"L6", "background work that commits by itself is started again", []edit{
		{background, "b.owner.run.endedTx(b.hold.Partition, err)", ""},
	}, "consumer", "TestWorkThatCommitsByItselfBesideADoubtHaltsThePartitionUntilARestart"},

	{"L7", "a message whose connection dies each time is in doubt for ever", []edit{
		{verdicts, "if deaths < enoughDeaths {", "if true {"},
	}, "consumer", "TestAMessageThatKillsItsConnectionAsItCommitsIsFoundOut"},
	{"L7", "a message that moves its own fence is claimed again for ever", []edit{
		{verdicts, "v.finding, v.at = p.suspicion(t, shared), -1\n\t}\n\tif v", "}\n\tif v"},
	}, "consumer", "TestAMessageThatMovesItsOwnFenceHasFailedAnAttempt"},
	{"L7", "a partition is claimed again while a call for it hangs", []edit{
		{owning, "if h := r.hung.of(t.Origin().Partition); h != nil {", "if h := r.hung.of(t.Origin().Partition); h != nil && false {"},
	}, "consumer", "TestASourceThatGrantsAPartitionAllTheSameGetsItBack"},
	{"L7", "the source is not notified that a call for the partition hangs", []edit{
		{owning, "p.tenure.GiveUp(p.hang.returned)", "_ = p.hang.returned"},
	}, "consumer", "TestAMessageThatHangsAgainAndAgainEndsInOnFailure/OnFailure true"},
	{"L7", "a message that hangs uses up no attempts", []edit{
		{hanging, "\t\tp.blame(a)\n", ""},
	}, "consumer", "TestAMessageThatHangsAgainAndAgainEndsInOnFailure/OnFailure true"},
	{"L7", "a message that hangs in one process after the other uses up no attempts", []edit{
		{claiming, "if seen.Epoch > 0 && (left.Epoch == 0 || p.hung) {", "if false {"},
	}, "consumer", "TestAMessageThatHangsOneOwnerAfterTheOtherEndsInOnFailure/2 owners"},
	{"L7", "Run waits for a call that hangs", []edit{
		{hanging, "t.abandon()\n\tt.release()", "t.abandon()"},
	}, "consumer", "TestRunReturnsWithWhatHangsWhenItIsStopped"},
	{"L7", "Run continues however many calls hang", []edit{
		{hanging, "r.stop(errTooManyHang)", "_ = errTooManyHang"},
	}, "consumer", "TestRunReturnsWhenTooManyCallsHang"},
	{"L7", "a drain waits for a call that hangs", []edit{
		{transact, "overrun.Within(overrunGrace)", "_ = overrunGrace"},
	}, "consumer", "TestADrainDoesNotWaitForAHandlerThatHangs"},
	{"L6", "a message begins beside the one before it that has its key", []edit{
		{transact, "if before, is := last[of]; is {", "if before, is := last[of]; is && before < 0 {"},
	}, "consumer", "TestMessagesOfOneKeyAreInOrderAndThoseOfOthersBesideThem"},
	{"L2", "a message is blamed for the failed statement of one beside it", []edit{
		{"sinks/pgsink/blame.go", "\t\tturn.blame(t.call)\n", ""},
	}, "sinks/pgsink", "TestOfCallsBesideEachOtherTheOneAtFaultIsBlamed"},
	{"L7", "background work that outlives its context holds its partition", []edit{
		{background, "count := waits.AfterAwake(p.run.hangTimeout(p.timeout), func() { close(late) })", "count := waits.AfterAwake(p.run.hangTimeout(p.timeout), func() {})"},
	}, "consumer", "TestBackgroundWorkThatOutlivesItsContextDoesNotHoldItsPartition"},
}
