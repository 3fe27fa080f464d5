package pgsink

// ClaimLock lets tests hold a transaction open as a sink would.
var ClaimLock = claimLock

// SessionOf reports what a text changes of the session.
func SessionOf(sql string) (changed, deallocated bool) {
	s := sessionOf(sql)
	return s.has(changes), s.has(deallocates)
}
