package consumertest

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/epochfence/epochfence/epoch"
)

// This file has what a Check says: the story, the rows, and the usual cause of what it has seen.

// finding is a fault of a handler.
type finding struct {
	story       []string
	differences []difference
	cause       cause
}

// about is a finding about one message.
func about(m epoch.Message, ds []difference, c cause, story string) *finding {
	return &finding{[]string{"The messages before it were applied, each in a transaction of its own.", "The next one is " + name(m) + ".", story}, ds, c}
}

// found makes a finding of a message that fails for good.
func found(err error) (*finding, error) {
	if f, is := errors.AsType[*failure](err); is {
		c := causeError
		if f.onFailure {
			c = causeOnFailure
		}
		return about(f.m, nil, c.orFailed(f.err), fmt.Sprintf("Two attempts at it failed: %v.", f.err)), nil
	}
	return nil, err
}

// poison is how every second message, or each, fails in a history.
const poison = "Some, or all, failed after their last statement, and went to OnFailure."

const shown = 3 // tables, and lines of each

func (f *finding) String() string {
	var b strings.Builder
	for i, sentence := range f.story {
		fmt.Fprintf(&b, "  %d. %s\n", i+1, sentence)
	}
	for _, d := range f.differences[:min(len(f.differences), shown)] {
		fmt.Fprintf(&b, "     %s\n", d.table)
		for sign, lines := range []([]line){d.first, d.then} {
			for _, l := range lines[:min(len(lines), shown)] {
				fmt.Fprintf(&b, "       %c %.200s\n", "-+"[sign], l)
			}
			if len(lines) > shown {
				fmt.Fprintf(&b, "       %c and %d more\n", "-+"[sign], len(lines)-shown)
			}
		}
	}
	fmt.Fprintf(&b, "The usual cause is %s.\n", f.cause)
	return b.String()
}

type cause string

const (
	causeOutside    cause = "a write outside the transaction, through a *sql.DB or a pool. Write through tx, which is rolled back with the message"
	causeClock      cause = "a clock. Use the message's Time, give the column a default, or name it in Options.Ignore"
	causeRandom     cause = "random numbers. Derive ids from the message's partition and offset, give the column a default, or name it in Options.Ignore"
	causeCounter    cause = "a counter that a rollback does not set back: in memory, of the connection, or a sequence. Count in a row. If nobody minds gaps and doubled numbers, name the column in Options.Ignore"
	causeMemory     cause = "memory: a variable keeps that the message was seen, and a rollback does not undo that. Keep it in a row"
	causeAttempts   cause = "memory: a variable keeps how far the handler came with the message, or how often it was called. Keep that in a row"
	causeOrder      cause = "the order of a Go map, or of goroutines. Sort before writing"
	causeCut        cause = "that the handler counts or combines the messages of one call, or reads on another connection, which does not see what the messages before have written, or depends on the order of partitions"
	causeOwner      cause = "the epoch: the handler makes ids of it, or remembers it"
	causeConnection cause = "another connection, which waits for the transaction that waits for the handler. Write and lock through tx"
	causeError      cause = "the handler itself, or the rows that the test begins with. If the message should fail, give the handlers an OnFailure"
	causeOnFailure  cause = "OnFailure itself. It must write only what can be written for any message"
	causePart       cause = "that the handler decides about one item by what it reads of another, which may be written already. Have the change of that one return an outcome, and decide by the outcome"
	causeParts      cause = "that the handler changes an item once for several messages. Change it once for each of them: another transaction may have others of them"
	causeAfter      cause = "what the handler or OnFailure keeps in memory, or reads on another connection, about a message before that has failed. Keep it in a row, and read it through tx"
	causeCalls      cause = "a call of another system, which a rollback does not undo. Give it an idempotency key that is derived from the message, or use the outbox"
	causeRewind     cause = "writes that add up. Keep a table of the messages that were applied, or set values instead of adding to them"
	causeKept       cause = "a tx that is kept after the handler has returned, in a variable or a goroutine. Each call has its own"
)

// orFailed returns the cause of an error that says more than c.
func (c cause) orFailed(err error) cause {
	text := err.Error()
	switch {
	case strings.Contains(text, "after its handler"):
		return causeKept
	case errors.Is(err, context.DeadlineExceeded), strings.Contains(text, "is locked"), strings.Contains(text, "57014"), strings.Contains(text, "55P03"):
		return causeConnection
	}
	return c
}

// of returns the cause of differences, if their values say more than c.
func (c cause) of(ds []difference) cause {
	seen := causeOf(ds)
	if c == causeMemory || seen == causeClock || seen == causeOrder {
		return seen
	}
	return c
}

// causeOf is about two calls on the same rows.
func causeOf(ds []difference) cause {
	c := causeMemory
	for _, d := range ds {
		if len(d.first) != len(d.then) {
			return causeMemory
		}
		if len(d.first) > 1 && permuted(d) {
			return causeOrder
		}
		for i, l := range d.first {
			for j, a := range l[:min(len(l), len(d.then[i]))] {
				b := d.then[i][j]
				x, isX := number(value(a))
				y, isY := number(value(b))
				switch {
				case a == b:
				case isNow(a) && isNow(b):
					return causeClock
				case isX && isY && y-x > 0 && y-x < 1000:
					c = causeCounter
				case isX && isY && x-y > 0 && x-y < 1000: // something was left out the second time
				case c == causeMemory:
					c = causeRandom
				}
			}
		}
	}
	return c
}

func value(cell string) string {
	_, v, _ := strings.Cut(cell, "=")
	return v
}

// permuted reports whether the columns have the same values, in other combinations.
func permuted(d difference) bool {
	cells := func(ls []line) []string { return slices.Sorted(slices.Values(slices.Concat(ls...))) }
	return slices.Equal(cells(d.first), cells(d.then))
}

var digits = regexp.MustCompile(`\d{9,}`)

// isNow reports whether a value has the present time in it, as text or counted in a usual unit.
func isNow(cell string) bool {
	now := time.Now()
	for day := -1; day <= 1; day++ {
		if strings.Contains(cell, now.AddDate(0, 0, day).Format(time.DateOnly)) {
			return true
		}
	}
	for _, d := range digits.FindAllString(cell, -1) {
		n, is := number(d)
		for _, unit := range []int64{now.Unix(), now.UnixMilli(), now.UnixMicro(), now.UnixNano()} {
			if is && n > unit-unit/10_000 && n < unit+unit/10_000 {
				return true
			}
		}
	}
	return false
}
