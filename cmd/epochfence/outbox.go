package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

// This file has the commands outbox. It leaves secrets out of what it prints, unless the operator
// wants them.

func (a *app) outbox() *cobra.Command {
	c := &cobra.Command{
		Use: "outbox", Short: "List, show, retry and discard what is to be sent",
		Long: `The outbox holds the requests that handlers have added. A request stays until its
success is recorded, so a receiver may have applied a request that is still listed.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return usage("outbox wants list, show, retry, discard or history")
		},
	}
	c.AddCommand(a.outboxList(), a.outboxShow(), a.outboxHistory(),
		a.outboxAct(operate.OutboxRetry, "retry ID...", "Send entries now instead of after their wait",
			"Send entries within seconds instead of after their wait. An entry that waits\nfor another entry of its key keeps waiting."),
		a.outboxAct(operate.OutboxDiscard, "discard ID...", "Delete entries",
			"Delete entries. They are not sent any more; an attempt that is under way may arrive."))
	return c
}

type entryView struct {
	ID             int64               `json:"id"`
	Partition      string              `json:"partition"`
	Offset         *epoch.Offset       `json:"offset"` // null: not known
	Key            string              `json:"key"`
	Scope          string              `json:"scope"`
	IdempotencyKey string              `json:"idempotency_key"`
	Method         string              `json:"method"`
	URL            string              `json:"url"`
	AddedAt        *time.Time          `json:"added_at"`
	RetryRequested bool                `json:"retry_requested"`
	Header         map[string][]string `json:"header,omitempty"`
	Body           []byte              `json:"body,omitempty"`
}

func entry(e operate.OutboxEntry) entryView {
	v := entryView{
		ID: e.ID, Partition: e.Partition.String(), Key: e.Key, Scope: e.Scope, IdempotencyKey: e.IdempotencyKey, Method: e.Method, URL: e.URL,
		AddedAt: orNull(e.AddedAt), RetryRequested: e.RetryRequested, Header: e.Header, Body: e.Body,
	}
	if e.Offset >= 0 {
		v.Offset = &e.Offset
	}
	return v
}

func (a *app) outboxList() *cobra.Command {
	var which chosen
	var key string
	var limit int
	var after int64
	c := &cobra.Command{
		Use: "list", Short: "List entries, oldest first", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if limit <= 0 {
				return usage("--limit is %d; want 1 or more", limit)
			}
			return a.runOutboxList(c.Context(), operate.OutboxQuery{Filter: which.filter(), Key: key, Limit: limit, After: after})
		},
	}
	which.add(c.Flags())
	c.Flags().StringVar(&key, "key", "", "under this key only")
	c.Flags().IntVar(&limit, "limit", operate.DefaultLimit, "how many")
	c.Flags().Int64Var(&after, "after", 0, "with a higher ID only")
	return c
}

func (a *app) runOutboxList(ctx context.Context, q operate.OutboxQuery) error {
	op, err := a.operator(ctx)
	if err != nil {
		return err
	}
	es, err := op.OutboxEntries(ctx, q)
	if err != nil {
		return err
	}
	vs := []entryView{}
	t := newTable(">ID", "PARTITION", ">OFFSET", "KEY", "ADDED", "RETRY", "METHOD", "TO")
	for _, e := range es {
		vs = append(vs, entry(e))
		retry := "-"
		if e.RetryRequested {
			retry = "requested"
		}
		t.row(e.ID, e.Partition, offsetOf(e), dash(e.Key), stamp(e.AddedAt), retry, e.Method, e.URL)
	}
	return a.show(map[string]any{"entries": vs}, func() {
		t.print(a.out)
		if len(es) == q.Limit {
			a.say("\nThere may be more: --after %d", es[len(es)-1].ID)
		}
	})
}

func (a *app) outboxShow() *cobra.Command {
	var secrets bool
	c := &cobra.Command{
		Use: "show ID", Short: "Show an entry", Args: cobra.ExactArgs(1),
		Long: `Show an entry. The URL, headers and the body may hold secrets: they are shown
with --secrets.`,
		RunE: func(c *cobra.Command, args []string) error {
			ids, err := idsOf(args)
			if err != nil {
				return err
			}
			return a.runOutboxShow(c.Context(), ids[0], secrets)
		},
	}
	c.Flags().BoolVar(&secrets, "secrets", false, "with the whole URL, the values of headers, and the body")
	return c
}

func (a *app) runOutboxShow(ctx context.Context, id int64, secrets bool) error {
	op, err := a.operator(ctx)
	if err != nil {
		return err
	}
	e, err := op.OutboxEntry(ctx, id)
	if err != nil {
		return err
	}
	v, hidden := entry(e), ""
	if !secrets {
		hidden = fmt.Sprintf("%d bytes, shown with --secrets", len(v.Body))
		v.Body, v.URL = nil, destination(v.URL)
		for name := range v.Header {
			v.Header[name] = []string{"…"}
		}
	}
	return a.show(v, func() {
		a.say("entry            %d", v.ID)
		a.say("partition        %s, key %s, scope %s", v.Partition, printable(dash(v.Key)), printable(dash(v.Scope)))
		a.say("added            %s, by the message at offset %s", stamp(e.AddedAt), offsetOf(e))
		a.say("idempotency key  %s", printable(v.IdempotencyKey))
		a.say("request          %s %s", printable(v.Method), printable(v.URL))
		for _, name := range sorted(v.Header) {
			for _, value := range v.Header[name] {
				a.say("header           %s: %s", printable(name), printable(value))
			}
		}
		a.say("body             %s", cmp.Or(hidden, content(v.Body)))
	})
}

// offsetOf returns the offset of the message that added an entry.
func offsetOf(e operate.OutboxEntry) string {
	if e.Offset < 0 {
		return "-"
	}
	return fmt.Sprint(e.Offset)
}

// destination returns the part of a URL that is not secret.
func destination(at string) string {
	u, err := url.Parse(at)
	if err != nil {
		return "…"
	}
	return u.Scheme + "://" + u.Host + "/…"
}

func sorted(h map[string][]string) (names []string) {
	for name := range h {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func (a *app) outboxHistory() *cobra.Command {
	var limit int
	c := &cobra.Command{
		Use: "history", Short: "Read what operators did to entries, newest first", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			op, err := a.operator(c.Context())
			if err != nil {
				return err
			}
			ds, err := op.History(c.Context(), operate.HistoryQuery{Kinds: []operate.DecisionKind{operate.DecidedOutboxRetry, operate.DecidedOutboxDiscard}, Limit: limit})
			if err != nil {
				return err
			}
			vs := []map[string]any{}
			t := newTable("AT", "KIND", ">ENTRY", "PARTITION", "WHO", "ROLE", "WHY")
			for _, d := range ds {
				vs = append(vs, map[string]any{"at": d.At.UTC(), "kind": d.Kind, "entry": d.Entry, "partition": d.Partition.String(),
					"idempotency_key": d.IdempotencyKey, "by": d.By, "reason": d.Reason, "role": d.Role})
				t.row(stamp(d.At), d.Kind, d.Entry, d.Partition, d.By, dash(d.Role), d.Reason)
			}
			return a.show(map[string]any{"records": vs}, func() { t.print(a.out) })
		},
	}
	c.Flags().IntVar(&limit, "limit", 50, "how many")
	return c
}

func (a *app) outboxAct(kind operate.OutboxKind, use, short, long string) *cobra.Command {
	return actOnIDs(use, short, long, func(c *cobra.Command, ids []int64, args []string, by doing) error {
		return a.doEntries(c, kind, ids, args, by)
	})
}

type entryResult struct {
	ID             int64  `json:"id"`
	Partition      string `json:"partition"`
	IdempotencyKey string `json:"idempotency_key"`
	Act            string `json:"act"`
	Done           bool   `json:"done"`
	Result         string `json:"result"`
}

func (a *app) doEntries(c *cobra.Command, kind operate.OutboxKind, ids []int64, args []string, by doing) error {
	ctx := c.Context()
	op, err := a.operator(ctx)
	if err != nil {
		return err
	}
	var seen []operate.OutboxEntry
	var lines []string
	results := make([]entryResult, len(ids))
	for i, id := range ids {
		e, err := op.OutboxEntry(ctx, id)
		if err != nil {
			return err
		}
		seen = append(seen, e)
		lines = append(lines, fmt.Sprintf("%s %d %s %s", kind, e.ID, e.Partition, e.IdempotencyKey))
		results[i] = entryResult{e.ID, e.Partition.String(), e.IdempotencyKey, string(kind), false, "would be: " + string(kind)}
	}
	plan := fingerprint(lines)
	t := func() {
		t := newTable(">ID", "PARTITION", "IDEMPOTENCY KEY", "RESULT")
		for _, r := range results {
			t.row(r.ID, r.Partition, r.IdempotencyKey, r.Result)
		}
		t.print(a.out)
	}
	p := proposal{names: args, plan: plan, result: map[string]any{"entries": results}, print: t}
	if ahead, err := a.goAhead(c, by, p); !ahead {
		return err
	}
	var failed []error
	for i, e := range seen {
		if err := op.DoOutbox(ctx, operate.OutboxAct{Kind: kind, Seen: e, By: by.by, Reason: by.reason}); err != nil {
			err = findOut(err, "epochfence outbox history")
			results[i].Result = "FAILED: " + err.Error()
			failed = append(failed, err)
			continue
		}
		results[i].Done, results[i].Result = true, map[operate.OutboxKind]string{
			operate.OutboxRetry: "requested: the relay sends it within seconds", operate.OutboxDiscard: "discarded",
		}[kind]
	}
	return errors.Join(errors.Join(failed...), a.show(p.result, t))
}
