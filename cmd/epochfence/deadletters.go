package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/text/instant"
	"github.com/epochfence/epochfence/operate"
)

// This file has the commands deadletters: list, show, replay, withdraw and discard. The consumer
// that owns the partition carries a replay out.

func (a *app) deadLetters() *cobra.Command {
	c := &cobra.Command{
		Use: "deadletters", Aliases: []string{"dl"}, Short: "List, show, replay, withdraw and discard dead letters",
		Long: `Dead letters are messages that their handler could not apply. OnFailure stored
them so that the partition could continue. Messages that the handler has deferred,
by consumer.RetryAfter, are listed after them: the owner of the partition replays
them when they are due.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return usage("deadletters wants list, show, replay, withdraw or discard")
		},
	}
	c.AddCommand(a.deadLettersList(), a.deadLettersShow(),
		a.deadLetterAct(operate.Replay, "replay ID...", "Request that the owner of the partition applies dead letters", `Request that the owner of the partition applies dead letters: within seconds
it calls the application's own handler with the message, in a transaction that also
deletes the dead letter. If the handler fails again, the dead letter stays, with the
error. The message is applied out of order, after later messages of its partition.`),
		a.deadLetterAct(operate.Withdraw, "withdraw ID...", "Withdraw a request for a replay", "Withdraw a request for a replay that no owner has carried out yet."),
		a.deadLetterAct(operate.Discard, "discard ID...", "Delete dead letters", "Delete dead letters. Their messages are never applied."))
	return c
}

type letterView struct {
	ID             int64        `json:"id"`
	Partition      string       `json:"partition"`
	Offset         int64        `json:"offset"`
	Epoch          int64        `json:"epoch"`
	At             time.Time    `json:"at"`
	Error          string       `json:"error"`
	Requested      bool         `json:"replay_requested"`
	RequestedBy    string       `json:"replay_requested_by,omitempty"`
	RequestedAt    *time.Time   `json:"replay_requested_at,omitempty"`
	ReplayError    string       `json:"replay_error,omitempty"`
	ReplayFailedAt *time.Time   `json:"replay_failed_at,omitempty"`
	Due            *time.Time   `json:"due,omitempty"`
	Deferred       int          `json:"deferred,omitempty"`
	Message        *messageView `json:"message,omitempty"`
}

// messageView is the JSON form of a message; bytes are in base64.
type messageView struct {
	Time    *instant.JSON `json:"time"`
	Key     []byte        `json:"key"`
	Value   []byte        `json:"value"`
	Headers []headerView  `json:"headers"`
}

type headerView struct {
	Key   string `json:"key"`
	Value []byte `json:"value"`
}

func letter(l operate.DeadLetter) letterView {
	return letterView{
		ID: l.ID, Partition: l.Message.Partition.String(), Offset: int64(l.Message.Offset), Epoch: int64(l.Epoch), At: l.At.UTC(), Error: l.Error,
		Requested: l.Requested, RequestedBy: l.RequestedBy, RequestedAt: orNull(l.RequestedAt), ReplayError: l.ReplayError, ReplayFailedAt: orNull(l.ReplayFailedAt),
		Due: orNull(l.Due), Deferred: l.Deferred,
	}
}

func (l letterView) status() string {
	switch {
	case l.Requested:
		return "replay requested"
	case l.ReplayError != "":
		return "replay failed"
	default:
		return "-"
	}
}

func (a *app) deadLettersList() *cobra.Command {
	var which chosen
	var requested bool
	var limit int
	var after int64
	c := &cobra.Command{
		Use: "list [PARTITION]", Short: "List dead letters, oldest first", Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, names []string) error {
			if limit <= 0 {
				return usage("--limit is %d; want 1 or more", limit)
			}
			q := operate.DeadLetterQuery{Filter: which.filter(), Requested: requested, Limit: limit, After: after}
			return a.runLetters(c.Context(), q, which, names)
		},
	}
	which.add(c.Flags())
	c.Flags().BoolVar(&requested, "requested", false, "only those whose replay is requested")
	c.Flags().IntVar(&limit, "limit", operate.DefaultLimit, "how many")
	c.Flags().Int64Var(&after, "after", 0, "with a higher ID only")
	return c
}

func (a *app) runLetters(ctx context.Context, q operate.DeadLetterQuery, which chosen, names []string) error {
	op, err := a.operator(ctx)
	if err != nil {
		return err
	}
	if len(names) > 0 {
		p, err := a.partition(ctx, op, which, names[0])
		if err != nil {
			return err
		}
		of := p.Fence.Partition
		q.Group, q.Topic, q.Number = of.Group, of.Topic, &of.Number
	}
	ls, err := op.DeadLetters(ctx, q)
	if err != nil {
		return err
	}
	var later []operate.DeadLetter
	if q.Deferred = !q.Requested; q.Deferred {
		if later, err = op.DeadLetters(ctx, q); err != nil {
			return err
		}
	}
	offset, err := letterOffsets(ctx, op)
	if err != nil {
		return err
	}
	vs, deferred := []letterView{}, []letterView{}
	t := newTable(">ID", "PARTITION", ">OFFSET", "AT", "REPLAY", "ERROR")
	for _, l := range ls {
		v := letter(l)
		vs = append(vs, v)
		t.row(v.ID, v.Partition, offset(l), stamp(v.At), v.status(), cmp.Or(v.ReplayError, v.Error))
	}
	waiting := newTable(">ID", "PARTITION", ">OFFSET", "AT", "DUE", ">TIMES", "ERROR")
	for _, l := range later {
		v := letter(l)
		deferred = append(deferred, v)
		waiting.row(v.ID, v.Partition, offset(l), stamp(v.At), stamp(l.Due), v.Deferred, cmp.Or(v.ReplayError, v.Error))
	}
	return a.show(map[string]any{"dead_letters": vs, "deferred": deferred}, func() {
		t.print(a.out)
		if len(later) > 0 {
			a.say("\nNo dead letters, but deferred by the handler, and replayed when they are due:\n")
			waiting.print(a.out)
		}
		if after := lastOfBoth(ls, later, q.Limit); after > 0 {
			a.say("\nThere may be more: --after %d", after)
		}
	})
}

// lastOfBoth returns the ID after which both lists continue, and 0 if none does. What one of them has after it is listed again.
func lastOfBoth(a, b []operate.DeadLetter, limit int) (after int64) {
	for _, ls := range [][]operate.DeadLetter{a, b} {
		if last := len(ls) - 1; len(ls) == limit && (after == 0 || ls[last].ID < after) {
			after = ls[last].ID
		}
	}
	return after
}

func (a *app) deadLettersShow() *cobra.Command {
	return &cobra.Command{
		Use: "show ID", Short: "Show a dead letter with its message", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			ids, err := idsOf(args)
			if err != nil {
				return err
			}
			op, err := a.operator(c.Context())
			if err != nil {
				return err
			}
			l, err := op.DeadLetter(c.Context(), ids[0])
			if err != nil {
				return err
			}
			offset, err := letterOffsets(c.Context(), op)
			if err != nil {
				return err
			}
			v := letter(l)
			m := l.Message
			v.Message = &messageView{Key: m.Key, Value: m.Value, Headers: []headerView{}}
			if !m.Time.IsZero() {
				v.Message.Time = &instant.JSON{Time: m.Time}
			}
			for _, h := range m.Headers {
				v.Message.Headers = append(v.Message.Headers, headerView{h.Key, h.Value})
			}
			return a.show(v, func() { a.printLetter(l, v, offset(l)) })
		},
	}
}

// letterOffsets returns a function that formats the offset of a dead letter: as a time for a job.
func letterOffsets(ctx context.Context, op operate.Operator) (func(operate.DeadLetter) string, error) {
	ps, err := op.Partitions(ctx, operate.Filter{})
	if err != nil {
		return nil, err
	}
	logs := map[epoch.Partition]string{}
	for _, p := range ps {
		logs[p.Fence.Partition] = p.Log
	}
	return func(l operate.DeadLetter) string { return positionIn(logs[l.Message.Partition], l.Message.Offset) }, nil
}

func (a *app) printLetter(l operate.DeadLetter, v letterView, offset string) {
	a.say("dead letter  %d", v.ID)
	a.say("partition    %s, offset %s", v.Partition, offset)
	a.say("stored       %s, under epoch %d", stamp(v.At), v.Epoch)
	a.say("error        %s", printable(v.Error))
	if l.Requested {
		a.say("replay       requested by %s at %s", printable(l.RequestedBy), stamp(l.RequestedAt))
	}
	if !l.Due.IsZero() {
		a.say("replay       due at %s, deferred %s", stamp(l.Due), count(int64(l.Deferred), "time"))
	}
	if l.ReplayError != "" {
		a.say("replay       failed at %s: %s", stamp(l.ReplayFailedAt), printable(l.ReplayError))
	}
	a.say("written      %s", stamp(l.Message.Time))
	a.say("key          %s", content(l.Message.Key))
	for _, h := range l.Message.Headers {
		a.say("header       %s: %s", printable(h.Key), content(h.Value))
	}
	a.say("value        %s", content(l.Message.Value))
}

// content formats bytes for operators: text unchanged, other bytes quoted.
func content(b []byte) string {
	switch {
	case b == nil:
		return "-"
	case utf8.Valid(b):
		return printable(string(b))
	default:
		return strconv.Quote(string(b))
	}
}

func idsOf(args []string) (ids []int64, err error) {
	for _, s := range args {
		id, err := strconv.ParseInt(s, 10, 64)
		if err != nil || id <= 0 {
			return nil, usage("%q is no ID", s)
		}
		ids = append(ids, id)
	}
	return ids, nil
}

func actOnIDs(use, short, long string, do func(c *cobra.Command, ids []int64, args []string, by doing) error) *cobra.Command {
	var by doing
	c := &cobra.Command{
		Use: use, Short: short, Long: long, Args: cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			ids, err := idsOf(args)
			if err != nil {
				return err
			}
			if err := by.check(); err != nil {
				return err
			}
			return do(c, ids, args, by)
		},
	}
	by.add(c.Flags())
	return c
}

func (a *app) deadLetterAct(kind operate.DeadLetterKind, use, short, long string) *cobra.Command {
	var wait time.Duration
	c := actOnIDs(use, short, long, func(c *cobra.Command, ids []int64, args []string, by doing) error {
		return a.doLetters(c, kind, ids, args, by, wait)
	})
	if kind == operate.Replay {
		c.Flags().DurationVar(&wait, "wait", 0, "wait so long for the owners to do it")
	}
	return c
}

type letterResult struct {
	letterView
	Act    string `json:"act"`
	Done   bool   `json:"done"`
	Result string `json:"result"`
	Failed string `json:"failed,omitempty"`
}

func (a *app) doLetters(c *cobra.Command, kind operate.DeadLetterKind, ids []int64, args []string, by doing, wait time.Duration) error {
	ctx := c.Context()
	op, err := a.operator(ctx)
	if err != nil {
		return err
	}
	var seen []operate.DeadLetter
	for _, id := range ids {
		l, err := op.DeadLetter(ctx, id)
		if err != nil {
			return err
		}
		seen = append(seen, l)
	}
	offset, err := letterOffsets(ctx, op)
	if err != nil {
		return err
	}
	plan := planOfLetters(kind, seen)
	results := make([]letterResult, len(seen))
	for i, l := range seen {
		results[i] = letterResult{letterView: letter(l), Act: string(kind), Result: "would be: " + string(kind)}
	}
	t := func() {
		t := newTable(">ID", "PARTITION", ">OFFSET", "RESULT")
		for i, r := range results {
			t.row(r.ID, r.Partition, offset(seen[i]), r.Result)
		}
		t.print(a.out)
	}
	p := proposal{names: args, plan: plan, result: map[string]any{"dead_letters": results}, print: t}
	if ahead, err := a.goAhead(c, by, p); !ahead {
		return err
	}
	var failed []error
	for i, l := range seen {
		err := a.doLetter(ctx, op, operate.DeadLetterAct{Kind: kind, Seen: l, By: by.by, Reason: by.reason}, wait, &results[i])
		if err != nil {
			results[i].Result, results[i].Failed = "FAILED: "+err.Error(), err.Error()
			failed = append(failed, err)
		}
	}
	return errors.Join(errors.Join(failed...), a.show(p.result, t))
}

func planOfLetters(kind operate.DeadLetterKind, seen []operate.DeadLetter) string {
	var all []string
	for _, l := range seen {
		all = append(all, fmt.Sprintf("%s %d %d %t", kind, l.ID, l.Request, l.Requested))
	}
	return fingerprint(all)
}

func (a *app) doLetter(ctx context.Context, op operate.Operator, act operate.DeadLetterAct, wait time.Duration, r *letterResult) error {
	l, err := op.DoDeadLetter(ctx, act)
	if err != nil {
		return findOut(err, "epochfence history "+shellQuote(act.Seen.Message.Partition.String()))
	}
	r.Done, r.letterView = true, letter(l)
	switch act.Kind {
	case operate.Discard:
		r.Result = "discarded"
	case operate.Withdraw:
		r.Result = "withdrawn"
	case operate.Replay:
		r.Result = "requested: the owner does it within seconds"
		if wait > 0 {
			return awaitReplay(ctx, op, l, wait, r)
		}
	}
	return nil
}

// discarded returns who has discarded a dead letter since its replay was requested, or "".
func discarded(ctx context.Context, op operate.Operator, l operate.DeadLetter) string {
	ds, _ := op.History(ctx, operate.HistoryQuery{
		Partition: &l.Message.Partition, Kinds: []operate.DecisionKind{operate.DecidedReplayRequest, operate.DecidedReplay, operate.DecidedDiscard},
	})
	for _, d := range ds { // newest first
		if d.From == l.Message.Offset {
			if d.Kind == operate.DecidedDiscard {
				return d.By
			}
			break
		}
	}
	return ""
}

// awaitReplay looks again and again. A look that fails, as while the sink fails over, decides nothing.
func awaitReplay(ctx context.Context, op operate.Operator, l operate.DeadLetter, wait time.Duration, r *letterResult) error {
	late := time.NewTimer(wait)
	defer late.Stop()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		now, err := op.DeadLetter(ctx, l.ID)
		switch {
		case errors.Is(err, operate.ErrNoDeadLetter):
			if by := discarded(ctx, op, l); by != "" {
				return fmt.Errorf("dead letter %d: %s has discarded it: %w", l.ID, by, operate.ErrChanged)
			}
			r.Result = "replayed"
			return nil
		case err != nil:
		case now.Request != l.Request:
			return fmt.Errorf("dead letter %d: somebody else has asked for it again: %w", l.ID, operate.ErrChanged)
		case !now.Requested:
			r.letterView = letter(now)
			return fmt.Errorf("dead letter %d: it was not replayed, and stays: %s", l.ID, cmp.Or(now.ReplayError, "its request was withdrawn"))
		}
		select {
		case <-tick.C:
		case <-late.C:
			if err != nil {
				return fmt.Errorf("dead letter %d: it is requested, and whether it was replayed within %v is unknown: %w", l.ID, wait, err)
			}
			return fmt.Errorf("dead letter %d: no owner has replayed it within %v; it stays requested", l.ID, wait)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
