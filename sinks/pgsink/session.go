package pgsink

import (
	"strings"

	"github.com/jackc/pgx/v5"
)

// sessionState is the part of the session that a function can change unseen, and that other
// calls depend on: they would fail, or write to other tables. Other changes are seen in the
// text of a statement: see [classify]. The two settings that differ between transactions
// come last.
const sessionState = "pg_catalog.concat_ws(' ', pg_catalog.current_setting('search_path'), current_user, session_user, " +
	"pg_catalog.current_setting('session_replication_role'), pg_catalog.current_setting('row_security'), " +
	"pg_catalog.current_setting('transaction_read_only'), pg_catalog.current_setting('TimeZone'), pg_catalog.pg_my_temp_schema(), " +
	"pg_catalog.current_setting('statement_timeout'), pg_catalog.current_setting('lock_timeout'))"

// sessionChanged tells whether the state is another than expected: than the parameter, or,
// where that is null, than what the transaction noted when it began. It calls texteq, as a
// search_path could replace the operator.
func sessionChanged(parameter string) string {
	return "(not pg_catalog.texteq(coalesce(" + parameter + "::text, pg_catalog.current_setting('epochfence.session', true), ''), " + sessionState + "))"
}

// Reading the state takes the server several microseconds. Each transaction reads it at its
// end. At its beginning it does so only on a new connection, or once a session was found
// changed between two transactions: by another user of the pool, by a pooler with several
// sessions, or by a function that nobody saw.

// knownSession is what a connection keeps: the role, and the state without the two settings
// at its end.
type knownSession struct{ state, role string }

// sessionName is the key of what a connection keeps.
const sessionName = "epochfence: session"

// expect returns the state of conn's session once it has these timeouts, and its role, or
// nil if they are to be read.
func (s *Sink) expect(conn *pgx.Conn, timeouts string) (state, role *string) {
	kept, is := conn.PgConn().CustomData()[sessionName].(*knownSession)
	if !is || s.varies.Load() {
		return nil, nil
	}
	now := kept.state + timeouts
	return &now, &kept.role
}

// keepState keeps what was read under these timeouts. If the server writes them in another
// way, nothing is kept, and the next transaction reads it again.
func keepState(conn *pgx.Conn, state, timeouts, role string) {
	if state, same := strings.CutSuffix(state, timeouts); same {
		conn.PgConn().CustomData()[sessionName] = &knownSession{state, role}
	}
}

// varied has the state read at each beginning from now on, if this transaction has relied
// on what the connection kept.
func (t *fenced) varied() {
	if t.expected != nil {
		t.sink.varies.Store(true)
	}
}

// changed takes in what the last statement says: "true" if the session has changed. A change
// that was seen in the text of a statement is known already, and how long it lasts.
func (t *fenced) changed(is string) {
	if is == "true" && t.altered == "" {
		t.varied()
		t.session |= lasting
	}
}

// forget has the state read again. Even what a statement changes for its transaction alone
// can leave something, such as a schema for temporary tables.
func (t *fenced) forget() { delete(t.conn.PgConn().CustomData(), sessionName) }
