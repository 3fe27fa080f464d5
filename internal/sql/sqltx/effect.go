package sqltx

import (
	"bytes"
	"fmt"
	"unicode/utf8"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/sql/sqltext"
)

// This file decides which statements of a handler are refused: those that begin or end a transaction,
// always; those that change it for others, unless the handler is alone in it. Which statement does what is
// decided by its keywords, for each database.

// Effect is a set of what a statement does beside reading and writing, judging by its text.
type Effect uint8

const (
	// Apart: it changes the transaction or the connection for the others that share it. It is sent
	// only by a call that has its transaction to itself.
	Apart Effect = 1 << iota

	// Lasting: its change outlives the transaction. The connection is closed afterwards.
	Lasting

	// Controls: it begins or ends a transaction. It is never sent.
	Controls

	// Unsure: it may do any of that.
	Unsure
)

func (e Effect) has(what Effect) bool { return e&what != 0 }

func (e Effect) refusal(text string, alone bool) error {
	switch {
	case e.has(Controls):
		return fmt.Errorf("%w: %q was not sent: return nil or an error instead", epoch.ErrTxControl, excerpt(text))
	case e.has(Apart) && !alone:
		return fmt.Errorf("%w: %q was not sent", epoch.ErrOwnTransaction, excerpt(text))
	}
	return nil
}

func excerpt(text string) string {
	const most = 200
	if len(text) <= most {
		return text
	}
	n := most
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n] + "…"
}

type statement interface {
	add(kind sqltext.Kind, word []byte, symbol byte)
	ends() bool // reports whether a semicolon ends it
	effect() Effect
}

// beginning is what both servers' statements begin with.
type beginning struct {
	words         int
	first, second string
	to            bool // ROLLBACK … TO
	lasting       bool
}

// word takes the next word, and returns it.
func (b *beginning) word(word []byte) string {
	b.words++
	w := string(word)
	switch b.words {
	case 1:
		b.first = w
	case 2:
		b.second = w
	}
	b.to = b.to || w == "to" && b.words <= 3
	return w
}

func (*beginning) ends() bool { return true }

// effectOf combines the effects of a text's statements. begin returns an empty statement.
func effectOf(text string, d sqltext.Dialect, begin func() statement) (all Effect) {
	s := sqltext.New(text, d)
	one := begin()
	for {
		switch kind := s.Next(); kind {
		case sqltext.Word, sqltext.Other:
			one.add(kind, s.Word(), s.Symbol)
		case sqltext.Semicolon:
			if !one.ends() {
				continue
			}
			all |= one.effect()
			one = begin()
		case sqltext.End:
			all |= one.effect()
			if s.Unsure {
				all |= Apart | Lasting | Unsure
			}
			return all
		}
	}
}

func (mariadb) Effect(text string) Effect {
	return effectOf(text, sqltext.MariaDB, func() statement { return new(mariadbStatement) })
}

// mariadbStatement is one of https://mariadb.com/kb/en/sql-statements/.
type mariadbStatement struct {
	beginning
	last       string // the last token, if it is a word
	colon      bool   // the last token is a colon
	temporary  bool   // CREATE TEMPORARY TABLE and DROP TEMPORARY TABLE
	autocommit bool
}

func (s *mariadbStatement) add(kind sqltext.Kind, word []byte, symbol byte) {
	colon, before := s.colon, s.last
	s.colon, s.last = symbol == ':', ""
	if kind != sqltext.Word {
		s.lasting = s.lasting || colon && symbol == '=' || before == "into" && symbol == '@' // variables
		if s.words == 0 && symbol != '(' {
			s.first, s.words = "?", 1
		}
		return
	}
	w := s.word(word)
	s.last = w
	switch w {
	case "table":
		s.temporary = s.temporary || before == "temporary" && s.words <= 5
	case "autocommit":
		s.autocommit = true
	case "get_lock":
		s.lasting = true
	}
}

// effect follows https://mariadb.com/kb/en/sql-statements-that-cause-an-implicit-commit/ and
// https://dev.mysql.com/doc/refman/8.4/en/implicit-commit.html.
func (s *mariadbStatement) effect() (e Effect) {
	if s.lasting {
		e = Apart | Lasting
	}
	switch s.first {
	case "", "select", "insert", "update", "delete", "replace", "with", "values", "explain", "describe", "desc", "show", "do", "signal":
		return e
	case "begin", "commit", "start", "stop", "xa", "lock", "unlock", "alter", "truncate", "rename", "grant", "revoke", "flush", "reset",
		"optimize", "repair", "check", "cache", "change", "install", "uninstall", "purge", "import", "clone", "restart", "shutdown", "backup":
		return e | Controls
	case "create", "drop":
		if s.temporary || s.second == "prepare" {
			return e | Apart | Lasting
		}
		return e | Controls
	case "analyze": // ANALYZE FORMAT=JSON SELECT runs the query
		if s.second == "table" || s.second == "local" || s.second == "no_write_to_binlog" {
			return e | Controls
		}
		return e
	case "load":
		if s.second == "index" {
			return e | Controls
		}
		return e
	case "rollback":
		if !s.to {
			return e | Controls
		}
		return e | Apart
	case "savepoint", "release":
		return e | Apart
	case "set":
		if s.autocommit || s.second == "password" || s.second == "default" {
			return e | Controls
		}
		if s.second == "statement" { // SET STATEMENT … FOR any statement
			return e | Apart | Lasting | Unsure
		}
		return e | Apart | Lasting
	case "use", "handler", "prepare", "deallocate":
		return e | Apart | Lasting
	}
	return e | Apart | Lasting | Unsure // CALL, EXECUTE, and whatever is new
}

func (postgres) Effect(text string) Effect {
	return effectOf(text, sqltext.PostgreSQL, func() statement { return new(postgresStatement) })
}

// postgresStatement is one of https://www.postgresql.org/docs/current/sql-commands.html.
type postgresStatement struct{ beginning }

func (s *postgresStatement) add(kind sqltext.Kind, word []byte, _ byte) {
	if kind != sqltext.Word {
		return
	}
	switch s.word(word) {
	case "temp", "temporary":
		s.lasting = true
	case "set_config", "hold", "setseed",
		"pg_advisory_lock", "pg_advisory_lock_shared", "pg_try_advisory_lock", "pg_try_advisory_lock_shared":
		s.lasting = true
	default:
		s.lasting = s.lasting || bytes.HasPrefix(word, []byte("pg_temp"))
	}
}

func (s *postgresStatement) effect() (e Effect) {
	if s.lasting {
		e = Apart | Lasting
	}
	switch s.first {
	case "begin", "start", "commit", "end", "abort":
		return e | Controls
	case "rollback":
		if !s.to {
			return e | Controls
		}
		return e | Apart
	case "prepare":
		if s.second == "transaction" {
			return e | Controls
		}
		return e | Apart | Lasting
	case "savepoint", "release":
		return e | Apart
	case "set":
		switch s.second {
		case "local", "constraints", "transaction":
			return e | Apart
		}
		return e | Apart | Lasting
	case "reset", "discard", "deallocate", "listen", "unlisten", "load", "do", "call":
		return e | Apart | Lasting
	}
	return e
}

func (sqlite) Effect(text string) Effect {
	return effectOf(text, sqltext.SQLite, func() statement { return new(sqliteStatement) })
}

// sqliteStatement is one of https://www.sqlite.org/lang.html.
type sqliteStatement struct {
	tokens int
	first  string // the keyword that says what it is, after EXPLAIN
	to     int    // the token TO of a ROLLBACK TO
	made   int    // the number of words after CREATE
	schema bool   // the last token is the name of the schema of temporary objects
	temp   bool   // it names that schema

	trigger   bool // it is a CREATE TRIGGER, within its BEGIN and END
	semicolon bool // the last token is one
}

func (s *sqliteStatement) add(kind sqltext.Kind, word []byte, symbol byte) {
	s.tokens++
	after := s.semicolon
	s.semicolon = false
	if symbol == '.' && s.schema {
		s.temp = true
	}
	w := string(word) // a literal too is a name where a name is wanted
	s.schema = w == "temp"
	if s.trigger && after && w == "end" {
		s.trigger = false
	} else if kind == sqltext.Word {
		s.keyword(w)
	} else if s.first == "" {
		s.first = "?"
	}
}

func (s *sqliteStatement) keyword(w string) {
	switch s.first {
	case "":
		s.first = sqliteKeyword(w)
	case "explain":
		if w != "query" && w != "plan" {
			s.first = sqliteKeyword(w) // a PRAGMA is run by EXPLAIN too
		}
	case "rollback":
		if w == "to" && s.tokens <= 3 {
			s.to = s.tokens
		}
	case "create":
		s.made++
		s.temp = s.temp || s.made == 1 && (w == "temp" || w == "temporary")
		s.trigger = s.trigger || s.made <= 2 && w == "trigger"
	}
}

// ends is false within a trigger, whose statements have semicolons of their own. A trigger ends
// with an END after a semicolon. If the text is not really a trigger, SQLite runs nothing that
// follows it.
func (s *sqliteStatement) ends() bool {
	s.semicolon = true
	return !s.trigger
}

func sqliteKeyword(w string) string {
	switch w {
	case "explain", "rollback", "create",
		"begin", "commit", "end",
		"savepoint", "release",
		"pragma", "attach", "detach", "vacuum":
		return w
	case "alter", "analyze", "delete", "drop", "insert", "reindex", "replace", "select", "update", "values", "with":
		return "writes"
	}
	return "?"
}

func (s *sqliteStatement) effect() (e Effect) {
	if s.temp {
		e = Apart | Lasting
	}
	switch s.first {
	case "begin", "commit", "end":
		return e | Controls
	case "rollback":
		if s.to == 0 || s.to == s.tokens { // ROLLBACK TRANSACTION "to" ends one of that name
			return e | Controls
		}
		return e | Apart
	case "savepoint", "release":
		return e | Apart
	case "pragma", "attach", "detach", "vacuum":
		return e | Apart | Lasting
	case "?":
		return e | Apart | Lasting | Unsure
	}
	return e
}
