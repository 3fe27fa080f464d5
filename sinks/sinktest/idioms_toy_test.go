package sinktest

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/sinks/memsink"
)

// sqlToy is a sink that understands a few statements: inserts into effects, savepoints,
// and what begins, ends and sets. Every guard of its calls can be taken out. Its database
// is memsink's.
type sqlToy struct {
	*memsink.Sink
	lacks   string       // the guard that is taken out
	session *atomic.Bool // of the one connection: whether writes go elsewhere
}

// toyCall is the transaction of one call.
type toyCall struct {
	db      *sqlToy
	tx      *memsink.Tx
	session *atomic.Bool
	writes  *[]write // of the whole transaction
	from    int      // where those of this call begin
	marks   map[string]int
	open    int // savepoints of handles
	alone   bool
	undone  bool
	ended   atomic.Bool
	refused error
}

type write struct{ list, value string }

func (db *sqlToy) Commit(ctx context.Context, as []epoch.Advance, o epoch.TxOptions, calls ...func(context.Context, *toyCall) error) error {
	session := db.session
	if db.lacks != "the session is reset" {
		session = &atomic.Bool{}
	}
	var writes []write
	typed := make([]func(context.Context, *memsink.Tx) error, len(calls))
	for i, call := range calls {
		typed[i] = func(ctx context.Context, tx *memsink.Tx) error {
			c := &toyCall{db: db, tx: tx, writes: &writes, session: session, from: len(writes), marks: map[string]int{}, alone: len(calls) == 1}
			defer func() { c.ended.Store(db.lacks != "a call's transaction ends with it") }()
			if err := c.judge(i, call(ctx, c)); err != nil {
				return err
			}
			if i < len(calls)-1 {
				return nil
			}
			for _, w := range writes {
				tx.Append(w.list, w.value)
			}
			return nil
		}
	}
	err := db.Sink.Commit(ctx, as, o, typed...)
	if db.lacks == "only the guilty partition halts" && errors.Is(err, epoch.ErrTxControl) {
		return epoch.ErrTxEndedByHandler
	}
	return err
}

// judge says what a call that has returned err has done.
func (c *toyCall) judge(call int, err error) error {
	if c.refused == nil && c.open > 0 && c.db.lacks != "a savepoint that is left is a failure" {
		c.refused = errors.New("a savepoint is left")
	}
	if c.undone {
		*c.writes = (*c.writes)[:c.from]
	}
	switch {
	case c.refused == nil || err == nil && c.db.lacks == "a refusal cannot be hidden":
		return err
	default:
		return &epoch.CallError{Call: call, Err: errors.Join(c.refused, err)}
	}
}

var inserted = regexp.MustCompile(`^insert into effects \(list, value\) values \('(.*)', '(.*)'\)$`)

func (c *toyCall) exec(text string) error {
	words := strings.Fields(strings.ToLower(text))
	control := slices.Contains([]string{"commit", "commit;", "begin", "end", "rollback", "rollback;"}, words[0]) && !slices.Contains(words, "to")
	switch {
	case c.ended.Load(), c.refused != nil:
		return errors.Join(errors.New("it is over"), c.refused)
	case c.undone:
		c.refused = errors.New("it was rolled back")
		return c.refused
	case control && c.db.lacks == "COMMIT is not sent":
		for _, w := range *c.writes {
			if words[0] != "rollback" {
				c.tx.Append(w.list, w.value)
			}
		}
		*c.writes, c.from = nil, 0
		return nil
	case control:
		c.refused = fmt.Errorf("%w: %s", epoch.ErrTxControl, text)
		return c.refused
	case inserted.MatchString(text):
		w := inserted.FindStringSubmatch(text)
		c.write(w[1], w[2])
		return nil
	case c.db.lacks == "what is not ordinary may go alone", !c.alone && c.db.lacks != "what is not ordinary goes alone":
		c.refused = fmt.Errorf("%w: %s", epoch.ErrOwnTransaction, text)
		return c.refused
	case words[0] == "set":
		c.session.Store(true)
		return nil
	default:
		return c.savepoint(words)
	}
}

func (c *toyCall) savepoint(words []string) error {
	name := words[len(words)-1]
	if words[0] == "savepoint" {
		c.marks[name] = len(*c.writes)
		return nil
	}
	at, ok := c.marks[name]
	if !ok {
		return fmt.Errorf("no such savepoint: %s", name)
	}
	if words[0] == "rollback" {
		*c.writes = (*c.writes)[:at]
	}
	return nil
}

func (c *toyCall) write(list, value string) {
	if c.session.Load() && !c.alone {
		list = "elsewhere"
	}
	*c.writes = append(*c.writes, write{list, value})
}

// toyHandle is a transaction with a Commit, or a savepoint in it.
type toyHandle struct {
	c    *toyCall
	in   bool
	at   int
	over bool
}

func (h *toyHandle) Exec(_ context.Context, query string, _ ...any) error {
	if h.over && !h.c.undone {
		return errors.New("the handle is closed")
	}
	return h.c.exec(query)
}

func (h *toyHandle) Begin(context.Context) (Handle, error) {
	h.c.open++
	return &toyHandle{c: h.c, in: true, at: len(*h.c.writes)}, nil
}

func (h *toyHandle) Commit(ctx context.Context) error { return h.end(ctx, false) }

func (h *toyHandle) Rollback(ctx context.Context) error { return h.end(ctx, true) }

func (h *toyHandle) end(ctx context.Context, back bool) error {
	if h.over || h.c.ended.Load() {
		return errors.New("the handle is closed")
	}
	h.over = true
	switch {
	case h.in && ctx.Err() != nil && h.c.db.lacks != "an end that is not sent is a failure":
		return ctx.Err() // and the savepoint is left
	case h.in && back:
		*h.c.writes = (*h.c.writes)[:h.at]
		h.c.open--
	case h.in:
		h.c.open--
	case back && h.c.db.lacks != "Rollback undoes":
		h.c.undone = true
	}
	return nil
}

// The sink's other methods.

func (db *sqlToy) CommitHeld(ctx context.Context, h epoch.Hold, o epoch.TxOptions, apply func(context.Context, *toyCall) error) error {
	return db.Sink.CommitHeld(ctx, h, o, func(ctx context.Context, tx *memsink.Tx) error {
		var writes []write
		c := &toyCall{db: db, tx: tx, writes: &writes, session: &atomic.Bool{}, marks: map[string]int{}, alone: true}
		defer func() { c.ended.Store(true) }()
		err := c.judge(0, apply(ctx, c))
		for _, w := range writes {
			tx.Append(w.list, w.value)
		}
		return err
	})
}

func (db *sqlToy) WriteIn(ctx context.Context, c *toyCall, cs ...operate.Change) error {
	return db.Sink.WriteIn(ctx, c.tx, cs...)
}

// mode is the toy as the suite has it.
func toyMode(lacks string) mode {
	return eraseMode(Idiomatic[*toyCall]{
		Mode: "toy", Virtual: true, Speaks: &Dialect{},
		Exec:   func(_ context.Context, c *toyCall, query string, _ ...any) error { return c.exec(query) },
		Handle: func(c *toyCall) Handle { return &toyHandle{c: c} },
		Database: func(testing.TB) Database[*toyCall] {
			s := memsink.New()
			return Database[*toyCall]{
				Open: func(testing.TB) epoch.Sink[*toyCall] { return &sqlToy{s.Open(), lacks, &atomic.Bool{}} },
				Append: func(_ context.Context, c *toyCall, list, value string) error {
					return c.exec(fmt.Sprintf("insert into effects (list, value) values ('%s', '%s')", list, value))
				},
				List:     func(_ context.Context, list string) ([]string, error) { return s.List(list), nil },
				Operator: func(testing.TB) operate.Operator { return s.Operator() },
				DeadLetter: func(ctx context.Context, c *toyCall, m epoch.Message, e epoch.Epoch, cause error) error {
					return s.DeadLetter(ctx, c.tx, m, e, cause)
				},
			}
		},
	})
}
