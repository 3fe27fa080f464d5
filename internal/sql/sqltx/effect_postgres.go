package sqltx

import (
	"bytes"

	"github.com/epochfence/epochfence/internal/sql/sqltext"
)

// This file decides what a text does in PostgreSQL beside reading and writing, by its keywords.
// effect.go decides whether a text that does so is sent.

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
