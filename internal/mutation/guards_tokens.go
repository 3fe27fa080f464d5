package main

const (
	tokenSQL     = "lease/sqlfence/migrations/postgres/0001_token.sql"
	tokenTrigger = "lease/sqlfence/migrations/sqlite/0001_token.sql"
	tokenErrors  = "lease/sqlfence/errors.go"
)

// Tokens in the rows of users.
var guardsOfTokens = []guard{
	{"R1", "a lower token may write a row in PostgreSQL", []edit{
		{tokenSQL, "row_token > token or row_token = token", "row_token = token"},
	}, "lease/sqlfence", "TestALowerTokenIsRefusedAndAnEqualOneIsNot/PostgreSQL"},
	{"R1", "the token of a row may not write it again in PostgreSQL", []edit{
		{tokenSQL, "row_token > token or row_token = token and once is not false", "row_token >= token"},
	}, "lease/sqlfence", "TestALowerTokenIsRefusedAndAnEqualOneIsNot/PostgreSQL"},
	{"R1", "a token may write a row twice in the strict form in PostgreSQL", []edit{
		{tokenSQL, " or row_token = token and once is not false then", " then"},
	}, "lease/sqlfence", "TestATokenWritesARowOnceInTheStrictForm/PostgreSQL"},
	{"R1", "a null is not the strict form", []edit{
		{tokenSQL, "once is not false", "once"},
	}, "lease/sqlfence", "TestAFormThatIsNullIsTheStrictOne"},
	{"R1", "the numbers of two locks are compared in PostgreSQL", []edit{
		{tokenSQL, `if row_lock collate "C" is distinct from lock collate "C" then`, "if false then"},
	}, "lease/sqlfence", "TestNumbersOfTwoLocksAreNotCompared/PostgreSQL"},
	{"R1", "the collation of a column decides whether two locks are one in PostgreSQL", []edit{
		{tokenSQL, `row_lock collate "C" is distinct from lock collate "C"`, "row_lock is distinct from lock"},
	}, "lease/sqlfence", "TestNamesAreComparedByteByByteWhateverTheCollation/PostgreSQL"},
	{"R1", "a row with a number and no lock takes any token in PostgreSQL", []edit{
		{tokenSQL, "row_lock is null and coalesce(row_token, 0) = 0", "row_lock is null"},
	}, "lease/sqlfence", "TestARowWithANumberAndNoNameIsNoUnwrittenOne/PostgreSQL"},
	{"R1", "zero is a token in PostgreSQL", []edit{
		{tokenSQL, "token <= 0", "token < 0"},
	}, "lease/sqlfence", "TestAWriteWithoutATokenIsRefused/PostgreSQL"},
	{"R1", "the search_path of the caller has the operators of the comparison", []edit{
		{tokenSQL, "volatile set search_path = pg_catalog, pg_temp", "volatile"},
	}, "lease/sqlfence", "TestAFunctionThatIsCalledByARoleWithoutRightsComparesAsEver"},

	{"R1", "a lower token may write a row in SQLite", []edit{
		{tokenTrigger, "WHERE old.lock_epoch {{refused}} new.lock_epoch", "WHERE old.lock_epoch {{refused}} new.lock_epoch AND 0"},
	}, "lease/sqlfence", "TestALowerTokenIsRefusedAndAnEqualOneIsNot/SQLite"},
	{"R1", "the token of a row may not write it again in SQLite", []edit{
		{"lease/sqlfence/schema.go", `return trigger("token", table, ">")`, `return trigger("token", table, ">=")`},
	}, "lease/sqlfence", "TestALowerTokenIsRefusedAndAnEqualOneIsNot/SQLite"},
	{"R1", "a token may write a row twice in the strict form in SQLite", []edit{
		{"lease/sqlfence/schema.go", `return trigger("once", table, ">=")`, `return trigger("once", table, ">")`},
	}, "lease/sqlfence", "TestATokenWritesARowOnceInTheStrictForm/SQLite"},
	{"R1", "the numbers of two locks are compared in SQLite", []edit{
		{tokenTrigger, "WHERE old.lock_name IS NOT new.lock_name COLLATE BINARY", "WHERE 0"},
	}, "lease/sqlfence", "TestNumbersOfTwoLocksAreNotCompared/SQLite"},
	{"R1", "the collation of a column decides whether two locks are one in SQLite", []edit{
		{tokenTrigger, "WHERE old.lock_name IS NOT new.lock_name COLLATE BINARY", "WHERE old.lock_name IS NOT new.lock_name"},
	}, "lease/sqlfence", "TestNamesAreComparedByteByByteWhateverTheCollation/SQLite"},
	{"R1", "a row with a number and no lock takes any token in SQLite", []edit{
		{tokenTrigger, "old.lock_name IS NULL AND coalesce(old.lock_epoch, 0) = 0", "old.lock_name IS NULL"},
	}, "lease/sqlfence", "TestARowWithANumberAndNoNameIsNoUnwrittenOne/SQLite"},
	{"R1", "zero is a token in SQLite", []edit{
		{tokenTrigger, "new.lock_epoch <= 0", "new.lock_epoch < 0"},
	}, "lease/sqlfence", "TestAWriteWithoutATokenIsRefused/SQLite"},
	{"R1", "tokens are compared as texts in SQLite", []edit{
		{tokenTrigger, "typeof(new.lock_epoch) <> 'integer' OR", ""},
	}, "lease/sqlfence", "TestAColumnThatKeepsTextTakesNoToken"},
	{"R1", "a null forgets the token of a row in SQLite", []edit{
		{tokenTrigger, "AND old.lock_name IS NOT NULL AND old.lock_name IS NOT new.lock_name COLLATE BINARY", ""},
	}, "lease/sqlfence", "TestAWriteOfOneOfTheColumnsIsCompared"},
	{"R1", "a statement without the number is not compared in SQLite", []edit{
		{tokenTrigger, "UPDATE OF lock_name, lock_epoch", "UPDATE OF lock_epoch"},
	}, "lease/sqlfence", "TestAWriteOfOneOfTheColumnsIsCompared"},

	{"R3", "an error of a trigger of the user's is a refusal by its text in PostgreSQL", []edit{
		{tokenErrors, "kinds := []string{states[sqltx.SQLState(err)]}", "kinds := []string{refused, anotherLock, noToken}"},
	}, "lease/sqlfence", "TestAnErrorWithTheTextOfARefusalIsNone"},
	{"R3", "an error of SQLite is a refusal by its text", []edit{
		{tokenErrors, "if sqltx.IsRaisedBySQLiteTrigger(err) {", "if err != nil {"},
	}, "lease/sqlfence", "TestAnErrorWithTheTextOfARefusalIsNone"},
}
