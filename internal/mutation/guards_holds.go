package main

var guardsOfHolds = []guard{
	{"R1", "a held claim is any claim of the fence's", []edit{
		{holds, "\treturn f.Holds(h)\n", "\th.Claim = f.Claim\n\treturn f.Holds(h)\n"},
	}, "sinks/memsink", "TestSuite/a held claim that another one has replaced is stale, and so is none"},
	{"R1", "a held claim is not compared in PostgreSQL", []edit{
		{fenceSQL, "    perform refuse(in_group, in_topic, in_partition, in_claim, null, nonce);\n", ""},
	}, "sinks/pgsink", "TestTheCheckOfAHeldClaimHoldsByItself"},
	{"R1", "a held claim is not compared in SQLite", []edit{
		{"sinks/sqlsink/commit.go", "\treturn f.Holds(h)\n", "\th.Claim = f.Claim\n\treturn f.Holds(h)\n"},
	}, "sinks/sqlsink", onSQLite + "a held claim that another one has replaced is stale, and so is none"},
	{"R3", "a transaction that the handler has begun passes for the one that holds the claim", []edit{
		{fenceSQL, unlessEntered + "    perform from fence f", "    perform from fence f"},
	}, "sinks/pgsink", "TestTheServerKnowsATransactionThatTheHandlerHasBegun"},
	{"R4", "a held claim is looked at before the fence is locked", []edit{
		{fenceSQL, "    perform from fence f\n    where f.group_name = in_group and f.topic = in_topic and f.partition = in_partition\n    order by f.lap desc limit 1\n    for key share;\n    perform refuse(in_group, in_topic, in_partition, in_claim, null, nonce);\n",
			"    perform refuse(in_group, in_topic, in_partition, in_claim, null, nonce);\n    perform from fence f\n    where f.group_name = in_group and f.topic = in_topic and f.partition = in_partition\n    order by f.lap desc limit 1\n    for key share;\n"},
	}, "sinks/pgsink", "TestAHeldClaimWaitsForTheClaimThatReplacesIt"},
	{"R4", "a claim passes beside a transaction that holds the one before", []edit{
		{fenceSQL, "    for key share;\n", "    ;\n"},
	}, "sinks/pgsink", "TestAClaimWaitsForATransactionThatHoldsTheOneBefore"},
	{"R4", "a claim locks the fence no more than an advance does", []edit{
		{fenceSQL, "    order by lap desc limit 1\n    for update;", "    order by lap desc limit 1\n    for no key update;"},
	}, "sinks/pgsink", "TestAClaimWaitsForATransactionThatHoldsTheOneBefore"},
	{"R4", "an advance does not pass beside a transaction that holds the claim", []edit{
		{fenceSQL, "    for key share;\n", "    for share;\n"},
	}, "sinks/pgsink", "TestAnAdvancePassesBesideATransactionThatHoldsItsClaim"},
	{"R4", "a refused advance waits for transactions that hold the claim", []edit{
		{fenceSQL, "            for no key update;\n", "            for update;\n"},
	}, "sinks/pgsink", "TestARefusedAdvanceDoesNotWaitForATransactionThatHoldsTheClaim"},
}
