package sqltx

import (
	"fmt"
	"unicode/utf8"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/sql/sqltext"
)

// This file decides which statements of a handler are refused: those that begin or end a
// transaction, always; those that change it for others, unless the handler is alone in it. Which
// statement does what is decided by its first words, in effect_postgres.go and effect_sqlite.go.

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
