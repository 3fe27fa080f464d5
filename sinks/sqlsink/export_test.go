package sqlsink

import "github.com/epochfence/epochfence/internal/sqltx"

// Blameless lets tests judge codes that are hard to come by.
var Blameless = sqltx.SQLite.Fault
