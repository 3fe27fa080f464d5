package mutation

import "slices"

var guards = slices.Concat(guardsOfFences, guardsOfConsumer, guardsOfLeases, guardsOfOutside)

// Each entry of these tables is one place where a rule of the protocol (docs/guarantees.md#the-rules)
// is kept. A place has one entry, for the strongest guard there. Code that no rule is about has none:
// its suites notice what it does wrong. An entry is written like this:
//
//	{"R1", "the position is not compared", []edit{
//		{"epoch/fence.go", "if f.Next != a.From {", "if false {"},
//	}, "epoch", "TestAdvanced"},
//
// It consists of the rule, the module's behaviour without the guard, the edits that take the guard
// away, and the package and name of a test that then fails. Of several such tests, take the fastest.
//
//   - The file must have the tokens of an edit's old text, in this order, exactly once. Comments
//     and white space do not count, neither in the file nor in the text, so guards contain no
//     comments. A text that is only a part of a string literal is found in that literal, byte by
//     byte.
//   - The new text replaces the range from the first of those tokens to the last. The function must
//     still compile: use false instead of a condition, or _ = x for an otherwise unused variable.
//   - All edits of a guard are found in the original files, and do not overlap.
//   - An edit is in the body of a function that does not call recover itself, or in an SQL script.
//
// Afterwards run make mutation WITHOUT='"the position is not compared"' to see that the test
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
	fence      = "epoch/fence.go"
	fences     = "epoch/fences.go"
	fenceSQL   = "internal/sql/pgschema/migrations/0001_fence.sql"
	onPostgres = "TestSuite/cache_statement/queries/"
	onSQLite   = "TestSuite/"
)

// Where epochs, claims and positions are compared: package epoch, and each sink.
var guardsOfFences = []guard{
	{"R1", "the claim is not compared", []edit{
		{"epoch/claim.go", "if f.Claim != h.Claim || h.Claim == (ClaimID{}) {", "if h.Claim == (ClaimID{}) {"},
	}, "epoch", "TestAdvanced"},
	{"R1", "the position is not compared", []edit{{fence, "if f.Next != a.From {", "if false {"}}, "epoch", "TestAdvanced"},
	{"R1", "a claim id may be used again", []edit{{fence, "if c.ID == (ClaimID{}) || c.ID == f.Claim {", "if false {"}}, "epoch", "TestClaimedRefusesAndLeavesTheFence"},
	{"R1", "the epoch is the lease's generation, also where that repeats", []edit{
		{fence, "f.Epoch = last + 1", "f.Epoch = Epoch(c.Generation)"},
	}, "epoch", "TestClaimedGivesTheLeasesGenerationOrTheNextEpoch"},
	{"R1", "a claim starts at an epoch that another system has seen", []edit{
		{fence, "max(f.Epoch, c.Above, Epoch(c.Generation-1))", "max(f.Epoch, Epoch(c.Generation-1))"},
	}, "epoch", "TestClaimedGivesAnEpochAboveTheOneThatTheClaimNames"},
	{"R1", "a claim-only transaction accepts any claim", []edit{
		{"epoch/claim.go", "\treturn f.Holds(h)\n", "\th.Claim = f.Claim\n\treturn f.Holds(h)\n"},
	}, "sinks/memsink", "TestSuite/a held claim that another one has replaced is stale, and so is none"},
	{"R1", "an operator action leaves the claim as it is, and races its owner", []edit{{"operate/act.go", "\tf.Claim = a.Claim\n", ""}},
		"sinks/memsink", "TestSuiteOperated/a live owner is fenced by an act, claims again, and continues from where it was told"},
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
	{"R1", "a claim-only transaction compares no claim in PostgreSQL", []edit{
		{fenceSQL, "    perform refuse(in_group, in_topic, in_partition, in_claim, null, nonce);\n", ""},
	}, "sinks/pgsink", "TestTheCheckOfAHeldClaimHoldsByItself"},
	{"R1", "an operator action leaves the claim as it is in PostgreSQL", []edit{{"internal/sql/pgschema/migrations/0003_operate.sql", "set epoch = t.epoch + 1, claim_id = new_claim,", "set epoch = t.epoch + 1,"}},
		"sinks/pgsink", "TestSuite/cache_statement/queries, operated/a live owner is fenced by an act, claims again, and continues from where it was told"},
	{"R1", "the claim is not compared in SQLite", []edit{
		{"sinks/sqlsink/dialect.go", "` AND claim_id = ? AND next_offset = ?`", "` AND (claim_id = ? OR 1) AND next_offset = ?`"},
	}, "sinks/sqlsink", onSQLite + "stale writer: whoever lost its claim commits nothing"},
	{"R1", "the position is not compared in SQLite", []edit{
		{"sinks/sqlsink/dialect.go", "` AND claim_id = ? AND next_offset = ?`", "` AND claim_id = ? AND (next_offset = ? OR 1)`"},
	}, "sinks/sqlsink", onSQLite + "an advance from another offset than the fence's is moved, by the right claim too"},
	{"R1", "a claim-only transaction compares no claim in SQLite", []edit{
		{"sinks/sqlsink/commit.go", "\treturn f.Holds(h)\n", "\th.Claim = f.Claim\n\treturn f.Holds(h)\n"},
	}, "sinks/sqlsink", onSQLite + "a held claim that another one has replaced is stale, and so is none"},
	{"R1", "the position moves although not all items were written", []edit{
		{"sinks/cassink/commit.go", "if err := t.write(ctx); err != nil {", "if err := t.write(ctx); err != nil && false {"},
	}, "sinks/cassink", "TestThePositionStaysWhereAnItemWasNotWritten"},
	{"R1", "the position moves under another claim in a store without transactions", []edit{
		{"sinks/cassink/commit.go", "next, err := t.goal.after(at.record.Fence)\n\t\tif err != nil {\n\t\t\treturn err\n\t\t}", "next, err := t.goal.after(at.record.Fence)\n\t\t_ = err"},
	}, "sinks/cassink", "TestThePositionMovesOnceAndUnderItsClaimAlone"},
	{"R1", "the first claim of a partition looks into no other database", []edit{
		{"sinks/shardsink/sink.go", "if err == nil && seen.Generation == 0 {", "if false {"},
	}, "sinks/shardsink", "TestNoRoutingAndNoCrashMakesTwoClaimedFencesOfAPartition"},

	{"R2", "the fence of another log is claimed", []edit{{fence, "if f.Log != o.Log {", "if false {"}}, "epoch", "TestCheckComparesLogAndSource"},
	{"R2", "a swap does not compare what was seen", []edit{
		{fences, "if f.Epoch != seen.Epoch || f.Claim != seen.Claim {", "if false {"},
	}, "consumer", "TestR2AClaimFrozenAfterItsConfirmationDoesNotThrowOutTheNextOwner"},
	{"R2", "an operator action compares nothing", []edit{{"operate/act.go", "case f.Epoch != a.Seen.Epoch || f.Claim != a.Seen.Claim:", "case false:"}},
		"sinks/memsink", "TestSuiteOperated/of many acts from one reading, one is done"},
	{"R2", "a swap compares nothing in PostgreSQL", []edit{
		{fenceSQL, "if f.epoch <> seen_epoch or f.claim_id <> seen_claim then", "if false then"},
	}, "sinks/pgsink", onPostgres + "late claimer: a claim from a fence read before another claim is refused"},
	{"R2", "an operator action compares nothing in PostgreSQL", []edit{{"internal/sql/pgschema/migrations/0003_operate.sql", "    if f.epoch <> seen_epoch or f.claim_id <> seen_claim then", "    if false then"}},
		"sinks/pgsink", "TestSuite/cache_statement/queries, operated/of many acts from one reading, one is done"},
	{"R2", "a swap compares nothing in SQLite", []edit{
		{"sinks/sqlsink/sink.go", "epoch.Fences{c.Partition: now}.Claim(seen, c)", "now.Claimed(c)"},
		{"sinks/sqlsink/dialect.go", "key + ` AND epoch = ? AND claim_id = ?`", "key + ` AND (epoch = ? OR claim_id = ? OR 1)`"},
	}, "sinks/sqlsink", onSQLite + "late claimer: a claim from a fence read before another claim is refused"},

	{"R3", "the position is compared before the claim", []edit{
		{fence, "\tif err := f.Holds(", "\tif f.Next != a.From {\n\t\treturn f, &MovedError{Partition: f.Partition, From: a.From, Next: f.Next}\n\t}\n\tif err := f.Holds("},
	}, "epoch", "TestAdvanced"},
	{"R3", "of several advances those before the refused one stay", []edit{
		{fences, "after := maps.Clone(fs)", "after := fs"},
	}, "epoch", "TestAdvanceIsAllOrNothingAndNamesTheFirstInKeyOrder"},
	{"R3", "PostgreSQL returns instead of raising", []edit{
		{fenceSQL, "            perform refuse(groups[i], topics[i], partitions[i], claims[i], froms[i], nonce);\n            if attempt = 2", "            return nonce;\n            if attempt = 2"},
	}, "sinks/pgsink", "TestTheCheckAtTheEndHoldsByItself"},
	{"R3", "a transaction that the handler has begun passes for the one that was entered", []edit{
		{fenceSQL, "    if not entered(xid, lock) then\n        raise exception using errcode = 'XF004', message = 'handler ended the fenced transaction', hint = nonce;\n    end if;\n    if dirty then", "    if dirty then"},
	}, "sinks/pgsink", "TestTheServerKnowsATransactionThatTheHandlerHasBegun"},
	{"R3", "a handler's first statement is sent before its transaction has begun", []edit{
		{"sinks/pgsink/tx.go", "switch r, err := t.begin(ctx, along(sql, args)...); {", "switch r, err := pgx.BatchResults(nil), error(nil); {"},
	}, "sinks/pgsink", "TestWhateverAHandlerSendsFirstIsOfTheFencedTransaction"},
	{"R3", "an error that a handler raises passes for a refusal of the fence", []edit{
		{"sinks/pgsink/errors.go", "|| pg.Hint != nonce {", "|| nonce == \"\" {"},
	}, "sinks/pgsink", "TestAHandlersOwnSQLSTATEIsNotTheSinks"},
	{"R3", "SQLite's count of rows is ignored", []edit{
		{"sinks/sqlsink/sink.go", "if n != 1 {", "if n < 0 {"},
	}, "sinks/sqlsink", onSQLite + "stale writer: whoever lost its claim commits nothing"},
	{"R3", "a process that has lost the fence writes items", []edit{
		{"sinks/cassink/commit.go", "if err := l.stillOurs(ctx, g); err != nil {", "if err := l.stillOurs(ctx, g); err != nil && false {"},
	}, "sinks/cassink", "TestSuite/stale writer: whoever lost its claim commits nothing"},

	{"R4", "the early check locks the fence", []edit{
		{fenceSQL, "    select min(a.position) into i\n", "    perform from fence f where f.claim_id = any (claims) for update;\n    select min(a.position) into i\n"},
	}, "sinks/pgsink", "TestTheCheckAtTheEndHoldsByItself"},
	{"R4", "advances go to PostgreSQL in the caller's order", []edit{
		{"sinks/pgsink/fence.go", "\tslices.SortStableFunc(s.list, func(a, b epoch.Advance) int { return a.Partition.Compare(b.Partition) })\n", ""},
	}, "sinks/pgsink", onPostgres + "of several partitions one is refused: nothing of any commits, and the first refused in key order is named"},
	{"R4", "a claim-only transaction checks its claim before it locks the fence", []edit{
		{fenceSQL, "    perform from fence f\n    where f.group_name = in_group and f.topic = in_topic and f.partition = in_partition\n    order by f.lap desc limit 1\n    for key share;\n    perform refuse(in_group, in_topic, in_partition, in_claim, null, nonce);\n",
			"    perform refuse(in_group, in_topic, in_partition, in_claim, null, nonce);\n    perform from fence f\n    where f.group_name = in_group and f.topic = in_topic and f.partition = in_partition\n    order by f.lap desc limit 1\n    for key share;\n"},
	}, "sinks/pgsink", "TestAHeldClaimWaitsForTheClaimThatReplacesIt"},
	{"R4", "a claim does not wait for a claim-only transaction of the claim before", []edit{
		{fenceSQL, "    for key share;\n", "    ;\n"},
	}, "sinks/pgsink", "TestAClaimWaitsForATransactionThatHoldsTheOneBefore"},

	{"R5", "a lost acknowledgement of PostgreSQL is a failure", []edit{
		{"sinks/pgsink/commit.go", "\tcase err != nil:\n\t\treturn inDoubt(ended(ctx, err))", "\tcase err != nil:\n\t\treturn ended(ctx, err)"},
	}, "sinks/pgsink", "TestALostAcknowledgement"},

	{"R6", "a lower epoch is taken for a later claim", []edit{
		{"epoch/back.go", "case now.Epoch < f.Epoch, now.Epoch == f.Epoch && now.Claim != f.Claim, now.Next < f.Next:", "case now.Next < f.Next:"},
	}, "epoch", "TestStillTellsASinkThatWentBackFromALaterClaim"},

	{"R8", "any claim may adopt a position", []edit{{fence, "\t\tif f.Epoch > 0 {", "\t\tif false {"}}, "epoch", "TestClaimedAdoptsAPositionOnce"},
	{"R8", "any claim may adopt a position in PostgreSQL", []edit{
		{fenceSQL, "adopt_offset is not null and f.epoch > 0", "false"},
	}, "sinks/pgsink", onPostgres + "the first claim of a fence may adopt a position, and no other"},

	{"R9", "a partition that was added begins where the policy says", []edit{{fences, "\t\tif known {", "\t\tif false {"}}, "consumer", "TestR9APartitionAddedLaterLosesNoMessages"},
	{"R9", "a seed overwrites the fence that exists", []edit{
		{fences, "\t\tif _, ok := fs[s.Partition]; ok {\n\t\t\tcontinue\n\t\t}\n", ""},
	}, "epoch", "TestSeedLeavesAFenceThatExists"},
	{"R9", "a fence does not record that anything was applied", []edit{
		{fence, "f.Mark, f.Applied = a.Mark, true", "f.Mark = a.Mark"},
	}, "epoch", "TestAdvanced"},
	{"R9", "seeds of PostgreSQL do not check whether the topic is known", []edit{
		{fenceSQL, "case when known then s.earliest else s.next end", "s.next"},
	}, "sinks/pgsink", onPostgres + "a new partition of a known topic begins at the earliest message"},
	{"R9", "seeds of PostgreSQL do not wait for each other", []edit{
		{fenceSQL, "    perform pg_advisory_xact_lock(hashtextextended(in_group, hashtextextended(in_topic, 0)));\n", ""},
	}, "sinks/pgsink", "TestConcurrentSeedsOfOneTopicComeOneAfterTheOther"},
	{"R9", "seeds of SQLite do not check whether the topic is known", []edit{
		{"sinks/sqlsink/sink.go", "after := maps.Clone(known)", "after := maps.Clone(epoch.Fences{})"},
	}, "sinks/sqlsink", onSQLite + "a new partition of a known topic begins at the earliest message"},
	{"R9", "what one seeding has decided is decided again", []edit{
		{"sinks/cassink/fence.go", "_, err = s.store.Swap(ctx, stored, value, nil)", "_, err = s.store.Swap(ctx, stored, value, nil)\n\tif errors.Is(err, cas.ErrConflict) {\n\t\terr = nil\n\t}"},
	}, "sinks/cassink", "TestSuite/of concurrent seedings of different partitions, one begins at the policy's offset, the others at the earliest"},

	{"R12", "a transaction of PostgreSQL may be idle for ever", []edit{
		{"sinks/pgsink/sink.go", "set_config('idle_in_transaction_session_timeout', $2", "set_config('epochfence.idle', $2"},
	}, "sinks/pgsink", "TestEveryTransactionIsBoundedOnTheServer"},
	{"R12", "a statement of PostgreSQL may run for ever", []edit{
		{"sinks/pgsink/sink.go", "set_config('statement_timeout', $1", "set_config('epochfence.statement', $1"},
	}, "sinks/pgsink", "TestEveryTransactionIsBoundedOnTheServer"},
	{"R12", "a claim waits for the fence's row for ever", []edit{
		{fenceSQL, "    perform set_config('lock_timeout', lock_timeout_ms::text, true);\n    select * into f from fence\n", "    select * into f from fence\n"},
	}, "sinks/pgsink", "TestAClaimThatCannotHaveTheFenceSaysSoInTime"},
	{"R12", "a claim ends no transaction before its swap", []edit{
		{"sinks/pgsink/claim.go", "\t\ts.evict(ctx, b.seen.Claim)\n\t\tif fs, err", "\t\tif fs, err"},
	}, "sinks/pgsink", "TestAnOwnerFrozenBetweenAdvanceAndCommitDelaysTheNextByMilliseconds"},
	{"R12", "a claim ends no transaction after its swap", []edit{
		{"sinks/pgsink/claim.go", "\ts.evict(ctx, b.seen.Claim)\n\treturn f, nil", "\treturn f, nil"},
	}, "sinks/pgsink", "TestATransactionThatBeganWhileTheClaimWaitedIsEndedToo"},
	{"R12", "the wait for SQLite's write lock is not bounded", []edit{
		{"internal/sql/sqltx/db.go", "context.WithTimeout(ctx, b.limits.Wait)", "context.WithCancel(ctx)"},
	}, "sinks/sqlsink", "TestAWaitForTheWriteLockIsBoundedAndSaysSo"},

	{"L2", "a message is blamed for its wait for locks", []edit{
		{"sinks/pgsink/blame.go", "w.found = w.found || waits", "w.found = w.found"},
	}, "sinks/pgsink", "TestAWaitForALockThatIsNotTheFirstIsTransientToo"},
	{"L2", "an error of another database is this one's", []edit{
		{"sinks/pgsink/blame.go", "for _, f := range t.blameless {", "var some *pgconn.PgError\n\tif errors.As(err, &some) {\n\t\treturn blameless(some)\n\t}\n\tfor _, f := range t.blameless {"},
	}, "sinks/pgsink", "TestAnErrorOfAnotherDatabaseIsTheHandlers"},

	{"L4", "a claim that is refused refuses those it was made with", []edit{
		{"sinks/pgsink/claim.go", "\t\treturn nil, errEach\n", "\t\treturn nil, err\n"},
	}, "sinks/pgsink", "TestAClaimThatIsRefusedAmongOthersIsRefusedAlone"},

	{"L6", "a text that ends the transaction is sent", []edit{
		{"sinks/pgsink/statement.go", "case k.never != nil:", "case false:"},
	}, "sinks/pgsink", "TestAHandlerThatLeavesTheTransactionIsFoundOut"},
	{"L6", "a transaction that a hidden text has begun passes for the sink's", []edit{
		{"sinks/pgsink/tx.go", "t.left = !within(t.conn, *t.fenced.xid)", "t.left = false"},
	}, "sinks/pgsink", "TestAHandlerThatHasLeftTheTransactionCommitsNothingOfItsOwn"},
	{"L6", "a session that a handler has changed goes back to the pool", []edit{
		{"sinks/pgsink/commit.go", "if (t.altered != \"\" || t.spoilt) && !t.conn.IsClosed() {", "if false {"},
	}, "sinks/pgsink", "TestWhatAHandlerDoesToItsSessionStaysInItsTransaction"},
	{"L6", "pgsink calls the methods of a handler's error", []edit{
		{"sinks/pgsink/tx.go", "inert.Error(apply(ctx, t))", "apply(ctx, t)"},
	}, "sinks/pgsink", onPostgres + "a handler's error whose methods panic, or that is a typed nil, is an error as any other"},
	{"L6", "a text that ends the transaction is sent to SQLite", []edit{
		{"internal/sql/sqltx/effect.go", "case e.has(Controls):", "case false:"},
	}, "sinks/sqlsink", "TestAHandlersTransactionControlIsNotSentAndFailsItsCall"},
	{"L6", "a handler of the SQLite sink writes on where SQLite has rolled back", []edit{
		{"internal/sql/sqltx/guard.go", "if !in || probeErr != nil {", "if (!in || probeErr != nil) && false {"},
	}, "sinks/sqlsink", "TestNothingIsSentOnceTheDatabaseHasRolledBack"},

	{"L7", "an abandoned transaction keeps its connection to PostgreSQL, and its locks", []edit{
		{"sinks/pgsink/commit.go", "t.isCut.Store(true)\n\t_ = t.conn.PgConn().Conn().Close()", "t.isCut.Store(true)"},
	}, "sinks/pgsink", "TestAnAbandonedTransactionFreesItsLocksAndItsPlaceInThePool"},
	{"L7", "an abandoned transaction keeps SQLite's write lock", []edit{
		{"internal/sql/sqltx/guard.go", "if tx != nil {\n\t\ttx.End()\n\t}", "_ = tx"},
	}, "sinks/sqlsink", onSQLite + "a handler that hangs is abandoned: the next owner claims and commits, and what it still writes is refused"},
}
