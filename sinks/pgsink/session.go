package pgsink

import (
	"strings"

	"github.com/jackc/pgx/v5"
)

// This file decides whether a handler has changed the session unseen, by comparing its state at the
// end. statement.go sees the changes that a text shows.

// sessionState is the part of a session's state that a function can change unseen and that other
// calls depend on: with another state they fail, or write to other tables. [classify] finds other
// changes in the text of a statement. The two settings that differ between transactions come last.
const sessionState = "pg_catalog.concat_ws(' ', pg_catalog.current_setting('search_path'), current_user, session_user, " +
	"pg_catalog.current_setting('session_replication_role'), pg_catalog.current_setting('row_security'), " +
	"pg_catalog.current_setting('transaction_read_only'), pg_catalog.current_setting('TimeZone'), pg_catalog.pg_my_temp_schema(), " +
	"pg_catalog.current_setting('statement_timeout'), pg_catalog.current_setting('lock_timeout'))"

// sessionChanged returns an expression for whether the state differs from the parameter or, if the
// parameter is null, from the state that the transaction noted when it began. The expression calls
// texteq because a search_path could replace the operator.
func sessionChanged(parameter string) string {
	return "(not pg_catalog.texteq(coalesce(" + parameter + "::text, pg_catalog.current_setting('epochfence.session', true), ''), " + sessionState + "))"
}

// Reading the state takes the server several microseconds. A transaction always reads it at its
// end. It reads it at its beginning on a new connection, and once any session has changed between
// transactions: by another user of the pool, a pooler with several sessions, or an unseen function.

// knownSession is a connection's role, and its state without the two settings at the end.
type knownSession struct{ state, role string }

const sessionName = "epochfence: session"

// expect returns the role of conn's session and its state with these timeouts, or nil if the
// transaction must read them.
func (s *Sink) expect(conn *pgx.Conn, timeouts string) (state, role *string) {
	kept, is := conn.PgConn().CustomData()[sessionName].(*knownSession)
	if !is || s.varies.Load() {
		return nil, nil
	}
	now := kept.state + timeouts
	return &now, &kept.role
}

// keepState keeps a state that was read under these timeouts. If the server formats the timeouts
// differently, nothing is kept and the next transaction reads the state again.
func keepState(conn *pgx.Conn, state, timeouts, role string) {
	if state, same := strings.CutSuffix(state, timeouts); same {
		conn.PgConn().CustomData()[sessionName] = &knownSession{state, role}
	}
}

// varied makes transactions read the state as they begin, if this one relied on a kept state.
func (t *fenced) varied() {
	if t.expected != nil {
		t.sink.varies.Store(true)
	}
}

// changed records the answer of the last statement: "true" if the session has changed. A change
// that was seen in the text of a statement is recorded already, with how long it lasts.
func (t *fenced) changed(is string) {
	if is == "true" && t.altered == "" {
		t.varied()
		t.session |= lasting
	}
}

// forget makes the next transaction read the state. Even a statement that changes only its
// transaction can leave something behind, such as a schema for temporary tables.
func (t *fenced) forget() { delete(t.conn.PgConn().CustomData(), sessionName) }
