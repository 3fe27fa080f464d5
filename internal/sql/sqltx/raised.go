package sqltx

// This file finds the codes of databases' errors for the stores. What a code means for the
// transaction is decided by Classify, in postgres.go and sqlite.go.

// SQLState returns the SQLSTATE of PostgreSQL's error in err, or "" if there is none.
func SQLState(err error) string {
	if err == nil {
		return ""
	}
	return sqlState(err)
}

const sqliteConstraintTrigger = 1811

// IsRaisedBySQLiteTrigger reports whether a trigger has raised err, through any driver that
// [SQLite] knows.
func IsRaisedBySQLiteTrigger(err error) bool {
	if err == nil {
		return false
	}
	code, of := resultCode(err)
	return of != nil && code == sqliteConstraintTrigger
}
