package main

const lagging = "consumer/lag.go"

// guardsOfSight are those of what people see of partitions that do not move, and of processes
// that are gone.
var guardsOfSight = []guard{
	{"blame", "the lag of a halted partition is what it was when it halted", []edit{
		{reports, "o.run.lags.halted(o.tenure, at)", "_ = at"},
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
		{"ops/stats/read.go", "unknown++\n", "\n"},
	}, "ops/stats", "TestEachEventCountsWhatItSays"},
}
