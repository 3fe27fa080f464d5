package main

const (
	lagging = "consumer/lag.go"
	living  = "consumer/life.go"

	locksSeen = "operate/stats/lease.go"

	signsStop = "a process whose signs stop is not alive, and is listed until another one is in its place"
)

var guardsOfSight = []guard{
	{"blame", "a process that has ended is taken for one that has died", []edit{
		{"consumer/life.go", "context.WithTimeout(context.WithoutCancel(run), aliveTimeout)", "context.WithTimeout(run, aliveTimeout)"},
	}, "consumer", "TestASignOfLifeThatIsUnderWayAtTheEndIsNotLeft"},
	{"blame", "the lag of a halted partition is what it was when it halted", []edit{
		{reports, "p.run.lags.halted(p.tenure, at)", "_ = at"},
	}, "consumer", "TestTheLagOfAHaltedPartitionIsWhatItIsNow"},
	{"blame", "the lag of a paused partition is not known after a restart", []edit{
		{owning, "o.seen = seen", "_ = seen"},
	}, "consumer", "TestTheLagOfAPausedPartitionIsWhatItIsNow"},
	{"blame", "the source is asked for the lag without a pause", []edit{
		{lagging, "a.due = time.Now().Add(lagEvery)", "a.due = time.Now()"},
	}, "consumer", "TestHaltedPartitionsAreAskedForOneAtATimeAndNotOftenerThanTheyMay"},
	{"blame", "the lag of a partition that is well is asked for again and again", []edit{
		{lagging, "if a.once && n >= 0 {", "if false {"},
	}, "consumer", "TestTheLagOfAClaimedPartitionWithNothingToApplyIsKnown"},
	{"blame", "a lag that is not known is counted as 0", []edit{
		{"operate/stats/read.go", "unknown++\n", "\n"},
	}, "operate/stats", "TestEachEventCountsWhatItSays"},
	{"blame", "a process gives one sign of life and no more", []edit{
		{living, "for ctx.Err() == nil {\n\t\tl.sign(ctx)", "l.sign(ctx)\n\tfor ctx.Err() == nil {"},
	}, "consumer", "TestAProcessGivesSignsOfLifeUntilItHasDrained"},
	{"blame", "a process that ends in good order is taken for one that has died", []edit{
		{living, "if err := l.gone(ctx, l.process); err != nil {", "if err := error(nil); err != nil {"},
	}, "consumer", "TestAProcessGivesSignsOfLifeUntilItHasDrained"},
	{"blame", "a process that gives no sign of life is taken for alive", []edit{
		{"operate/process.go", "return p.Now.Sub(p.Seen) <= 3*p.Every", "return true"},
	}, "sinks/memsink", actsInMemory + signsStop},
	{"blame", "in PostgreSQL a process that dies again and again leaves a sign each time", []edit{
		{"sinks/pgsink/migrations/0004_operate.sql", "where p.group_name = in_group and p.name = in_name and p.run <> in_run\n            and", "where false and"},
	}, "sinks/pgsink", actsOnPostgres + signsStop},
	{"blame", "the page says that all is well where nobody is left", []edit{
		{"operate/statusz/verdict.go", "case len(v.deserted) > 0:", "case false:"},
	}, "operate/statusz", "TestADeadGroupDoesNotLookWell"},
	{"blame", "the page calls a partition claimed whose owner is gone", []edit{
		{"operate/statusz/rows.go", "case orphaned:", "case orphaned && false:"},
	}, "operate/statusz", "TestADeadGroupDoesNotLookWell"},
	{"blame", "a lock that nobody gets does not look contended", []edit{
		{locksSeen, "r.settle(now)\n\t\tfor i := range families {", "for i := range families {"},
	}, "operate/stats", "TestTheTimeOfThoseWhoStillWaitIsCounted"},
	{"blame", "each of many locks has series of its own", []edit{
		{locksSeen, "name = OtherResources\n", "_ = OtherResources\n"},
	}, "operate/stats", "TestResourcesBeyondTheLimitAreCountedTogether"},
	{"blame", "a refusal of a lock's work is not counted", []edit{
		{locksSeen, "r.values.add(leaseRejects, 1, e.Refusal.String(), \"commit\")", "_ = r"},
	}, "operate/stats", "TestALockThatIsTakenOverIsSeenFromBothSides"},
	{"blame", "a lock whose transaction was ended from within raises no alert", []edit{
		{locksSeen, "s.values.add(unfencedWrites, 1, \"lock\")", "_ = s"},
	}, "operate/stats", "TestEachEventOfALeaseCountsWhatItSays"},
	{"blame", "a process that has locks alone looks as if it had left its group", []edit{
		{"operate/stats/read.go", "joined || s.leases && !s.consumes", "joined"},
	}, "operate/stats", "TestEachEventOfALeaseCountsWhatItSays"},
	{"blame", "a consumer that is no member looks like one because of a lock", []edit{
		{"operate/stats/read.go", "joined || s.leases && !s.consumes", "joined || s.leases"},
	}, "operate/stats", "TestAMemberOfAGroupOfLeasesIsNotOneOfAConsumerGroup"},
}
