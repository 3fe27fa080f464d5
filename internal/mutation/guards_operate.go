package main

const (
	acts       = "operate/act.go"
	backs      = "epoch/back.go"
	asked      = "consumer/requests.go"
	replaying  = "consumer/replays.go"
	replayed   = "consumer/replay_verdict.go"
	recorded   = "consumer/record.go"
	statuses   = "consumer/status.go"
	operateSQL = "sinks/pgsink/migrations/0004_operate.sql"
	decideSQL  = "sinks/pgsink/migrations/0003_decision.sql"
	pgActs     = "sinks/pgsink/operator.go"
	sqlActs    = "sinks/sqlsink/operator.go"

	// The suite of operator actions.
	actsOnPostgres = "TestSuite/cache_statement/queries, operated/"
	actsOnSQLite   = "TestSuiteOperated/"
	actsInMemory   = "TestSuiteOperated/"
)

var guardsOfActs = []guard{
	{"R1", "an act leaves the epoch as it is", []edit{{acts, "\tf.Epoch++\n", ""}},
		"sinks/memsink", actsInMemory + "an act takes the next epoch, keeps the lease's generation, and names the person"},
	{"R1", "an act leaves the claim as it is, and races its owner", []edit{{acts, "\tf.Claim = a.Claim\n", ""}},
		"sinks/memsink", actsInMemory + "a live owner is fenced by an act, claims again, and continues from where it was told"},
	{"R1", "an act leaves the claim as it is in PostgreSQL", []edit{{operateSQL, "set epoch = t.epoch + 1, claim_id = new_claim,", "set epoch = t.epoch + 1,"}},
		"sinks/pgsink", actsOnPostgres + "a live owner is fenced by an act, claims again, and continues from where it was told"},
	{"R1", "a replay is committed beside its request in PostgreSQL", []edit{{operateSQL, "delete from dead_letter d where d.id = in_id and d.request = in_request and d.requested returning", "delete from dead_letter d where d.id = in_id returning"}},
		"sinks/pgsink", actsOnPostgres + "a replay that was withdrawn, carried out or discarded meanwhile is not committed"},
	{"R1", "a replay is committed beside its request in SQLite", []edit{
		{"sinks/sqlsink/queries.go", "`SELECT requested_by FROM ` + letters + ` WHERE id = ? AND request = ? AND requested = 1`", "`SELECT requested_by FROM ` + letters + ` WHERE id = ? AND (request = ? OR 1)`"},
		{"sinks/sqlsink/queries.go", "`DELETE FROM ` + letters + ` WHERE id = ? AND request = ? AND requested = 1`", "`DELETE FROM ` + letters + ` WHERE id = ? AND (request = ? OR 1)`"},
	}, "sinks/sqlsink", actsOnSQLite + "a replay that was withdrawn, carried out or discarded meanwhile is not committed"},
	{"R1", "the application writes operators' acts into the audit log of PostgreSQL", []edit{{decideSQL, "if kinds[i] not in ('stale', 'halt', 'recovery', 'loss', 'in-doubt', 'hang', 'on-failure-hang', 'tick') then", "if false then"}},
		"sinks/pgsink", actsOnPostgres + "what consumers record is in the audit log, and they record no acts"},
	{"R1", "a claim takes an epoch that is out of reach", []edit{
		{fence, "if last > f.Epoch && (last > MaxAbove || last-f.Epoch > MaxStep) {", "if last < 0 {"},
	}, "epoch", "TestClaimedRefusesAndLeavesTheFence"},
	{"R1", "the application uses the epochs of PostgreSQL up", []edit{
		{fenceSQL, "if last > f.epoch and (last > 9007199254740992 or last - f.epoch > 1099511627776) then", "if last > 9223372036854775806 then"},
	}, "sinks/pgsink", "TestTheApplicationsRoleUsesNoEpochsUp"},
	{"R1", "a claim is made in an operator's name", []edit{
		{fence, "if strings.HasPrefix(c.Owner, OperatorPrefix) {", "if false {"},
	}, "epoch", "TestClaimedRefusesAndLeavesTheFence"},
	{"R1", "the application claims in an operator's name in PostgreSQL", []edit{
		{fenceSQL, "if starts_with(new_owner, 'operator ') then", "if false then"},
	}, "sinks/pgsink", "TestTheApplicationsRoleWritesNothingInAnOperatorsName"},
	{"R1", "the application names operators in the audit log of PostgreSQL", []edit{
		{decideSQL, "case when starts_with(owners[i], 'operator ') then '' else owners[i] end", "owners[i]"},
	}, "sinks/pgsink", "TestTheApplicationsRoleWritesNothingInAnOperatorsName"},
	{"R1", "a consumer names operators in the audit log", []edit{
		{"operate/decision.go", "if strings.HasPrefix(d.Owner, epoch.OperatorPrefix) {", "if false {"},
	}, "sinks/memsink", actsInMemory + "what consumers record is in the audit log, and they record no acts"},
	{"R1", "a claim is not in the audit log of PostgreSQL", []edit{{decideSQL, "    perform decide('claim', in_group, in_topic, in_partition, f.epoch, f.claim_id, f.owner,\n        case when seen_epoch = 0 then -1 else f.next_offset end, f.next_offset, '', '', trace_id);\n", ""}},
		"sinks/pgsink", actsOnPostgres + "each claim and each act is in the audit log, and nothing that was refused or committed"},

	{"R2", "an act compares nothing", []edit{{acts, "case f.Epoch != a.Seen.Epoch || f.Claim != a.Seen.Claim:", "case false:"}},
		"sinks/memsink", actsInMemory + "of many acts from one reading, one is done"},
	{"R2", "an act compares nothing in PostgreSQL", []edit{{operateSQL, "    if f.epoch <> seen_epoch or f.claim_id <> seen_claim then", "    if false then"}},
		"sinks/pgsink", actsOnPostgres + "of many acts from one reading, one is done"},
	{"R2", "a run is requested of a partition that is no job", []edit{{acts, "if a.Seen.Log != epoch.ScheduleLog {", "if false {"}},
		"sinks/memsink", actsInMemory + "a run is requested of a job, at its position and with a mark, and of no other partition"},
	{"R2", "a run that is requested leaves ticks out", []edit{{acts, " || a.To.Offset < a.Seen.Next || a.To.Offset-a.Seen.Next >= JobSecond {", " {"}},
		"sinks/memsink", actsInMemory + "a run is requested of a job, at its position and with a mark, and of no other partition"},
	{"R2", "a run is requested of a partition that is no job in PostgreSQL", []edit{{operateSQL, "f.log_id <> 'epochfence/schedule' or beginning", "beginning"}},
		"sinks/pgsink", "TestPostgreSQLRefusesARunThatIsNotOfAJobAtItsPosition"},
	{"R2", "an act that sets the position does not compare it", []edit{{acts, "case a.Moves() && f.Next != a.Seen.Next:", "case false:"}},
		"sinks/memsink", actsInMemory + "an act compares what was seen: the epoch and the claim, and the position where it sets one"},
	{"R2", "an act that sets the position does not compare it in PostgreSQL", []edit{{operateSQL, "    if set_offset is not null and f.next_offset <> seen_offset then", "    if false then"}},
		"sinks/pgsink", actsOnPostgres + "an act compares what was seen: the epoch and the claim, and the position where it sets one"},
	{"R2", "a paused partition is claimed", []edit{{"epoch/mode.go", "if f.Pause.Mode == Running {", "if true {"}},
		"sinks/memsink", actsInMemory + "a paused partition takes no claim, says who has paused it and why, and continues once it is resumed"},
	{"R2", "a paused partition is claimed in PostgreSQL", []edit{{fenceSQL, "    if f.mode <> '' then", "    if false then"}},
		"sinks/pgsink", actsOnPostgres + "a paused partition takes no claim, says who has paused it and why, and continues once it is resumed"},
	{"R2", "what is done to a dead letter compares nothing in PostgreSQL", []edit{{operateSQL, "    if l.request <> seen_request or l.requested <> seen_requested then", "    if false then"}},
		"sinks/pgsink", actsOnPostgres + "what is done to a dead letter compares its requests"},
	{"R2", "a pause is only found at the swap, after the source was asked", []edit{{takeover, "\tif err := seen.CheckRunning(); err != nil {\n\t\treturn Fence{}, seen, fmt.Errorf(\"claim %w\", err)\n\t}\n", ""}},
		"consumer", "TestThePausedAskTheSourceForNothing"},

	{"blame", "a transaction that a replay's handler has ended is forgotten where its claim was ending", []edit{{replaying, "l.run.endedTx(p.fence.Partition, v.broke.err)", ""}},
		"consumer", "TestAReplayThatEndsTheTransactionHaltsForGoodAlsoWhereItsClaimWasEnding"},
	{"blame", "replays come before messages as long as there are any", []edit{{replaying, " && (p.state != ready || !p.replayed)", ""}},
		"consumer", "TestReplaysTakeTurnsWithMessages"},
	{"blame", "a replay that ends its connection each time is never given up", []edit{{replayed, "what == replayTries || kills {", "what == replayTries {"}},
		"consumer", "TestAReplayThatEndsItsConnectionEachTimeIsGivenUp"},
	{"R6", "an act waits behind a transaction that is frozen with the fence", []edit{{pgActs, "\t\to.sink.evict(ctx, a.Seen.Claim)\n\t}\n", "\t}\n"}},
		"sinks/pgsink", "TestAnActEndsATransactionThatIsFrozenWithTheFence"},
	{"R6", "an act ends the owner's transaction and is then refused", []edit{{pgActs, "\t\tif f, err = o.swap(ctx, a); !isLockTimeout(err) {\n", "\t\to.sink.evict(ctx, a.Seen.Claim)\n\t\tif f, err = o.swap(ctx, a); !isLockTimeout(err) {\n"}},
		"sinks/pgsink", "TestAnActThatIsRefusedLeavesTheOwnersTransactionAlone"},
	{"R8", "a position that an operator has set back is taken for a sink that went back", []edit{{backs, "case now.SetUnder > f.Epoch:", "case false:"}},
		"consumer", "TestALiveOwnerGoesOnFromWhereAPersonTold"},
	{"R8", "a pause keeps a position from being adopted by the first claim", []edit{{acts, "case f.Epoch == 0 && !a.Moves():", "case false:"}},
		"sinks/memsink", actsInMemory + "a fence that was never claimed takes a position, and nothing else"},
	{"R8", "a position that an operator has set below what others had committed is not published", []edit{{positions, "at.SetUnder > 0 || ", ""}},
		"consumer/internal/tenures", "TestAPositionThatAPersonHasSetIsPublishedBelowTheirs"},
	{"R9", "retention may pass a position that an operator has set", []edit{{acts, "f.Next, f.Mark, f.Applied = a.To.Offset, a.To.Mark, !a.Beginning", "f.Next, f.Mark, f.Applied = a.To.Offset, a.To.Mark, false"}},
		"sinks/memsink", actsInMemory + "an act takes the next epoch, keeps the lease's generation, and names the person"},
	{"R12", "pruning the audit log waits for other claims", []edit{
		{decideSQL, "where d.operator = '' and d.id <= latest - 200000 order by d.id limit 64 for update skip locked", "where d.operator = '' and d.id <= latest - 200000 order by d.id limit 64 for update"},
		{decideSQL, "- interval '90 days' for update skip locked);", "- interval '90 days' for update);"},
	}, "sinks/pgsink", "TestPruningTheDecisionLogHoldsNoOtherClaimUp"},

	{"blame", "a replay runs beside a transaction of its partition", []edit{{replaying, "if p := r.p; p.state != busy && (p.state != ready || !p.replayed) && p.claim.Err() == nil {", "if p := r.p; p.claim.Err() == nil {"}},
		"consumer", "TestDeadLettersAreReplayedWithinSecondsBesideTheMessages"},
	{"blame", "a transaction begins beside a replay of its partition", []edit{{loops, "if p.replaying || len(picked) == most {", "if len(picked) == most {"}},
		"consumer", "TestDeadLettersAreReplayedWithinSecondsBesideTheMessages"},
	{"blame", "a tenure does not wait for the replay under way", []edit{{loops, "\tif p.replaying {\n\t\tp.back = back\n\t\treturn\n\t}\n", ""}},
		"consumer", "TestATenureWaitsForTheReplayUnderWay"},
	{"blame", "a replay that fails for a reason that passes is tried for ever", []edit{{replayed, "tries >= maxReplayTries", "false"}},
		"consumer", "TestAReplayThatFailsIsRecordedAndNotTriedAgain"},
	{"blame", "a replay fails for good because the database is unhealthy", []edit{{replayed, " || errors.Is(err, epoch.ErrUnhealthy) && !isPermanent(r.handler):", ":"}},
		"consumer", "TestAReplayThatFailsIsRecordedAndNotTriedAgain"},
	{"blame", "an idle owner hears of an act when it looks by itself", []edit{{asked, "\t\tq.run.acted.tell()\n\t\tq.run.lookAtAll()\n", ""}},
		"consumer", "TestAnIdleOwnerNoticesAnActWithinSeconds"},
	{"blame", "a halted partition hears of an act when it is tried again by itself", []edit{{asked, "\t\tq.run.acted.tell()\n", ""}},
		"consumer", "TestAMessageThatHaltsItsPartitionIsSkippedWithinSeconds"},
	{"blame", "an entry that operators want to be tried now waits for its time", []edit{{"outbox/settlement.go", "\tr.waiting.now(t.retries, time.Now())\n", ""}},
		"outbox", "TestPeopleOperateTheOutboxOnSQLite"},
	{"blame", "a consumer waits for the audit log", []edit{{recorded, "\tselect {\n\tcase r.queue <- d:\n\tdefault:\n\t\tr.mu.Lock()\n\t\tdefer r.mu.Unlock()\n\t\tr.dropped++\n\t}\n", "\tr.queue <- d\n"}},
		"consumer", "TestADecisionLogThatCannotBeWrittenHoldsNothingUp"},
	{"blame", "a Run that ends waits for an audit log that cannot be written", []edit{{recorded, "\tlate := time.AfterFunc(lastRecords, r.stop)\n", "\tlate := time.AfterFunc(time.Hour, r.stop)\n"}},
		"consumer", "TestADecisionLogThatCannotBeWrittenHoldsNothingUp"},
	{"blame", "a process whose partition is paused is not ready", []edit{{statuses, "if errors.Is(p.Err, epoch.ErrPaused) {", "if false {"}},
		"consumer", "TestAPausedPartitionWaitsAndComesBackByItself"},
}
