package main

const (
	abandons  = "consumer/abandon.go"
	recalls   = "consumer/recall.go"
	hungKafka = "consumer/kafkasource/hung.go"
)

// forgiving is a test about old hangs that no longer count.
const forgiving = "what hangs is read by the next owner: the newest first, and nothing from before an operator let the partition continue"

var guardsOfHangs = []guard{
	{"R12", "a call that hangs holds its lane", []edit{
		{"consumer/transaction.go", "l.send(late[TX]{t, stack})", "_ = stack"},
	}, "consumer", "TestAHandlerThatHangsCostsItsOwnPartitionAlone/1 committers"},
	{"R12", "a partition is claimed again while a call for it hangs", []edit{
		{"consumer/ownership.go", "if h := r.hung.of(t.Origin().Partition); h != nil {", "if h := r.hung.of(t.Origin().Partition); h != nil && false {"},
	}, "consumer", "TestASourceThatGrantsAPartitionAllTheSameGetsItBack"},
	{"R12", "the source is not told that a call for the partition hangs", []edit{
		{"consumer/ownership.go", "o.tenure.GiveUp(o.hang.returned)", "_ = o.hang.returned"},
	}, "consumer", "TestAMessageThatHangsAgainAndAgainEndsInOnFailure/OnFailure true"},
	{"blame", "a message that hangs uses up no attempts", []edit{
		{abandons, "l.blame(did, t.placed[call].at, trials[i])", "_ = trials[i]"},
	}, "consumer", "TestAMessageThatHangsAgainAndAgainEndsInOnFailure/OnFailure true"},
	{"blame", "the next owner gets a partition before it can read which message hangs", []edit{
		{"consumer/ownership.go", "\t\to.recordHang()\n", "\t\tgo o.recordHang()\n"},
	}, "consumer", "TestTheNextOwnerGetsAPartitionOnceItCanReadWhatHung"},
	{"blame", "a message that hangs in one process after the other uses up no attempts", []edit{
		{"consumer/ownership.go", "if seen.Epoch > 0 && (left.Epoch == 0 || o.hung) {", "if false {"},
	}, "consumer", "TestAMessageThatHangsOneOwnerAfterTheOtherEndsInOnFailure/2 owners"},
	{"blame", "a message that halted after its hangs is tried again, and hangs the next process", []edit{
		{abandons, "func (p *pending[TX]) halts(err error) error {\n", "func (p *pending[TX]) halts(err error) error {\n\tp.run.hung.forget(p.partition)\n\tp.hung = false\n"},
	}, "consumer", "TestAMessageThatHaltedAfterItsHangsIsTriedOnceAnOperatorLetsItContinue"},
	{"blame", "an owner that halted after hangs does not see that an operator let its partition continue", []edit{
		{"consumer/ownership.go", "(left.Epoch == 0 || o.hung)", "(left.Epoch == 0)"},
	}, "consumer", "TestAMessageThatHaltedAfterItsHangsIsTriedOnceAnOperatorLetsItContinue"},
	{"blame", "an OnFailure that hangs is called by the next owner", []edit{
		{recalls, "m.failed = errors.New(d.Reason)", "_ = errors.New(d.Reason)"},
	}, "consumer", "TestAnOnFailureThatHangsHaltsThePartitionOfTheNextOwner"},
	{"blame", "a message that is applied hides those that have hung", []edit{
		{recalls, "if d.From < 0 || d.To <= next {", "if d.From < 0 {"},
	}, "consumer", "TestWhatHasHungIsKnownByTheLogAndByThisProcess/one that is applied in between"},
	{"blame", "a process counts hangs from before an operator let the partition continue", []edit{
		{recalls, "if known.exists() && !known.recorded {", "if known.exists() {"},
	}, "consumer", "TestAResumeForgivesHangs/same owner true"},
	{"blame", "hangs from before an operator let the partition continue count in memory", []edit{
		{"sinks/memsink/operable.go", "case d.Kind.ForgivesHangs() || ", "case "},
	}, "sinks/memsink", actsInMemory + forgiving},
	{"blame", "hangs from before an operator let the partition continue count in SQLite", []edit{
		{"sinks/sqlsink/operable.go", "if forgiven = forgiven || d.Kind.ForgivesHangs(); !forgiven {", "if forgiven = !d.Kind.IsHang(); !forgiven {"},
	}, "sinks/sqlsink", actsOnSQLite + forgiving},
	{"blame", "hangs from before an operator let the partition continue count in PostgreSQL", []edit{
		{decideSQL, "and a.kind in ('rewind', 'skip', 'resume', 'rebase', 'run')", "and a.kind in ('rewind', 'skip', 'rebase', 'run')"},
	}, "sinks/pgsink", actsOnPostgres + forgiving},
	{"R12", "a partition is not given up while the audit log does not answer", []edit{
		{"consumer/record.go", "hangTimeToRecord = 2 * time.Second", "hangTimeToRecord = 2 * time.Hour"},
	}, "consumer", "TestADecisionLogThatTakesNoHangDelaysTheNextOwnerBriefly"},
	{"blame", "what shares a transaction with a call that hangs is not tried again", []edit{
		{abandons, "default:\n\t\t\tl.again(p, 0)", "default:\n\t\t\tp.finish(outcome{action: halt, err: r.err})"},
	}, "consumer", "TestWhatSharesATransactionWithACallThatHangsIsAppliedAgainAtOnce"},
	{"R12", "Run waits for a call that hangs", []edit{
		{abandons, "t.abandon()\n\tt.release()", "t.abandon()"},
	}, "consumer", "TestRunReturnsWithWhatHangsWhenItIsStopped"},
	{"R12", "Run continues however many calls hang", []edit{
		{"consumer/hang.go", "r.stop(errTooManyHang)", "_ = errTooManyHang"},
	}, "consumer", "TestRunReturnsWhenTooManyCallsHang"},
	{"R12", "a drain waits for a call that hangs", []edit{
		{"consumer/transaction.go", "overrun.within(overrunGrace)", "_ = overrunGrace"},
	}, "consumer", "TestADrainDoesNotWaitForAHandlerThatHangs"},
	{"R12", "background work that outlives its context holds its partition", []edit{
		{"consumer/background.go", "count := afterAwake(o.run.hangTimeout(o.timeout), func() { close(late) })", "count := afterAwake(o.run.hangTimeout(o.timeout), func() {})"},
	}, "consumer", "TestBackgroundWorkThatOutlivesItsContextDoesNotHoldItsPartition"},
	{"R12", "a process is ready while a call hangs", []edit{
		{"consumer/status.go", "for _, o := range s.Hung() {", "for _, o := range s.Hung()[:0] {"},
	}, "consumer", "TestReadinessFailsWhileACallHangs"},
	{"R12", "what is written in an abandoned transaction in memory is taken", []edit{
		{"sinks/memsink/tx.go", "if tx.abandoned {", "if false {"},
	}, "sinks/memsink", "TestSuite/a handler that hangs before its first write is abandoned: what it writes then is refused"},
	{"R12", "an abandoned transaction keeps its connection to PostgreSQL, and its locks", []edit{
		{"sinks/pgsink/commit.go", "t.isCut.Store(true)\n\t_ = t.conn.PgConn().Conn().Close()", "t.isCut.Store(true)"},
	}, "sinks/pgsink", "TestAnAbandonedTransactionFreesItsLocksAndItsPlaceInThePool"},
	{"R12", "an abandoned transaction keeps its place in the pool", []edit{
		{"sinks/pgsink/connection.go", "l.out, l.conn = l.conn.Hijack(), nil", "_ = l.out"},
	}, "sinks/pgsink", "TestAnAbandonedTransactionFreesItsLocksAndItsPlaceInThePool"},
	{"R12", "an abandoned transaction keeps SQLite's write lock", []edit{
		{"internal/sql/sqltx/guard.go", "if tx != nil {\n\t\ttx.End()\n\t}", "_ = tx"},
	}, "sinks/sqlsink", onSQLite + "a handler that hangs is abandoned: the next owner claims and commits, and what it still writes is refused"},
	{"R12", "a member of a Kafka group keeps a partition whose handler hangs", []edit{
		{hungKafka, "if !held {", "if !held || true {"},
	}, kafka, "TestAMemberWhoseHandlerHangsLeavesAndJoinsAgain"},
	{"R12", "a static member of a Kafka group keeps its partitions when it leaves", []edit{
		{"consumer/kafkasource/source.go", "if s.isAway() {", "if false {"},
	}, kafka, "TestAStaticMemberWhoseHandlerHangsFreesItsPartitions"},
	{"blame", "the only member of a Kafka group leaves it because a handler hangs", []edit{
		{hungKafka, "if s.isAlone(ctx) {", "if false {"},
	}, kafka, "TestAMemberThatIsAloneStaysThoughAHandlerHangs"},
	{"R12", "a member of a NATS group takes a partition again whose handler hangs", []edit{
		{leased, "t.lease.Decline(until)", "_ = until"},
	}, nats, "TestAPartitionWhoseHandlerHangsIsNotTakenAgainBeforeItReturns"},
}
