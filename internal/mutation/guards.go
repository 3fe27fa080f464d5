package main

import "slices"

// A guard is written like this:
//
//	{"R1", "the position is not compared", []edit{
//		{"epoch/fence.go", "if f.Next != a.From {", "if false {"},
//	}, "epoch", "TestAdvanced"},
//
// It consists of the rule, the module's behaviour without the guard, the edits that take the guard
// away, and the package and name of a test that then fails.
//
//   - The file must have the tokens of an edit's old text, in this order, exactly once. Comments
//     and white space do not count, neither in the file nor in the text, so guards contain no
//     comments. A text that is only a part of a string literal is found in that literal, byte by
//     byte.
//   - The new text replaces the range from the first of those tokens to the last. The function must
//     still compile: use false instead of a condition, or _ = x for an otherwise unused variable.
//   - All edits of a guard are found in the original files, and do not overlap.
//   - An edit in the body of a function or in an SQL script costs nothing. An edit elsewhere
//     (constants, types, signatures), or in a function that itself calls recover, costs a build of
//     several seconds.
//
// Afterwards run go run ./internal/mutation "the position is not compared" to see that the test
// catches it. If a guard's text is no longer found, the tests of this package fail within seconds.

// guard is a piece of code that keeps a rule, and the test that fails without it.
type guard struct {
	rule  string
	taken string // the module's behaviour without it
	edits []edit // the edits that take it away
	pkg   string
	test  string // the name of a test or subtest, with blanks
}

// edit replaces a text whose tokens the file has exactly once.
type edit struct{ file, old, new string }

const (
	fence    = "epoch/fence.go"
	fences   = "epoch/fences.go"
	holds    = "epoch/hold.go"
	takeover = "epoch/takeover.go"
	claiming = "consumer/claim.go"
	owning   = "consumer/ownership.go"
	verdicts = "consumer/verdict.go"
	loops    = "consumer/loop.go"
	pendings = "consumer/pending.go"
	transact = "consumer/transaction.go"
	running  = "consumer/run.go"
	aside    = "consumer/background.go"
	sizes    = "consumer/sizing.go"
	idling   = "consumer/idle.go"
	bisects  = "consumer/bisection.go"
	reports  = "consumer/report.go"
	nexts    = "consumer/next.go"
	batches  = "consumer/batch.go"
	fenceSQL = "sinks/pgsink/migrations/0001_fence.sql"
	kafka    = "consumer/kafkasource"

	tenures   = "consumer/internal/tenures/state.go"
	positions = "consumer/internal/tenures/position.go"

	// The beginning of advance and hold.
	unlessEntered = "    if not entered(xid, lock) then\n        raise exception using errcode = 'XF004', message = 'handler ended the fenced transaction', hint = nonce;\n    end if;\n"

	// The suite of sinks, as this module's databases run it.
	onPostgres = "TestSuite/cache_statement/queries/"
	onSQLite   = "TestSuite/"

	// The suite of sources, as kafkasource runs it.
	onKafka = "TestSuite/cooperative-sticky/"
)

var guards = slices.Concat(guardsOfTheRest, guardsOfHolds, guardsOfActs, guardsOfLeases, guardsOfItems, guardsOfNATS, guardsOfTheOutbox, guardsOfShards, guardsOfHandlers, guardsOfBlame, guardsOfSQLite, guardsOfHangs, guardsOfSight, guardsOfTokens, guardsOfSchedules, guardsOfProtections)

var guardsOfTheRest = []guard{
	{"R1", "the claim is not compared", []edit{
		{holds, "if f.Claim != h.Claim || h.Claim == (ClaimID{}) {", "if h.Claim == (ClaimID{}) {"},
	}, "epoch", "TestAdvanced"},
	{"R1", "the position is not compared", []edit{{fence, "if f.Next != a.From {", "if false {"}}, "epoch", "TestAdvanced"},
	{"R1", "an unclaimed fence takes an advance without a claim", []edit{
		{holds, "if f.Claim != h.Claim || h.Claim == (ClaimID{}) {", "if f.Claim != h.Claim {"},
	}, "sinks/memsink", "TestSuite/ownership is judged before the position"},
	{"R1", "a position may go backwards", []edit{{fence, "if a.To < a.From {", "if false {"}}, "epoch", "TestAdvancedRefusesWhatNoCallerMeans"},
	{"R1", "a claim id may be used again", []edit{{fence, "if c.ID == (ClaimID{}) || c.ID == f.Claim {", "if false {"}}, "epoch", "TestClaimedRefusesAndLeavesTheFence"},
	{"R1", "the epoch is the lease's generation, also where that repeats", []edit{
		{fence, "f.Epoch = last + 1", "f.Epoch = Epoch(c.Generation)"},
	}, "epoch", "TestClaimedGivesTheLeasesGenerationOrTheNextEpoch"},
	{"R1", "the claim is not compared in PostgreSQL", []edit{
		{fenceSQL, "and f.claim_id = claims[i] and f.next_offset = froms[i]", "and f.next_offset = froms[i]"},
	}, "sinks/pgsink", "TestTheCheckAtTheEndHoldsByItself"},
	{"R1", "the position is not compared in PostgreSQL", []edit{
		{fenceSQL, "and f.claim_id = claims[i] and f.next_offset = froms[i]", "and f.claim_id = claims[i]"},
	}, "sinks/pgsink", "TestTheCheckAtTheEndHoldsByItself"},
	{"R1", "the claim of one partition is not compared in PostgreSQL", []edit{
		{fenceSQL, "and f.claim_id = in_claim and f.next_offset = in_from", "and f.next_offset = in_from"},
	}, "sinks/pgsink", "TestTheCheckAtTheEndHoldsByItself"},
	{"R1", "the position of one partition is not compared in PostgreSQL", []edit{
		{fenceSQL, "and f.claim_id = in_claim and f.next_offset = in_from", "and f.claim_id = in_claim"},
	}, "sinks/pgsink", "TestTheCheckAtTheEndHoldsByItself"},
	{"R1", "the claim is not compared in SQLite", []edit{
		{"sinks/sqlsink/queries.go", "` AND claim_id = ? AND next_offset = ?`", "` AND (claim_id = ? OR 1) AND next_offset = ?`"},
	}, "sinks/sqlsink", onSQLite + "stale writer: whoever lost its claim commits nothing"},
	{"R1", "the position is not compared in SQLite", []edit{
		{"sinks/sqlsink/queries.go", "` AND claim_id = ? AND next_offset = ?`", "` AND claim_id = ? AND (next_offset = ? OR 1)`"},
	}, "sinks/sqlsink", onSQLite + "an advance from another offset than the fence's is moved, by the right claim too"},

	{"R2", "the fence is read again after the confirmation", []edit{
		{takeover, "\tgot, err = sink.Claim(ctx, seen,", "\tif seen, err = sink.Fence(ctx, c.Origin.Partition); err != nil {\n\t\treturn got, seen, err\n\t}\n\tgot, err = sink.Claim(ctx, seen,"},
	}, "consumer", "TestR2TheConfirmationIsAskedForAfterTheRead"},
	{"R2", "the source is not asked", []edit{
		{claiming, "lease, err := t.Confirm(ctx, seen)", "lease, err := epoch.Lease{Origin: c.Origin, Generation: max(seen.Generation, 1)}, error(nil)"},
	}, "consumer", "TestR6AfterStaleNothingIsTakenBackWithoutAConfirmation"},
	{"R2", "an answer that is not known is a yes", []edit{
		{claiming, "lease, err := t.Confirm(ctx, seen)\n", "lease, err := t.Confirm(ctx, seen)\n\t\tif err != nil && reasonOf(err) != ReasonLeaseTaken {\n\t\t\tlease, err = epoch.Lease{Origin: c.Origin, Generation: 1}, nil\n\t\t}\n"},
	}, "consumer", "TestR2AnAnswerThatIsNotKnownMakesNoClaim"},
	{"R2", "a confirmation of another partition counts", []edit{
		{claiming, "if lease.Origin != c.Origin {", "if false {"},
		{fences, "if seen.Partition != c.Partition {", "if false {"},
	}, "consumer", "TestAConfirmationOfAnotherPartitionIsRefused"},
	{"R2", "the position of another log is confirmed, and so published", []edit{
		{takeover, "seen.Check(c.Origin)", "seen.Check(seen.Origin)"},
	}, "consumer", "TestNoPositionOfAnotherLogIsPublished"},
	{"blame", "a generation that jumps is out of reach of the next claim", []edit{
		{takeover, "\tclaim.Generation = min(claim.Generation, int64(seen.Epoch+MaxStep))\n", ""},
	}, "epoch", "TestTakeOverReadsChecksConfirmsAndSwaps/a_generation_far_above_is_limited"},
	{"R2", "the fence of another log is claimed", []edit{{fence, "if f.Log != o.Log {", "if false {"}}, "epoch", "TestCheckComparesLogAndSource"},
	{"R2", "another deployment's fence is claimed", []edit{{fence, "if f.Source != o.Source {", "if false {"}}, "epoch", "TestCheckComparesLogAndSource"},
	{"R2", "a lease without a generation is one", []edit{{fence, "if c.Generation <= 0 {", "if false {"}}, "epoch", "TestClaimedRefusesAndLeavesTheFence"},
	{"R2", "a swap does not compare what was seen", []edit{
		{fences, "if f.Epoch != seen.Epoch || f.Claim != seen.Claim {", "if false {"},
	}, "consumer", "TestR2AClaimFrozenAfterItsConfirmationDoesNotThrowOutTheNextOwner"},
	{"R2", "a swap compares the epoch alone", []edit{
		{fences, "if f.Epoch != seen.Epoch || f.Claim != seen.Claim {", "if f.Epoch != seen.Epoch {"},
	}, "epoch", "TestClaimComparesWhatWasSeen"},
	{"R2", "a swap compares nothing in PostgreSQL", []edit{
		{fenceSQL, "if f.epoch <> seen_epoch or f.claim_id <> seen_claim then", "if false then"},
	}, "sinks/pgsink", onPostgres + "late claimer: a claim from a fence read before another claim is refused"},
	{"R2", "a swap compares nothing in SQLite", []edit{
		{"sinks/sqlsink/sink.go", "epoch.Fences{c.Partition: now}.Claim(seen, c)", "now.Claimed(c)"},
		{"sinks/sqlsink/queries.go", "key + ` AND epoch = ? AND claim_id = ?`", "key + ` AND (epoch = ? OR claim_id = ? OR 1)`"},
	}, "sinks/sqlsink", onSQLite + "late claimer: a claim from a fence read before another claim is refused"},

	{"R3", "PostgreSQL returns instead of raising", []edit{
		{fenceSQL, "            perform refuse(groups[i], topics[i], partitions[i], claims[i], froms[i], nonce);\n            if attempt = 2", "            return nonce;\n            if attempt = 2"},
	}, "sinks/pgsink", "TestTheCheckAtTheEndHoldsByItself"},
	{"R3", "a transaction that the handler has begun passes for the one that was entered", []edit{
		{fenceSQL, unlessEntered + "    if dirty then", "    if dirty then"},
	}, "sinks/pgsink", "TestTheServerKnowsATransactionThatTheHandlerHasBegun"},
	{"R3", "a transaction that the handler has begun passes for that of its one partition", []edit{
		{fenceSQL, "if not dirty and pg_current_xact_id()::text = coalesce(xid::text, current_setting('epochfence.transaction', true)) then", "if true then"},
	}, "sinks/pgsink", "TestTheServerKnowsATransactionThatTheHandlerHasBegun"},
	{"R3", "an answer of PostgreSQL is told by its place", []edit{
		{"sinks/pgsink/queue.go", "\tfor ; ; n++ {", "\tfor ; n < len(items)+2; n++ {"},
	}, "sinks/pgsink", "TestAnAnswerIsThatOfItsStatement"},
	{"R3", "SQLite's count of rows is not looked at", []edit{
		{"sinks/sqlsink/sink.go", "if n != 1 {", "if n < 0 {"},
	}, "sinks/sqlsink", onSQLite + "stale writer: whoever lost its claim commits nothing"},
	{"R3", "the position is judged before the claim", []edit{
		{fence, "\tif err := f.Holds(", "\tif f.Next != a.From {\n\t\treturn f, &MovedError{Partition: f.Partition, From: a.From, Next: f.Next}\n\t}\n\tif err := f.Holds("},
	}, "epoch", "TestAdvanced"},
	{"R3", "of several advances those before the refused one stay", []edit{
		{fences, "after := maps.Clone(fs)", "after := fs"},
	}, "epoch", "TestAdvanceIsAllOrNothingAndNamesTheFirstInKeyOrder"},
	{"R3", "a missing fence is taken for doubt", []edit{
		{verdicts, "verdict{action: halt, err: err}, missing.Partition", "verdict{action: claimAgain, err: err}, missing.Partition"},
	}, "consumer", "TestR9AFenceMissingAtTheCommitHaltsAtOnce"},

	{"R4", "the early look locks the fence", []edit{
		{fenceSQL, "    select min(a.position) into i\n", "    perform from fence f where f.claim_id = any (claims) for update;\n    select min(a.position) into i\n"},
	}, "sinks/pgsink", "TestTheCheckAtTheEndHoldsByItself"},
	{"R4", "no transaction of PostgreSQL is looked at early", []edit{
		{"sinks/pgsink/begin.go", "if !proven {", "if false {"},
	}, "sinks/pgsink", "TestAStaleTransactionIsRefusedBeforeItsHandlerRuns"},
	{"R4", "a proof of another claim spares the early look", []edit{
		{"sinks/pgsink/proofs.go", "is.claim != a.Claim || ", ""},
	}, "sinks/pgsink", "TestTheEarlyLookIsLeftOutOnlyAfterAProof"},
	{"R4", "a proof spares the early look for ever", []edit{
		{"sinks/pgsink/begin.go", "return time.Now().Before(t.proven)", "return time.Now().Before(t.proven.Add(time.Hour))"},
	}, "sinks/pgsink", "TestTheEarlyLookIsLeftOutOnlyAfterAProof"},
	{"R4", "every handler of PostgreSQL is called before its transaction has begun", []edit{
		{"sinks/pgsink/begin.go", "return t.isProven() && !t.sink", "return !t.sink"},
	}, "sinks/pgsink", "TestAStaleTransactionIsRefusedBeforeItsHandlerRuns"},
	{"R3", "a handler's first statement is sent before its transaction has begun", []edit{
		{"sinks/pgsink/tx.go", "switch r, err := t.begin(ctx, along(sql, args)...); {", "switch r, err := pgx.BatchResults(nil), error(nil); {"},
	}, "sinks/pgsink", "TestWhateverAHandlerSendsFirstIsOfTheFencedTransaction"},
	{"R4", "a transaction that was refused leaves the proof that it was begun with", []edit{
		{"sinks/pgsink/proofs.go", "\t\tdelete(p.left, a.Partition)\n", ""},
	}, "sinks/pgsink", "TestTheEarlyLookIsLeftOutOnlyAfterAProof"},
	{"R4", "partitions are applied in the order they became ready", []edit{
		{loops, "\tslices.SortFunc(ps, func(a, b *pending[TX]) int { return a.fence.Partition.Compare(b.fence.Partition) })\n", ""},
	}, "consumer", "TestR4PartitionsAreAppliedInKeyOrder"},
	{"R4", "advances go to PostgreSQL in the caller's order", []edit{
		{"sinks/pgsink/advances.go", "\tslices.SortStableFunc(s.list, func(a, b epoch.Advance) int { return a.Partition.Compare(b.Partition) })\n", ""},
	}, "sinks/pgsink", onPostgres + "of several partitions one is refused: nothing of any commits, and the first refused in key order is named"},
	{"R4", "advances go to SQLite in the caller's order", []edit{
		{"sinks/sqlsink/commit.go", "{ return a.Partition.Compare(b.Partition) })", "{ return 0 })"},
	}, "sinks/sqlsink", onSQLite + "of several partitions one is refused: nothing of any commits, and the first refused in key order is named"},

	{"R5", "a commit in doubt is a message's failure", []edit{
		{verdicts, "case errors.Is(err, epoch.ErrInDoubt):", "case errors.Is(err, epoch.ErrInDoubt) && false:"},
	}, "consumer", "TestR5AfterALostAcknowledgementThePartitionIsClaimedAgain"},
	{"R5", "in doubt, the old claim continues", []edit{
		{verdicts, "\tvs := each(tried, verdict{action: claimAgain, err: r.err})", "\tvs := each(tried, verdict{action: retry, err: r.err})"},
	}, "consumer", "TestR5ACommitStillInFlightCannotLandAfterTheNextClaim"},
	{"R5", "a position that moved is followed under the old claim, or halts", []edit{
		{verdicts, "verdict{action: claimAgain, err: err}, moved.Partition", "verdict{action: halt, err: err}, moved.Partition"},
	}, "consumer", "TestR5AMovedPositionIsClaimedAgainAndFollowed"},
	{"R5", "a transaction that could not begin is a message's failure", []edit{
		{verdicts, "case !r.called:", "case !r.called && false:"},
	}, "consumer", "TestR5ATransactionThatCouldNotBeginIsBlamedOnNoMessage"},
	{"R5", "reading starts where the fence was seen, not where it was claimed", []edit{
		{owning, "\to.adoptFence(got)\n", "\tgot.Next = seen.Next\n\to.adoptFence(got)\n"},
	}, "consumer", "TestR5ReadingStartsAtThePositionThatTheSwapReturned"},
	{"R5", "what was known of a message is taken for another's after a restore", []edit{
		{owning, "f.Next != o.fence.Next {", "f.Next > o.fence.Next {"},
		{bisects, "if first != b.first {", "if false {"},
		{owning, "\to.forget()\n\to.fence = err.Now", "\to.fence = err.Now"},
	}, "consumer", "TestAMessageGivenUpOnIsNotMistakenForAnotherAfterARestore"},
	{"R5", "a lost acknowledgement of PostgreSQL is a failure", []edit{
		{"sinks/pgsink/commit.go", "\tcase err != nil:\n\t\treturn inDoubt(ended(ctx, err))", "\tcase err != nil:\n\t\treturn ended(ctx, err)"},
	}, "sinks/pgsink", "TestALostAcknowledgement"},

	{"R5", "doubt in work beside the messages keeps the claim", []edit{
		{aside, "case errors.Is(err, epoch.ErrInDoubt):", "case false:"},
	}, "consumer", "TestBackgroundWorkInDoubtIsFollowedByANewClaim"},
	{"R5", "doubt beside a halted partition waits for the halt to end", []edit{
		{owning, "o.waitOr(o.whileClaimed(ctx), in, acted)", "o.waitOr(ctx, in, acted)"},
	}, "consumer", "TestDoubtBesideAHaltedPartitionIsFollowedByANewClaimAtOnce"},
	{"R5", "what ended a claim is met again after it is over", []edit{
		{owning, "if !o.claimValid || o.claim.broken() != nil {", "if !o.claimValid {"},
	}, "consumer", "TestAFenceMissingForBackgroundWorkHaltsUntilItIsBack"},
	{"R5", "what was known of a message is taken for another's after a deletion", []edit{
		{pendings, "\tp.bisect.meets(first)\n", ""},
	}, "consumer", "TestAMessageGivenUpOnIsNotMistakenForAnotherAfterItWasDeleted"},

	{"R5", "nobody looks at a partition that has nothing to commit", []edit{
		{idling, "\t\treturn c.next\n", "\t\treturn time.Now().Add(time.Hour)\n"},
	}, "consumer", "TestEffectsThatASinkLostComeBackThoughNoMessageComes/within two terms, by a look now and then"},
	{"R5", "a sink that says that its server may be another one is ignored", []edit{
		{idling, "replaced: l.run.shards.ReplacedIn(l.shard)", "replaced: nil"},
	}, "consumer", "TestEffectsThatASinkLostComeBackThoughNoMessageComes/at once, if the sink notices"},
	{"R5", "one fence that went back says nothing of the others", []edit{
		{owning, "\to.run.lookAtAll()\n", ""},
	}, "consumer", "TestWhereOneFenceWentBackTheOthersAreLookedAtAtOnce"},
	{"R5", "a look decides over a partition that commits meanwhile", []edit{
		{idling, "!c.loop.holds(p) || p.state != idle || p.fence != d.was", "!c.loop.holds(p)"},
	}, "consumer", "TestALookBesideATransactionDecidesNothing"},
	{"R5", "a look from before a claim decides over the partition", []edit{
		{idling, " || p.fence != d.was {", " {"},
	}, "consumer", "TestALookFromBeforeAClaimDoesNotSayThatTheSinkWentBack"},
	{"R5", "a standby, which lags behind, is believed", []edit{
		{fenceSQL, "if pg_is_in_recovery() then", "if false then"},
	}, "internal/e2e", "TestWhatAFailoverLostIsAppliedAgainThoughNoMessageComes"},
	{"R5", "the loss of a connection to PostgreSQL says nothing", []edit{
		{"sinks/pgsink/connection.go", "\t\t\t\ts.server.lost()\n", ""},
	}, "sinks/pgsink", "TestALostConnectionMayLeadToAnotherServerAndIsSaid"},

	{"R6", "a sink that went back is taken for a later claim", []edit{
		{nexts, "back := wentBack(ours, out.err); back != nil {", "back := wentBack(ours, out.err); back != nil && back.Now.Next < 0 {"},
	}, "consumer", "TestASinkThatWentBackIsSaidAsThatAndNotAsALaterClaim/a refusal under a lost claim"},
	{"R6", "a lower epoch is taken for a later claim", []edit{
		{"epoch/back.go", "case now.Epoch < f.Epoch, now.Epoch == f.Epoch && now.Claim != f.Claim, now.Next < f.Next:", "case now.Next < f.Next:"},
	}, "epoch", "TestStillTellsASinkThatWentBackFromALaterClaim"},
	{"R6", "one refusal ends the claims of all that shared the transaction", []edit{
		{verdicts, "but(each(tried, verdict{action: retry, err: err}), i, p.refused(tried[i], refused, len(tried) > 1))", "each(tried, refused)"},
	}, "consumer", "TestR6TheRefusalOfOnePartitionLeavesTheClaimsOfTheOthersAlone"},
	{"R6", "a refusal is the first partition's, whoever is named", []edit{
		{verdicts, "bool { return t.partition == whose })", "bool { return whose != t.partition || true })"},
	}, "consumer", "TestR6TheRefusalOfOnePartitionLeavesTheClaimsOfTheOthersAlone"},
	{"R6", "a lease known to be lost is asked for again", []edit{
		{owning, "errors.Is(err, ErrLost) {", "errors.Is(err, ErrLost) && false {"},
	}, "consumer", "TestR6ALeaseThatIsKnownToBeLostEndsTheTenure"},
	{"R6", "what was lost is reported as given back", []edit{
		{owning, "\tif ctx.Err() != nil {\n\t\to.leaseLost(", "\tif false {\n\t\to.leaseLost("},
	}, "consumer", "TestALostTenureIsNotReportedAsDrained"},

	{"R6", "a zombie's work beside the messages ends no claim", []edit{
		{aside, "\t\tb.end(outcome{action: v.action, above: v.above, err: err})\n", "\t\t_ = v\n"},
	}, "consumer", "TestAZombiesBackgroundWorkIsRefusedAndEndsItsClaim"},
	{"R6", "the next claim does not wait for the last one's work", []edit{
		{aside, "b.calls.close()", ""},
	}, "consumer", "TestTheNextClaimWaitsForTheWorkOfTheLastOne"},
	{"R6", "a tenure begins after Run has returned", []edit{
		{"consumer/gate.go", "if g.closed {", "if false {"},
	}, "consumer", "TestNothingBeginsAfterRun"},
	{"R6", "a partition is given back while work beside it continues", []edit{
		{aside, "\t<-b.returned\n", ""},
	}, "consumer", "TestThePartitionIsNotGivenBackBeforeTheBackgroundWorkHasReturned"},
	{"R6", "work is begun after the partition was revoked", []edit{
		{aside, "\tif b.ended() || !b.calls.enter() {", "\tif !b.calls.enter() {"},
		{aside, "if b.ended() {", "if false {"},
		{aside, "context.AfterFunc(b.ctx, func() { abort(errClaimEnded) })()", "context.AfterFunc(context.Background(), func() { abort(errClaimEnded) })()"},
		{aside, "\t\tcase <-b.ctx.Done():\n", "\t\tcase <-context.Background().Done():\n"},
	}, "consumer", "TestDoIsRefusedFromTheMomentThePartitionIsAskedBack"},

	{"R7", "a yes counts although the tenure ended meanwhile", []edit{
		{kafka + "/confirm.go", "over := t.err(); over != nil {", "over := t.err(); over != nil && false {"},
		{kafka + "/commits.go", "\tcase <-t.WhenLost():\n\t\treturn 0, t.Lost()\n", ""},
	}, kafka, "TestR7AYesToATenureThatEndedMeanwhileIsANo"},
	{"R7", "a new member confirms what the old one was granted", []edit{
		{kafka + "/commits.go", "case member != one.t.member:", "case false:"},
	}, kafka, "TestR7ANewMemberDoesNotConfirmWhatTheOldOneWasGranted"},
	{"R7", "a tenure does not wait for the one before the last", []edit{
		{tenures, "if s.previous == nil {\n\t\tclose(s.clear)", "if true {\n\t\tclose(s.clear)"},
	}, kafka, "TestR7OwnIsNotCalledBesideThatOfTheTenureBeforeTheLast"},
	{"R7", "a halt makes a new claim", []edit{
		{owning, "if ours, err := o.stillOurs(revoked); err != nil || ours {", "if ours, err := false, error(nil); err != nil || ours {"},
	}, "consumer", "TestAHaltKeepsTheClaim"},
	{"R7", "the loss of one partition costs the others their claims", []edit{
		{verdicts, "case lost:", "case lost && false:"},
	}, "consumer", "TestAPartitionLostWhileWaitingForAConnectionCostsNoOtherItsClaim"},

	{"R8", "the policy's position replaces the fence's", []edit{
		{takeover, "errors.Is(err, ErrMissing) && c.Missing", "c.Missing"},
		{"consumer/seeding.go", "\t\tif _, err := r.sink.Fence(ctx, p); !errors.Is(err, epoch.ErrMissing) {\n\t\t\treturn err\n\t\t}\n", ""},
		{fences, "\t\tif _, ok := fs[s.Partition]; ok {\n\t\t\tcontinue\n\t\t}\n", ""},
	}, "consumer", "TestR8ThePositionOfTheSinkIsTheTruth"},
	{"R8", "what the group had committed is not adopted", []edit{{claiming, "claim.Adopt, claim.Above = adopt, above", "_, claim.Above = adopt, above"}}, "consumer", "TestAPartitionWithoutAFenceStartsAsThePolicySays"},
	{"R8", "what the group had committed is read back at every claim", []edit{
		{claiming, "seen.Epoch > 0 || r.Start", "r.Start"},
		{fence, "\t\tif f.Epoch > 0 {", "\t\tif false {"},
	}, "consumer", "TestR8ThePositionOfTheSinkIsTheTruth"},
	{"R8", "any claim may adopt a position", []edit{{fence, "\t\tif f.Epoch > 0 {", "\t\tif false {"}}, "epoch", "TestClaimedAdoptsAPositionOnce"},
	{"R8", "any claim may adopt a position in PostgreSQL", []edit{
		{fenceSQL, "adopt_offset is not null and f.epoch > 0", "false"},
	}, "sinks/pgsink", onPostgres + "the first claim of a fence may adopt a position, and no other"},
	{"R8", "a position below what others had committed is committed to Kafka", []edit{
		{positions, "at.Epoch > 0 && at.Next >= *p.theirs", "at.Epoch > 0"},
	}, kafka, onKafka + "a position that the group had committed through others is not taken back before ours has passed it"},
	{"R8", "the position of a Kafka partition that was not claimed takes the place of the group's", []edit{
		{positions, "at.Epoch > 0 && at.Next >= *p.theirs", "at.Next >= *p.theirs"},
	}, kafka, onKafka + "a position that the group had committed through others is not taken back before ours has passed it"},
	{"R8", "the position of a claim is not mirrored", []edit{{owning, "o.tenure.Mirror(got)", ""}}, "consumer", "TestR8ThePositionThatTheSwapReturnedIsMirrored"},
	{"R8", "the position of an advance is not mirrored", []edit{
		{loops, "\tp.tenure.Mirror(p.fence)\n", ""},
	}, "consumer", "TestStopDrainsCommitsTheTransactionUnderWayAndReturnsNil"},

	{"R9", "a partition that was added begins where the policy says", []edit{{fences, "\t\tif known {", "\t\tif false {"}}, "consumer", "TestR9APartitionAddedLaterLosesNoMessages"},
	{"R9", "each partition gets its fence when it is first claimed", []edit{
		{"consumer/seeding.go", "r.sink.Seed(ctx, starts)", "r.sink.Seed(ctx, starts[t.Origin().Partition.Number:][:1])"},
	}, "consumer", "TestR9APartitionClaimedLaterStartsWhereItWasWhenTheGroupBegan"},
	{"R9", "a Kafka partition of which nothing was applied is passed by", []edit{
		{kafka + "/read.go", "if from.Applied || !errors.As", "if true || !errors.As"},
	}, kafka, onKafka + "a partition of which nothing was applied begins where its log begins by then"},
	{"R9", "a fence does not say whether anything was applied", []edit{
		{fence, "f.Mark, f.Applied = a.Mark, true", "f.Mark = a.Mark"},
	}, "epoch", "TestAdvanced"},
	{"R9", "a fence that vanished under its owner is made again", []edit{
		{claiming, "if !known {", "if true {"},
	}, "consumer", "TestR9AFenceMissingWhileInDoubtIsNotMadeAgain"},
	{"R9", "a seed overwrites the fence that exists", []edit{
		{fences, "\t\tif _, ok := fs[s.Partition]; ok {\n\t\t\tcontinue\n\t\t}\n", ""},
	}, "epoch", "TestSeedLeavesAFenceThatExists"},
	{"R9", "a partition is added while another one is of another log", []edit{
		{fences, "ok && added && f.Log != s.Log", "ok && added && false"},
	}, "epoch", "TestSeedAddsNothingWhileAFenceIsOfAnotherLog"},
	{"R9", "PostgreSQL adds a partition while another one is of another log", []edit{
		{fenceSQL, "        where f.log_id <> s.log\n", "        where false\n"},
	}, "sinks/pgsink", onPostgres + "no partition is added while another of the topic is of another log than its start"},
	{"R9", "seeds of PostgreSQL do not ask whether the topic is known", []edit{
		{fenceSQL, "case when known then s.earliest else s.next end", "s.next"},
	}, "sinks/pgsink", onPostgres + "a new partition of a known topic begins at the earliest message"},
	{"R9", "a seed of PostgreSQL overwrites the fence that exists", []edit{
		{fenceSQL, "    insert into fence (group_name", "    delete from fence f where f.group_name = in_group and f.topic = in_topic and f.partition = any (partitions);\n    insert into fence (group_name"},
	}, "sinks/pgsink", onPostgres + "seeding leaves a fence that exists as it is"},
	{"R9", "seeds of PostgreSQL do not wait for each other", []edit{
		{fenceSQL, "    perform pg_advisory_xact_lock(hashtextextended(in_group, hashtextextended(in_topic, 0)));\n", ""},
	}, "sinks/pgsink", "TestConcurrentSeedsOfOneTopicComeOneAfterTheOther"},
	{"R9", "seeds of SQLite do not ask whether the topic is known", []edit{
		{"sinks/sqlsink/sink.go", "after := maps.Clone(known)", "after := maps.Clone(epoch.Fences{})"},
	}, "sinks/sqlsink", onSQLite + "a new partition of a known topic begins at the earliest message"},

	{"R10", "an offset below the position is applied again", []edit{
		{batches, "if m.Offset < next {", "if false {"},
	}, "consumer", "TestR10AnOffsetBelowThePositionThatComesAgainHalts"},
	{"R10", "only the first offset of a batch is looked at", []edit{
		{batches, "\t\tnext = m.Offset + 1\n", "\t\tnext = 0\n"},
	}, "consumer", "TestR10AnOffsetThatComesTwiceInOneBatchHalts"},
	{"R10", "an advance begins at its first message, not at the fence", []edit{
		{transact, "From: p.fence.Next,", "From: p.batch.Messages[0].Offset,"},
	}, "consumer", "TestR10AGapThatTheSourceExplainsIsPassedOver"},
	{"R10", "a batch without messages reaches a handler", []edit{
		{transact, "case len(p.messages) == 0:", "case false:"},
	}, "consumer", "TestABatchWithoutMessagesMovesThePositionAndReachesNoHandler/all at once"},
	{"R10", "a batch without messages is somebody's fault", []edit{
		{verdicts, "case t.messages == 0 && alone:", "case false:"},
	}, "consumer", "TestABatchWithoutMessagesIsNobodysFault"},
	{"R10", "the mark is not recorded", []edit{
		{transact, "Mark: to.Mark}", "Mark: epoch.NoMark}"},
	}, "consumer", "TestR10ALogRewrittenBelowThePositionIsRecognisedByItsMark"},
	{"R10", "the mark is not handed to the read", []edit{
		{owning, "o.tenure.Read(o.claim, from)", "o.tenure.Read(o.claim, epoch.Fence{Origin: from.Origin, Next: from.Next, Mark: epoch.NoMark})"},
	}, "consumer", "TestR10ALogRewrittenBelowThePositionIsRecognisedByItsMark"},
	{"R10", "a read that failed is doubt", []edit{
		{owning, "return outcome{action: halt, err: &sourceError{err}}", "return outcome{action: claimAgain, err: err}"},
	}, "consumer", "TestR10ALogThatNoLongerHoldsThePositionHaltsWithBothNumbers"},
	{"R10", "an offset that Kafka sends again is passed on", []edit{{kafka + "/feed.go", "if r.Offset < f.next {", "if false {"}}, kafka, "TestAnOffsetThatComesAgainIsAnError"},
	{"R10", "retention may take what was not applied", []edit{
		{kafka + "/feed.go", "if r.Offset > f.next && p.LogStartOffset > f.next && !f.fresh {", "if false {"},
	}, kafka, "TestAGapBelowTheStartOfTheLogIsAnError"},
	{"R10", "a Kafka partition begins without a leader epoch", []edit{
		{kafka + "/starts.go", "Mark: epoch.Mark(o.LeaderEpoch)}", "Mark: epoch.NoMark}"},
	}, kafka, "TestStarts"},
	{"R10", "what a Kafka group had committed has no leader epoch unless it says so", []edit{
		{kafka + "/committed.go", "ok && c.leaderEpoch < 0", "false"},
	}, kafka, "TestWhatTheGroupHadCommittedCarriesALeaderEpoch"},
	{"R10", "Kafka is not told the leader epoch", []edit{
		{kafka + "/feed.go", "kgo.NewOffset().At(f.next).WithEpoch(f.epoch)", "kgo.NewOffset().At(f.next)"},
	}, kafka, "TestALogThatWasRewrittenBelowThePositionIsAnError"},

	{"R11", "silence is measured by the wall clock", []edit{
		{kafka + "/contact.go", "return time.Since(c.last)", "return time.Duration(time.Now().UnixNano() - c.last.UnixNano())"},
	}, "internal/mutation", "TestR11NothingComparesWallClocks"},
	{"R11", "a fence that was advanced lately cannot be claimed", []edit{
		{fenceSQL, "if f.epoch <> seen_epoch or f.claim_id <> seen_claim then", "if f.epoch <> seen_epoch or f.claim_id <> seen_claim or f.advanced_at > clock_timestamp() - interval '1 s' then"},
	}, "internal/mutation", "TestR11NothingComparesWallClocks"},

	{"R12", "a transaction of PostgreSQL may be idle for ever", []edit{
		{"sinks/pgsink/sink.go", "set_config('idle_in_transaction_session_timeout', $2", "set_config('epochfence.idle', $2"},
	}, "sinks/pgsink", "TestEveryTransactionIsBoundedOnTheServer"},
	{"R12", "a statement of PostgreSQL may run for ever", []edit{
		{"sinks/pgsink/sink.go", "set_config('statement_timeout', $1", "set_config('epochfence.statement', $1"},
	}, "sinks/pgsink", "TestEveryTransactionIsBoundedOnTheServer"},
	{"R12", "a wait for a lock outlasts the time of its transaction", []edit{
		{"sinks/pgsink/options.go", "min(o.LockTimeout, min(statementLimit, left)/10*9)", "o.LockTimeout"},
	}, "sinks/pgsink", "TestEveryTransactionIsBoundedOnTheServer"},
	{"R12", "a claim waits for the fence's row for ever", []edit{
		{fenceSQL, "    perform set_config('lock_timeout', lock_timeout_ms::text, true);\n    select * into f from fence\n", "    select * into f from fence\n"},
	}, "sinks/pgsink", "TestAClaimThatCannotHaveTheFenceSaysSoInTime"},
	{"R12", "a claim ends no transaction before its swap", []edit{
		{"sinks/pgsink/claim.go", "\t\ts.evict(ctx, b.seen.Claim)\n\t\tif f, err", "\t\tif f, err"},
	}, "sinks/pgsink", "TestAnOwnerFrozenBetweenAdvanceAndCommitDelaysTheNextByMilliseconds"},
	{"R12", "a claim ends no transaction after its swap", []edit{
		{"sinks/pgsink/claim.go", "\ts.evict(ctx, b.seen.Claim)\n\treturn f, nil", "\treturn f, nil"},
	}, "sinks/pgsink", "TestATransactionThatBeganWhileTheClaimWaitedIsEndedToo"},
	{"R12", "claims of several partitions end no transactions before their swaps", []edit{
		{"sinks/pgsink/claim.go", "\ts.evict(ctx, replaced...)\n\tfs, err", "\tfs, err"},
	}, "sinks/pgsink", "TestClaimsThatComeTogetherEndTheTransactionsOfThoseTheyReplace"},
	{"R12", "a claim among others waits for a fence's row as long as one by itself", []edit{
		{"sinks/pgsink/claim.go", "min(manyLockWait, s.options.ClaimTimeout/claimTries)", "s.options.ClaimTimeout/claimTries"},
	}, "sinks/pgsink", "TestAFenceThatIsLockedDelaysNoOtherClaimForLong"},
	{"R2", "a claim that is refused refuses those it was made with", []edit{
		{"sinks/pgsink/claim.go", "\t\treturn nil, errEach\n", "\t\treturn nil, err\n"},
	}, "sinks/pgsink", "TestAClaimThatIsRefusedAmongOthersIsRefusedAlone"},
	{"R12", "an attempt to claim may last for ever", []edit{
		{"consumer/claim.go", "context.WithTimeout(ctx, s.limit)\n\tdefer done()\n\treturn s.Sink.Fence", "context.WithCancel(ctx)\n\tdefer done()\n\treturn s.Sink.Fence"},
	}, "consumer", "TestR12AnAttemptToClaimIsBoundedInTime"},
	{"R12", "the wait for SQLite's write lock is not bounded", []edit{
		{"internal/sql/sqltx/db.go", "context.WithTimeout(ctx, b.limits.Wait)", "context.WithCancel(ctx)"},
	}, "sinks/sqlsink", "TestAWaitForTheWriteLockIsBoundedAndSaysSo"},
	{"R12", "a busy process has SQLite's write lock all the time", []edit{
		{"internal/sql/sqltx/tx.go", "\t\tt.b.queue.Turn(ctx)\n", ""},
	}, "sinks/sqlsink", "TestABusyProcessLetsThoseWhoWaitForTheWriteLockGoFirst"},
	{"R12", "who waits for SQLite's write lock waits in the driver, and no other process knows", []edit{
		{"internal/sql/sqltx/tx.go", "if t.wait, err = t.b.d.Unwait(ctx, conn); err != nil {", "if false {"},
	}, "sinks/sqlsink", "TestABusyProcessLetsThoseWhoWaitForTheWriteLockGoFirst"},
	{"R12", "a handler's statements wait for no lock of SQLite's, whatever busy_timeout is", []edit{
		{"internal/sql/sqltx/tx.go", "\t\treturn t.restore()\n", "\t\treturn nil\n"},
	}, "sinks/sqlsink", "TestABusyProcessLetsThoseWhoWaitForTheWriteLockGoFirst"},
	{"R12", "who waits for SQLite's write lock gets it by luck", []edit{
		{"internal/sql/sqltx/tx.go", "if t.turn || t.b.queue == nil {", "if true {"},
	}, "sinks/sqlsink", "TestWhoWaitsForTheWriteLockInOneProcessGetsItInTurn"},

	{"R13", "a transaction may be given more time than the lease has", []edit{
		{running, "r.BatchTimeout > most {", "r.BatchTimeout > most && false {"},
	}, "consumer", "TestR13BatchTimeoutMustBeShorterThanTheLease"},
	{"R13", "a transaction has no deadline", []edit{
		{transact, "context.WithTimeoutCause(ctx, t.timeout, errTimeout)", "context.WithTimeoutCause(ctx, 1000*time.Hour, errTimeout)"},
	}, "consumer", "TestR13TransactionsThatTakeTooLongAreCutOffAndMadeSmaller"},
	{"R13", "the loss of a partition does not abort its transaction", []edit{
		{transact, "cancel(context.Cause(p.lost))\n\t\t\tif errors.Is", "if errors.Is"},
	}, "consumer", "TestALostPartitionAbortsItsTransactionAtOnce"},
	{"R13", "messages are handled after the context has ended", []edit{
		{transact, "err != nil && i > 0 {", "err != nil && i < 0 {"},
	}, "consumer", "TestR13NoMessageIsHandledAfterTheTransactionsContextHasEnded"},
	{"R13", "work beside the messages has no deadline", []edit{
		{aside, "context.WithTimeoutCause(epoch.WithAbandonment(b.owner.loop.base, abandoned), timeout, errTimeout)", "context.WithTimeoutCause(epoch.WithAbandonment(b.owner.loop.base, abandoned), 1000*timeout, errTimeout)"},
	}, "consumer", "TestBackgroundWorkIsBoundedInTime"},
	{"blame", "work that is added takes the place of what was there", []edit{
		{"consumer/handlers.go", "append(slices.Clip(h.background), work)", "append(h.background[:0:0], work)"},
	}, "consumer", "TestEachBackgroundWorkIsDone"},
	{"R13", "heartbeats may be as rare as the lease is long", []edit{
		{kafka + "/lease.go", "if l.heartbeat > l.session/3 {", "if false {"},
	}, kafka, "TestOptionsThatAreWrongAreRefusedWithTheReason/slow heartbeat"},
	{"R13", "a silent member continues beyond its session", []edit{
		{kafka + "/lease.go", "return l.patience() * 9 / 10", "return l.patience() * 12 / 10"},
	}, kafka, "TestATenureIsLostBeforeTheSessionOfASilentMemberExpires"},
	{"R13", "a silent member continues beyond a rebalance", []edit{
		{kafka + "/lease.go", "return min(l.session, l.rebalance)", "return l.session"},
	}, kafka, "TestATenureIsLostBeforeARebalanceGoesOnWithoutASilentMember"},
	{"R13", "a tenure that is being drained continues beyond the session", []edit{
		{kafka + "/membership.go", "if sl.live() {", "if sl.held && sl.live() {"},
	}, kafka, "TestATenureThatIsBeingDrainedIsLostWithContact"},
	{"R13", "an answer to another request prolongs the session", []edit{
		{kafka + "/membership.go", "alive = s.contact.answered()", "alive = time.Now()"},
	}, kafka, "TestAYesToAnotherRequestThanAHeartbeatDoesNotProlongTheSession"},
	{"R13", "an assignment that comes after its session has ended begins a tenure", []edit{
		{kafka + "/membership.go", "if s.contact.overdue() || !s.grantInContact(member) {", "if !s.grantInContact(member) {"},
		{kafka + "/membership.go", "if s.contact.isLost() {", "if false {"},
	}, kafka, "TestAnAssignmentThatComesAfterTheSessionHasEndedBeginsNoTenure"},
	{"R13", "an assignment waits for a timer to say that contact is lost", []edit{
		{kafka + "/membership.go", "if s.contact.overdue() || !s.grantInContact(member) {", "if !s.grantInContact(member) {"},
	}, kafka, "TestAnAssignmentThatFindsContactOverdueBeforeTheTimerBeginsNoTenure"},
	{"R13", "an assignment takes the newest answer for a yes", []edit{
		{kafka + "/contact.go", "sent := c.synced", "sent := c.pending"},
	}, kafka, "TestAnAnswerThatMayHaveBeenANoDoesNotBringContactBack"},
	{"R13", "a drain may overrun", []edit{
		{tenures, "s.Lose(consumer.ErrDrainOverrun)", "_ = consumer.ErrDrainOverrun"},
	}, kafka, "TestADrainThatOverrunsIsCancelledAndTheGroupGoesOn"},

	{"blame", "a transaction that does not fit is tried again as large as it was", []edit{
		{"consumer/verdict.go", "case errors.Is(r.err, epoch.ErrTooLarge) && !alone:", "case false:"},
	}, "consumer", "TestJudgeSaysWhatATransactionsAnswerMeansForEachPartition"},
	{"blame", "transactions stay as large as those that did not fit", []edit{
		{"consumer/loop.go", "l.sizing.tooLarge(t.messages(), r.took)", ""},
	}, "consumer", "TestASinkOfFiveMethodsIsEnough"},
	{"blame", "a transaction has more messages than the sink can hold", []edit{
		{"consumer/run.go", "o.MaxBatch = min(o.MaxBatch, bounds.Messages)", "_ = bounds"},
	}, "consumer", "TestASinkOfFiveMethodsIsEnough"},
	{"R1", "an epoch that a store has seen is not claimed above", []edit{
		{"consumer/verdict.go", "return verdict{action: claimAbove, above: low.Seen, err: err}, low.Partition", "return verdict{action: claimAgain, err: err}, low.Partition"},
	}, "consumer", "TestJudgeSaysWhatATransactionsAnswerMeansForEachPartition"},
	{"blame", "a failure among other partitions' messages counts", []edit{
		{verdicts, "case t.messages > 1 || shared:", "case t.messages > 1:"},
	}, "consumer", "TestWhatFailsInASharedTransactionIsTriedAloneBeforeItIsBlamed/an error"},
	{"blame", "a timeout among other partitions' messages counts", []edit{
		{verdicts, "case t.messages > 1 || shared:", "case t.messages > 1:"},
		{verdicts, "case r.timedOut && !alone:", "case r.timedOut && t.messages > 1:"},
	}, "consumer", "TestWhatFailsInASharedTransactionIsTriedAloneBeforeItIsBlamed/a timeout"},
	{"blame", "a handler is told that its message's context has ended, and not why its transaction has", []edit{
		{"consumer/values.go", "context.WithoutCancel(m.Context)", "m.Context"},
	}, "consumer", "TestAHandlerIsToldWhyItsTransactionEndsAndNotItsMessage"},
	{"blame", "a message is blamed for its wait for locks", []edit{
		{"sinks/pgsink/lockwait.go", "w.found = w.found || waits", "w.found = w.found"},
	}, "sinks/pgsink", "TestAWaitForALockThatIsNotTheFirstIsTransientToo"},
	{"blame", "a wait for a lock is not found on a server that answers late", []edit{
		{"sinks/pgsink/lockwait.go", "WithTimeout(ctx, lookTimeout)", "WithTimeout(ctx, w.every+0*lookTimeout)"},
	}, "sinks/pgsink", "TestAWaitIsFoundByAServerThatAnswersLateToo"},
	{"blame", "a message is blamed for a timeout although the server did not answer whether it waited", []edit{
		{"sinks/pgsink/lockwait.go", "case !known:", "case !known && false:"},
	}, "sinks/pgsink", "TestATimeoutOnAServerThatDoesNotAnswerIsTransient"},
	{"blame", "a message is blamed for a timeout of a process that did not run", []edit{
		{"sinks/pgsink/lockwait.go", " || end.Sub(w.due) > w.every && w.canAsk()", ""},
	}, "sinks/pgsink", "TestALookThatWasDueAndNotBegunLeavesItUnknownWhetherATransactionWaited"},
	{"blame", "a slow message is never at fault where the pool has no connection to ask the server over", []edit{
		{"sinks/pgsink/lockwait.go", "pool.AcquiredConns() < pool.MaxConns()", "pool.AcquiredConns() <= pool.MaxConns()"},
	}, "sinks/pgsink", "TestATimeoutOnAServerThatDoesNotAnswerIsTransient"},
	{"blame", "a message is blamed for an unhealthy database", []edit{
		{verdicts, "case errors.Is(r.err, epoch.ErrUnhealthy) && !permanent && t.failed == nil:", "case false:"},
	}, "consumer", "TestAnUnhealthyDatabaseHaltsThePartitionAndCostsNoMessage/a statement/refused"},
	{"blame", "a message is blamed for an unhealthy database that leaves it in doubt", []edit{
		{verdicts, "case unhealthy && alone:", "case false:"},
	}, "consumer", "TestAnUnhealthyDatabaseHaltsThePartitionAndCostsNoMessage/a statement/in doubt"},
	{"blame", "a connection that is lost in OnFailure is its fault at once", []edit{
		{verdicts, "if t.failed != nil && t.attempts+1 < p.maxAttempts {", "if false {"},
	}, "consumer", "TestOnFailureThatLosesItsConnectionIsCalledAgainUnderAnotherClaim"},
	{"blame", "one that is lost in OnFailure each time is nobody's fault", []edit{
		{verdicts, "if t.failed != nil && t.attempts+1 < p.maxAttempts {", "if t.failed != nil {"},
	}, "consumer", "TestOnFailureThatLosesItsConnectionIsCalledAgainUnderAnotherClaim"},
	{"blame", "a transaction that was refused for its size is tried again as large", []edit{
		{loops, "l.sizing.refused(t.messages(), r.took)", "_ = r.took"},
	}, "consumer", "TestWhatIsRefusedForItsSizeIsAppliedInSmallerTransactions/in passing/3 fit/3 partitions"},
	{"blame", "transactions grow again before the loss is earned", []edit{
		{sizes, "case took < timeout/16 && s.owed == 0 && messages > s.room/2:", "case took < timeout/16 && messages > s.room/2:"},
	}, "consumer", "TestSizingLosesLittleTimeOverTransactionsThatAreTooLarge"},
	{"blame", "the room of a transaction is left to partitions that have no use for it", []edit{
		{sizes, "min(ready[i], room/(len(ready)-n))", "min(ready[i], room/(len(ready)-0*n))"},
	}, "consumer", "TestARoomIsSharedWithoutLeavingAnyOfItToNobody"},
	{"blame", "a message that waits for a lock continues in the others' transactions", []edit{
		{bisects, "if !b.active() && b.refusals < 2 {", "if !b.active() {"},
	}, "consumer", "TestAMessageThatIsRefusedAloneDoesNotHoldUpTheOthers"},
	{"blame", "a standstill is not said", []edit{
		{reports, "\t\tp.tellStandstill(v.err, took, in)\n", ""},
	}, "consumer", "TestAMessageThatIsRefusedAloneDoesNotHoldUpTheOthers"},
	{"blame", "a partition that does not move is said to continue whenever it is claimed again", []edit{
		{reports, "o.halted = o.halted && o.still.said", "o.halted = false"},
	}, "consumer", "TestAPartitionThatIsInDoubtAgainAndAgainStaysHalted"},
	{"blame", "a halt whose reason changes keeps the first one in the audit log", []edit{
		{reports, "p.halted && reason != p.recorded {", "p.halted && p.recorded == ReasonNone {"},
	}, "consumer", "TestAHaltIsRecordedAgainWithEachNewReason"},
	{"blame", "a partition that is claimed again and does not move looks well in the audit log", []edit{
		{reports, "\t\tp.recordHalt(err)\n\t\treturn\n", "\t\treturn\n"},
	}, "consumer", "TestAPartitionThatIsInDoubtAgainAndAgainStaysHalted"},
	{"blame", "a transaction that others wait for waits for locks as long as any", []edit{
		{"sinks/pgsink/options.go", "\t\twait = min(wait, asked)\n", "\t\t_ = asked\n"},
	}, "sinks/pgsink", "TestEveryTransactionIsBoundedOnTheServer"},
	{"blame", "an error of another database is this one's", []edit{
		{"sinks/pgsink/tx.go", "for _, f := range t.blameless {", "var some *pgconn.PgError\n\tif errors.As(err, &some) {\n\t\treturn blameless(some)\n\t}\n\tfor _, f := range t.blameless {"},
	}, "sinks/pgsink", "TestAnErrorOfAnotherDatabaseIsTheHandlers"},
	{"blame", "a message is blamed for what aborted its transaction", []edit{
		{"sinks/pgsink/tx.go", "\t\treturn t.last.as\n", "\t\treturn nil\n"},
	}, "sinks/pgsink", "TestWhatAbortedATransactionIsBlamedForIt"},
	{"blame", "what a handler raises is the fence's word", []edit{
		{"sinks/pgsink/errors.go", "|| pg.Hint != nonce {", "|| nonce == \"\" {"},
	}, "sinks/pgsink", "TestAHandlersOwnSQLSTATEIsNotTheSinks"},
	{"blame", "a session that a handler has changed goes back to the pool", []edit{
		{"sinks/pgsink/commit.go", "if t.session.has(lasting|deallocates) && !t.conn.IsClosed() {", "if false {"},
	}, "sinks/pgsink", "TestWhatAHandlerDoesToItsSessionStaysInItsTransaction"},
	{"blame", "a message is blamed for a freeze", []edit{
		{verdicts, "case r.froze > 0 && !permanent:", "case false:"},
	}, "consumer", "TestAfterAThawNobodyIsBlamed"},
	{"blame", "a handler is blamed for a freeze", []edit{
		{"consumer/awake.go", "step: max(d/awakeTicks, 1), then: then, last: time.Now(), left: awakeTicks}", "step: d, then: then, last: time.Now(), left: 1}"},
	}, "consumer", "TestAfterAThawNobodyIsBlamed"},
	{"blame", "attempts add up over messages", []edit{
		{bisects, "b.attempts = 0\n\tb.refusals = 0\n", "b.refusals = 0\n"},
	}, "consumer", "TestAttemptsAreCountedForEachMessageAnew"},
	{"blame", "the wait of a halt never gets short again", []edit{
		{owning, "\t\to.halts.Reset()\n", ""},
	}, "consumer", "TestProgressMakesTheWaitOfTheNextHaltShortAgain"},
	{"blame", "work that commits by itself is let loose again", []edit{
		{aside, "b.owner.run.endedTx(b.hold.Partition, err)", ""},
	}, "consumer", "TestWorkThatCommitsByItselfBesideADoubtHaltsThePartitionUntilARestart"},
	{"blame", "a handler's fenced store speaks for this one", []edit{
		{aside, "return &maskedError{r.handler}", "return r.handler"},
	}, "consumer", "TestAFailureOfBackgroundWorkIsTheWorksOwn"},
	{"blame", "a sink may give less than is asked for", []edit{
		{"consumer/handlers.go", "given < o.Guarantee {", "false {"},
	}, "consumer", "TestMoreThanTheSinkGivesIsRefusedAtTheStart"},
	{"blame", "a transaction spans partitions where the sink's cannot", []edit{
		{loops, "most = min(most, bound)", "_ = bound"},
	}, "consumer", "TestPartitionsShareNoTransactionOfASinkThatIsNotTransactional"},
	{"blame", "one committer has all partitions", []edit{
		{running, "return r.pins[a] - r.pins[b] })", "return 0 })"},
	}, "consumer", "TestPartitionsAreSpreadOverTheCommitters"},
}
