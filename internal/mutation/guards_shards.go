package main

const (
	shardSeed  = "sinks/shardsink/seed.go"
	shardClaim = "sinks/shardsink/claim.go"
)

var guardsOfShards = []guard{
	{"R1", "the first claim of a partition looks into no other database", []edit{
		{shardClaim, "if err == nil && seen.Generation == 0 {", "if false {"},
	}, "sinks/shardsink", "TestNoRoutingAndNoCrashMakesTwoClaimedFencesOfAPartition"},
	{"R1", "the first claim of a partition leaves no redirect row in a database that has none", []edit{
		{shardClaim, "\t\tif _, ok := found[p]; ok {\n", "\t\tif _, ok := found[p]; ok || !ok {\n"},
	}, "sinks/shardsink", "TestAFirstClaimPutsUpTheRedirectRowsThatAreMissing"},
	{"R1", "a transaction spans two databases", []edit{
		{"sinks/shardsink/sink.go", "if i > 0 && home != shard {", "if false {"},
	}, "sinks/shardsink", "TestATransactionOfTwoShardsIsRefusedBeforeTheHandlerIsCalled"},
	{"R9", "a topic that another database knows is an unknown one", []edit{
		{shardSeed, "\t\tif known {\n", "\t\tif false {\n"},
	}, "sinks/shardsink", "TestATopicThatAShardKnewBeforeThereWereShardsIsKnown"},
	{"R9", "a partition is added while one of another database is of another log", []edit{
		{shardSeed, "if err := fences.Seed(ours); err != nil {", "if err := fences.Seed(ours); err != nil && false {"},
	}, "sinks/shardsink", "TestNoPartitionIsAddedWhileOneOfAnotherShardIsOfAnotherLog"},
	{"R9", "each database is told by itself where partitions begin", []edit{
		{shardSeed, "placed(as(row, r.Source), i, r.home)", "placed(r.Start, i, r.home)"},
	}, "sinks/shardsink", "TestPartitionsBeginWhereTheFirstShardSaysAndKnownTopicsAtTheEarliest"},
	{"blame", "partitions of two databases share a committer", []edit{
		{running, "r.loops[shard*r.Committers:][:r.Committers]", "r.loops"},
	}, "consumer", "TestNoTransactionMixesShards"},
	{"blame", "a partition that another database keeps is tried again and again", []edit{
		{nexts, " errors.Is(err, epoch.ErrElsewhere) ||", ""},
	}, "consumer", "TestAPartitionThatIsKeptElsewhereHaltsWithTheReasonAndTheOthersGoOn"},
}
