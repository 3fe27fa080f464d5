package pgsink

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/sql/sqltext"
	"github.com/epochfence/epochfence/operate"
)

// This file decides from a text alone whether a handler may send it, and whether it has to be
// alone: there is one list of the statements that are plain. What a text does not show, such as
// what a function does, begin.go finds at the end of the transaction. commit.go closes the
// connection.

// plainWords begin the statements that read and write, and those that change tables. All others,
// and those with a word of [sessionWords], may change the transaction or the session for the
// messages that share it. They run apart: alone in their transaction, on a connection that is
// closed behind it. Some of them, such as SET LOCAL and SAVEPOINT, leave nothing behind, and
// still cost a connection: which do would be a second list, whose gaps the next transaction
// would meet.
const plainWords = "select values table with show explain fetch move close " +
	"insert update delete merge copy truncate lock notify call " +
	"create alter drop comment grant revoke refresh analyze reindex cluster"

// sessionWords are the functions by which a plain statement changes the session, and those that
// execute a text, which is in quotes. A function of the application may call any of them: the check
// at the end compares what matters to others, see [sessionState], and cannot compare a lock of the
// session or the seed of random().
const sessionWords = "set_config setseed pg_advisory_lock pg_advisory_lock_shared pg_try_advisory_lock " +
	"pg_try_advisory_lock_shared pg_advisory_unlock pg_advisory_unlock_shared pg_advisory_unlock_all dblink_connect dblink_connect_u " +
	"query_to_xml query_to_xmlschema query_to_xml_and_xmlschema ts_stat ts_rewrite"

// encodingWords are settings that pgx relies on: with another value it would send texts that mean
// something else. SET with one of them is never sent.
const encodingWords = "standard_conforming_strings client_encoding names"

// kind is what the words of a text say about it.
type kind struct {
	apart bool
	never error // why it is not sent at all; nil for most texts
}

// refusal returns why a text may not be sent by a call that is alone in its transaction, or is not.
func (k kind) refusal(text string, alone bool) error {
	switch {
	case k.never != nil:
		return fmt.Errorf("%w: %q was not sent", k.never, excerpt(text))
	case k.apart && !alone:
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

// classify returns the kind of a text of any number of statements. A text whose quotes are
// ambiguous may do anything, and is apart.
func classify(text string) (all kind) {
	s := sqltext.New(text, sqltext.PostgreSQL)
	var one statementWords
	for {
		switch s.Next() {
		case sqltext.Word:
			one.add(s.Word())
			continue
		case sqltext.Other:
			one.last = ""
			continue
		case sqltext.Semicolon:
			all.add(one.kind())
			one = statementWords{}
			continue
		case sqltext.End:
		}
		all.add(one.kind())
		all.apart = all.apart || s.Unsure
		return all
	}
}

// add adds the kind of another statement. Its end of the transaction is the reason that counts.
func (k *kind) add(one kind) {
	k.apart = k.apart || one.apart
	if k.never == nil || one.never == epoch.ErrTxControl { //nolint:errorlint // it is one of three values
		k.never = one.never
	}
}

// statementWords are the words of one statement that were read so far. They are found at any
// place outside literals, quoted or not, because a name in quotes may be that of a function. A
// column with the name of such a function costs speed, and a call of one that was overlooked
// would cost more.
type statementWords struct {
	n             int
	first, second string
	last          string // the word just before; empty after any other token

	back     bool // ROLLBACK … TO
	session  bool // a word of sessionWords, or of a temporary table
	client   bool // FROM STDIN, TO STDOUT
	encoding bool // a word of encodingWords
}

// add reads a word. TEMP and TO mean something only at the beginning of a statement: behind it
// they may be names of columns.
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
		w.session = w.session || before == "into" && w.first != "insert" || w.first == "create" && w.n <= 5
	case "stdio":
		w.client = w.client || before == "from" || before == "to"
	case "encoding":
		w.encoding = true
	case "session":
		w.session = true
	}
}

// kind returns the kind of a statement that was read to its end. PREPARE TRANSACTION and COMMIT
// PREPARED end the transaction as COMMIT does. ROLLBACK TO goes back to a savepoint, and stays
// in it.
func (w *statementWords) kind() kind {
	switch w.first {
	case "": // nothing but comments
		return kind{}
	case "begin", "start", "commit", "end", "abort":
		return kind{never: epoch.ErrTxControl}
	case "rollback":
		if !w.back {
			return kind{never: epoch.ErrTxControl}
		}
	case "prepare":
		if w.second == "transaction" {
			return kind{never: epoch.ErrTxControl}
		}
	case "set":
		if w.encoding {
			return kind{never: errEncoding}
		}
	case "copy":
		if w.client {
			return kind{never: errCopyText}
		}
	}
	return kind{apart: w.session || !plain[w.first]}
}

var plain = func() map[string]bool {
	words := map[string]bool{}
	for w := range strings.FieldsSeq(plainWords) {
		words[w] = true
	}
	return words
}()

// known returns the name by which [statementWords] knows a word. It is "session" for all of
// [sessionWords], and for a schema of temporary tables.
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
	words := map[string]string{}
	for w := range strings.FieldsSeq(plainWords + " begin start commit end rollback abort prepare transaction to set into from") {
		words[w] = w
	}
	for as, all := range map[string]string{
		"temp": "temp temporary", "stdio": "stdin stdout", "encoding": encodingWords, "session": sessionWords,
	} {
		for w := range strings.FieldsSeq(all) {
			words[w] = as
		}
	}
	return words
}()

// single reports whether sql is certainly one statement. In the simple protocol a text may be
// several, and has as many answers.
func single(sql string) bool {
	sql = strings.TrimSpace(sql)
	return sql != "" && !strings.Contains(strings.TrimSuffix(sql, ";"), ";") && !strings.HasPrefix(sql, "--") && !strings.HasPrefix(sql, "/*")
}
