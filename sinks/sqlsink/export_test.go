package sqlsink

import "github.com/epochfence/epochfence/internal/sql/sqltx"

// Blameless lets tests judge codes that are hard to come by.
var Blameless = sqltx.SQLite.Fault

// HangsQuery is how a sink with the usual names reads what hung.
func HangsQuery() string { return newQueries(SQLite, "epochfence_").hangs }
