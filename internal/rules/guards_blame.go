package main

// guardsOfBlame are those by which what a user's code does costs its message, and nothing
// but what it does.
var guardsOfBlame = []guard{
	{"blame", "the methods of a handler's error are called wherever it comes to", []edit{
		{"consumer/guard.go", "return inert.Error(f())", "return f()"},
	}, "consumer", "TestAnErrorWhoseMethodsPanicCostsItsMessageAndNothingElse"},
	{"blame", "the methods of a panic's value are called wherever it comes to", []edit{
		{"consumer/errors.go", "e.cause = inert.Error(err)\n\t\te.text = e.cause.Error()", "e.cause = err"},
	}, "consumer", "TestAnErrorWhoseMethodsPanicCostsItsMessageAndNothingElse"},
	{"blame", "a permanent error asks a typed nil for its text", []edit{
		{"consumer/errors.go", "return &permanentError{inert.Error(err)}", "return &permanentError{err}"},
	}, "consumer", "TestAnErrorWhoseMethodsPanicCostsItsMessageAndNothingElse"},
	{"blame", "an error's method Is runs on the goroutine that asks, which it may end", []edit{
		{"internal/inert/error.go", "go func() {\n\t\tyes := false\n\t\tdefer func() {\n\t\t\t_ = recover()\n\t\t\tanswer <- yes\n\t\t}()\n\t\tyes = f()\n\t}()", "answer <- f()"},
	}, "internal/inert", "TestNothingThatAnErrorHasPanics"},
	{"blame", "an error whose chain does not end is walked for ever", []edit{
		{"internal/inert/error.go", "if cause != nil && k.left > 0 {", "if cause != nil {"},
	}, "internal/inert", "TestNothingThatAnErrorHasPanics"},
	{"blame", "what is found in an error may be a nil pointer", []edit{
		{"internal/inert/error.go", "if v := reflect.ValueOf(err); v.Kind() == reflect.Pointer && v.IsNil() {", "if false {"},
	}, "internal/inert", "TestNothingThatAnErrorHasPanics"},
	{"blame", "pgsink asks a handler's error what it is", []edit{
		{"sinks/pgsink/tx.go", "inert.Error(apply(ctx, t))", "apply(ctx, t)"},
	}, "sinks/pgsink", onPostgres + "a handler's error whose methods panic, or that is a typed nil, is an error as any other"},
	{"blame", "pgsink asks an argument's error what it is", []edit{
		{"sinks/pgsink/tx.go", "pg, is := inert.As[*pgconn.PgError](err)", "pg, is := errors.AsType[*pgconn.PgError](err)"},
	}, "sinks/pgsink", "TestAnArgumentsErrorThatPanicsIsTheStatements"},
	{"blame", "the values of a copy are encoded on a goroutine of pgx's", []edit{
		{"sinks/pgsink/copy.go", "\ttag, err := copyRows(ctx, conn, table, columns, rows)\n", "\tvar tag pgconn.CommandTag\n\t_, err := conn.CopyFrom(ctx, table, columns, rows)\n"},
	}, "sinks/pgsink", "TestAValueThatPanicsInACopyPanicsInItsHandler"},
	{"blame", "the error of a copy's rows is asked for its text on a goroutine of its own", []edit{
		{"sinks/pgsink/copy.go", "w.CloseWithError(inert.Error(failed))", "w.CloseWithError(failed)"},
	}, "sinks/pgsink", "TestAValueThatPanicsInACopyPanicsInItsHandler"},
	{"blame", "the types of a table's columns are remembered after a copy has failed", []edit{
		{"sinks/pgsink/copy.go", "\t\tforgetColumnTypes(conn)\n", ""},
	}, "sinks/pgsink", "TestACopyAfterItsTableHasChangedFailsOnce"},
	{"blame", "sqlsink asks a handler's error for a driver's code", []edit{
		{"internal/sqltx/sqlite_code.go", "return inert.Try(e.Code), e", "return e.Code(), e"},
	}, "sinks/sqlsink", "TestAnErrorThatPanicsWhereItIsAskedForItsCode"},
	{"blame", "sqlsink asks a handler's error what it is", []edit{
		{"sinks/sqlsink/commit.go", "inert.Error(call(tx.guard.Context(), tx))", "errors.Join(call(tx.guard.Context(), tx), inert.Error(nil))"},
	}, "sinks/sqlsink", onSQLite + "a handler's error whose methods panic, or that is a typed nil, is an error as any other"},
}
