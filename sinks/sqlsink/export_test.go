package sqlsink

import (
	"github.com/epochfence/epochfence/internal/sql/sqltx"
	"github.com/epochfence/epochfence/operate"
)

// Blameless lets tests judge codes that are hard to come by.
var Blameless = sqltx.SQLite.Fault

// Selects returns the query that reads rows.
func (s *Sink) Selects(q operate.RowQuery) (query string, args []any) { return s.selects(q, ``) }

// Acts returns the query that counts the acts of operators.
func (s *Sink) Acts() string { return s.q.acts }
