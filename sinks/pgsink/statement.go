package pgsink

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/sql/sqltext"
	"github.com/epochfence/epochfence/operate"
)

// This file decides from a text alone whether a handler may send it, and whether it has to be alone.
// begin.go finds what a text does not show.

// class is a set of the effects of a statement beside reading and writing.
type class uint8

const (
	// apart: it changes the transaction or the session for the others that share it. It is sent
	// only by a call that has its transaction to itself.
	apart class = 1 << iota

	// lasting: its change outlives the transaction. The connection is closed afterwards.
	lasting

	// deallocates: pgx's prepared statements are gone.
	deallocates

	// controls: it begins or ends a transaction. It is never sent.
	controls

	// copies: it is a COPY that continues in another protocol. It is never sent.
	copies

	// encodes: it changes settings that pgx relies on. It is never sent.
	encodes

	// unsure: it may do any of this, because its quotes are ambiguous.
	unsure
)

func (c class) has(what class) bool { return c&what != 0 }

func (c class) refusal(text string, alone bool) error {
	switch {
	case c.has(controls):
		return fmt.Errorf("%w: %q was not sent", epoch.ErrTxControl, excerpt(text))
	case c.has(copies):
		return fmt.Errorf("%w: %q was not sent", errCopyText, excerpt(text))
	case c.has(encodes):
		return fmt.Errorf("%w: %q was not sent", errEncoding, excerpt(text))
	case c.has(apart) && !alone:
		return fmt.Errorf("%w: %q", epoch.ErrOwnTransaction, excerpt(text))
	}
	return nil
}

func excerpt(text string) string {
	short := operate.Text(text, 200)
	if len(short) < len(text) {
		short += "…"
	}
	return short
}

// classify returns what the statements of a text do, by their words. It does not see what a
// function does that a statement calls: see [Sink.Commit].
func classify(text string) class {
	s := sqltext.New(text, sqltext.PostgreSQL)
	var (
		all class
		one statementWords
	)
	for {
		switch s.Next() {
		case sqltext.Word:
			one.add(s.Word())
		case sqltext.Other:
			one.other()
		case sqltext.Semicolon:
			all |= one.class()
			one = statementWords{}
		case sqltext.End:
			if all |= one.class(); s.Unsure {
				all |= apart | lasting | unsure
			}
			return all
		}
	}
}

type statementWords struct {
	n             int
	first, second string
	last          string // the word just before; empty after any other token
	found         class  // by words at any place

	back           bool // ROLLBACK … TO
	temp, dropped  bool // it creates a temporary object; ON COMMIT DROP
	held           bool // WITH HOLD
	client         bool // FROM STDIN, TO STDOUT
	encoding       bool // it names a setting that pgx relies on
	settings, ends int  // calls of set_config, and words TRUE, which must be its last argument
}

func (w *statementWords) other() { w.last = "" }

func (w *statementWords) add(word []byte) {
	w.n++
	before := w.last
	w.last = known(word)
	switch w.n {
	case 1:
		w.first = w.last
	case 2:
		w.second = w.last
	}
	switch w.last {
	case "to":
		w.back = w.back || w.n <= 3
	case "temp":
		w.temp = w.temp || before == "into" && w.first != "insert" || w.first == "create" && w.n <= 5
	case "hold":
		w.held = w.held || before == "with"
	case "drop":
		w.dropped = w.dropped || before == "commit"
	case "stdio":
		w.client = w.client || before == "from" || before == "to"
	case "encoding":
		w.encoding = true
	case "set_config":
		w.settings++
	case "true":
		w.ends++
	case "session":
		w.found |= apart | lasting
	}
}

// known returns the name by which [statementWords] knows a word. It is "session" for all functions
// that change the session, and for a schema of temporary tables.
func known(word []byte) string {
	if w, is := knownWords[string(word)]; is {
		return w
	}
	if bytes.HasPrefix(word, []byte("pg_temp")) {
		return "session"
	}
	return "other"
}

var knownWords = func() map[string]string {
	words := map[string]string{"temporary": "temp"}
	for w := range strings.FieldsSeq("begin start commit end rollback abort prepare transaction to savepoint release set local " +
		"constraints reset discard deallocate listen unlisten load declare do create insert into with hold drop copy from " +
		"set_config true temp") {
		words[w] = w
	}
	for as, all := range map[string]string{
		"encoding": "standard_conforming_strings client_encoding names",
		"stdio":    "stdin stdout",
		"session": "pg_advisory_lock pg_advisory_lock_shared pg_try_advisory_lock pg_try_advisory_lock_shared pg_advisory_unlock " +
			"pg_advisory_unlock_shared pg_advisory_unlock_all setseed dblink_connect dblink_connect_u",
	} {
		for w := range strings.FieldsSeq(all) {
			words[w] = as
		}
	}
	return words
}()

func (w *statementWords) class() class {
	c := w.found
	if w.settings > 0 {
		c |= apart
		if w.ends < w.settings {
			c |= lasting
		}
	}
	if w.temp {
		c |= apart
		if !w.dropped {
			c |= lasting
		}
	}
	switch w.first {
	case "begin", "start", "commit", "end", "abort":
		return controls
	case "rollback":
		if !w.back {
			return controls
		}
		return c | apart
	case "prepare":
		if w.second == "transaction" {
			return controls
		}
		return c | apart | lasting
	case "savepoint", "release":
		return c | apart
	case "set":
		if w.encoding {
			return encodes
		}
		switch w.second {
		case "local", "constraints", "transaction":
			return c | apart
		}
		return c | apart | lasting
	case "deallocate", "discard":
		return c | apart | lasting | deallocates
	case "reset", "listen", "unlisten", "load":
		return c | apart | lasting
	case "do": // its block may do anything
		return c | apart | lasting | deallocates
	case "declare":
		if w.held {
			c |= lasting
		}
		return c | apart
	case "copy":
		if w.client {
			return copies
		}
	}
	return c
}

// single reports whether sql is certainly one statement.
func single(sql string) bool {
	sql = strings.TrimSpace(sql)
	return sql != "" && !strings.Contains(strings.TrimSuffix(sql, ";"), ";") && !strings.HasPrefix(sql, "--") && !strings.HasPrefix(sql, "/*")
}
