package sqltx

import "github.com/epochfence/epochfence/internal/sql/sqltext"

// This file decides what a text does in MariaDB and MySQL beside reading and writing, by its keywords.
// effect.go decides whether a text that does so is sent.

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
