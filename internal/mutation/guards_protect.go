package main

const (
	outsideSQL = "sinks/pgsink/migrations/0005_outside.sql"
	protects   = "sinks/pgsink/protect.go"

	fencedUncounted = "TestAFencedTransactionIsNeitherCountedNorRefused"
	outsideCounted  = "TestAWriteFromOutsideIsCountedOnceForItsTransactionByTableAndRole"
	outsideRefused  = "TestAWriteFromOutsideIsRefusedWithTheTableTheRoleAndTheWayToAllowIt"
	partitioned     = "TestPartitionsAreProtectedWithTheirTable"
	noWrite         = "TestWhatIsNoWriteFromOutsideIsNotCounted"
	apartWriters    = "TestWritersFromOutsideDoNotWaitForEachOther"

	noteFenced = "fenced := set_config('epochfence.fenced', pg_current_xact_id()::text, true);"
)

var guardsOfProtections = []guard{
	{"protect", "an advance of several partitions counts as a write from outside", []edit{
		{fenceSQL, "        end loop;\n    end loop;\n    " + noteFenced, "        end loop;\n    end loop;\n"},
	}, "sinks/pgsink", fencedUncounted},
	{"protect", "an advance of one partition counts as a write from outside", []edit{
		{fenceSQL, "            end if;\n            " + noteFenced, "            end if;\n"},
	}, "sinks/pgsink", fencedUncounted},
	{"protect", "a transaction that holds a claim counts as a write from outside", []edit{
		{fenceSQL, "perform refuse(in_group, in_topic, in_partition, in_claim, null, nonce);\n    " + noteFenced, "perform refuse(in_group, in_topic, in_partition, in_claim, null, nonce);\n"},
	}, "sinks/pgsink", fencedUncounted},
	{"protect", "SET CONSTRAINTS ALL IMMEDIATE decides about a write before the fence is checked", []edit{
		{outsideSQL, "set constraints postponed_decide deferred;", ""},
	}, "sinks/pgsink", fencedUncounted},
	{"protect", "a second SET CONSTRAINTS ALL IMMEDIATE decides about a write before the fence is checked", []edit{
		{outsideSQL, "if new.times < 10 and current_setting('epochfence.transaction', true) = now_xid then", "if false then"},
	}, "sinks/pgsink", fencedUncounted},
	{"protect", "a transaction that the handler has committed by itself is not from outside", []edit{
		{outsideSQL, "if new.times < 10 and current_setting('epochfence.transaction', true) = now_xid then\n        perform postpone(new.written, new.refuse, new.times + 1);\n        return null;",
			"if current_setting('epochfence.transaction', true) = now_xid then\n        return null;"},
	}, "sinks/pgsink", "TestAHandlerThatCommitsByItselfIsRefused"},
	{"protect", "each row of a write from outside is counted", []edit{
		{outsideSQL, "if pg_catalog.current_setting(setting, true) operator(pg_catalog.=) '1' then", "if false then"},
	}, "sinks/pgsink", outsideCounted},
	{"protect", "a first write outlives its transaction", []edit{
		{outsideSQL, "return pg_catalog.set_config(setting, '1', true) is not null;", "return pg_catalog.set_config(setting, '1', false) is not null;"},
	}, "sinks/pgsink", apartWriters},
	{"protect", "a write from outside is counted where it is to be refused", []edit{
		{outsideSQL, "if new.refuse then", "if false then"},
	}, "sinks/pgsink", outsideRefused},
	{"protect", "the roles that may write to a protected table may not", []edit{
		{outsideSQL, "or session_user = any (tg_argv[2:])", ""},
	}, "sinks/pgsink", noWrite},
	{"protect", "a partition is counted as a table of its own", []edit{
		{outsideSQL, "coalesce(root, tg_relid)", "tg_relid"},
	}, "sinks/pgsink", partitioned},
	{"protect", "a protected table does not see TRUNCATE", []edit{
		{protects, "if !has(true) {", "if false {"},
	}, "sinks/pgsink", outsideRefused},
	{"protect", "a new partition does not see TRUNCATE after another protect", []edit{
		{protects, "return a.missing(have, a.found), nil", "return nil, nil"},
	}, "sinks/pgsink", partitioned},
	{"protect", "a disabled trigger is taken for one that works", []edit{
		{protects, "if !a.attached && have.enabled && have.mode", "if !a.attached && have.mode"},
	}, "sinks/pgsink", "TestProtectingAgainReplacesTheConfigurationAndUnprotectLeavesNothing"},
	{"protect", "the counts of a table outlive its protection", []edit{
		{protects, "sql = append(sql, a.forget(m.table[0], m.table[1]))", ""},
	}, "sinks/pgsink", "TestProtectingAgainReplacesTheConfigurationAndUnprotectLeavesNothing"},
	{"protect", "counts of writes from outside are never merged", []edit{
		{outsideSQL, "if left(added::text, 1) = '0' and", "if false and"},
	}, "sinks/pgsink", apartWriters},
	{"protect", "counts of writes from outside are merged under every isolation", []edit{
		{outsideSQL, "left(added::text, 1) = '0' and current_setting('transaction_isolation') = 'read committed'", "left(added::text, 1) = '0'"},
	}, "sinks/pgsink", apartWriters},
	{"protect", "writers from outside fail each other under SERIALIZABLE", []edit{
		{outsideSQL, "set search_path = \"epochfence\", pg_temp set enable_seqscan = off", "set search_path = \"epochfence\", pg_temp"},
	}, "sinks/pgsink", apartWriters},
	{"protect", "a merge of counts waits for other writers", []edit{
		{outsideSQL, "limit 1024 for update skip locked", "limit 1024 for update"},
	}, "sinks/pgsink", apartWriters},
	{"protect", "a writer needs privileges to be counted", []edit{
		{outsideSQL, `function "epochfence".outside() returns trigger
language plpgsql security definer`, `function "epochfence".outside() returns trigger
language plpgsql`},
	}, "sinks/pgsink", outsideCounted},
	{"protect", "protect waits without an end for a table that is in use", []edit{
		{protects, "fmt.Sprintf(\"set local lock_timeout = %d\", ms(o.ClaimTimeout))", "fmt.Sprintf(\"set local lock_timeout = %d\", 0)"},
	}, "sinks/pgsink", "TestProtectWaitsForTheTableOnlyForAWhile"},
}
