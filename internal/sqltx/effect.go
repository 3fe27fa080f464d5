package sqltx

import (
	"fmt"
	"unicode/utf8"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/sqltext"
)

// Effect is what a statement does beside what it reads and writes, as its text shows.
type Effect uint8

const (
	// Apart: it changes the transaction or the connection for those who share it, and
	// is sent only by a call that has its transaction to itself.
	Apart Effect = 1 << iota

	// Lasting: what it changes stays when the transaction has ended. The connection is
	// closed behind it.
	Lasting

	// Controls: it begins or ends transactions, and is never sent.
	Controls

	// Unsure: it may do any of that.
	Unsure
)

func (e Effect) has(what Effect) bool { return e&what != 0 }

// refusal returns why a text is not sent, or nil.
func (e Effect) refusal(text string, alone bool) error {
	switch {
	case e.has(Controls):
		return fmt.Errorf("%w: %q was not sent: return nil or an error instead", epoch.ErrTxControl, excerpt(text))
	case e.has(Apart) && !alone:
		return fmt.Errorf("%w: %q was not sent", epoch.ErrOwnTransaction, excerpt(text))
	}
	return nil
}

// excerpt is as much of a statement as an error tells.
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

// statement takes in the tokens of one statement and says what it does.
type statement interface {
	add(kind sqltext.Kind, word []byte, symbol byte)
	ends() bool // at a semicolon
	effect() Effect
}

// effectOf adds up what the statements of a text do. begin returns an empty one.
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
