package sqltx

import "github.com/epochfence/epochfence/internal/sql/sqltext"

// This file decides what a text does in SQLite beside reading and writing, by its keywords.
// effect.go decides whether a text that does so is sent.

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
