package pgsink

import (
	"strings"

	"github.com/jackc/pgx/v5"
)

// sessionState is what one call could change of the session, by a function that it calls,
// so that others fail or write to other tables. Of what is not in it statements tell by
// their text: see [classify]. The settings that each transaction has anew come last.
const sessionState = "pg_catalog.concat_ws(' ', pg_catalog.current_setting('search_path'), current_user, session_user, " +
	"pg_catalog.current_setting('session_replication_role'), pg_catalog.current_setting('row_security'), " +
	"pg_catalog.current_setting('transaction_read_only'), pg_catalog.current_setting('TimeZone'), pg_catalog.pg_my_temp_schema(), " +
	"pg_catalog.current_setting('statement_timeout'), pg_catalog.current_setting('lock_timeout'))"

// sessionChanged compares it with what it was: with the parameter, or else with what the
// transaction has noted at its beginning. It names the function of the operator, which a
// search_path could replace.
func sessionChanged(parameter string) string {
	return "(not pg_catalog.texteq(coalesce(" + parameter + "::text, pg_catalog.current_setting('epochfence.session', true), ''), " + sessionState + "))"
}

// isChanged is what the last statement then says.
const isChanged = "true"

// To read the state takes the server several microseconds. So it is read at the end of each
// transaction, but at the beginning only where the connection is new, or where a session
// has once been another than at the end of the last transaction: a handler has changed it,
// the pool's other users do, or a pooler has several.

// session is what a connection keeps: the state, without the settings that come last, and the
// role.
type session struct{ state, role string }

const sessionName = "epochfence: session"

// expect returns the state of conn's session once it has these timeouts, and its role, or
// nil if they are to be read.
func (s *Sink) expect(conn *pgx.Conn, timeouts string) (state, role *string) {
	kept, is := conn.PgConn().CustomData()[sessionName].(*session)
	if !is || s.varies.Load() {
		return nil, nil
	}
	now := kept.state + timeouts
	return &now, &kept.role
}

// keepState keeps what was read under these timeouts. Where the server writes them
// otherwise, it is read again the next time.
func keepState(conn *pgx.Conn, state, timeouts, role string) {
	if state, same := strings.CutSuffix(state, timeouts); same {
		conn.PgConn().CustomData()[sessionName] = &session{state, role}
	}
}

// varied takes in that the session was not as it should have been.
func (t *fenced) varied() {
	if t.expected != nil {
		t.sink.varies.Store(true)
	}
}

// changed takes in that a transaction which is committed has changed the session. Where a
// statement has said so by itself, that tells how long it lasts.
func (t *fenced) changed() {
	if t.altered == "" {
		t.varied()
		t.session |= lasting
	}
}

// forget has the state read again. Even what a statement changes for its transaction alone
// can leave something, such as a schema for temporary tables.
func (t *fenced) forget() { delete(t.conn.PgConn().CustomData(), sessionName) }
