package outboxtest

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/epochfence/epochfence/consumer/memsource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/outbox"
)

// This file has the histories of operators who act on entries beside the relay.

// numbered returns a topic with n messages, and runs a consumer that adds an entry for each. The
// receiver refuses those of sent.
func (w *world[TX]) numbered(n, sent int, retry time.Duration, entry func(body string) outbox.Entry) {
	w.Helper()
	log := memsource.New("orders", 1)
	for i := range n {
		log.Append(0, fmt.Sprint(i))
	}
	w.runs(log.Member("a"), retry, entry, nil)
	w.await("the receiver refuses them", func() bool { return int(w.refused.Load()) >= sent })
}

func (w *world[TX]) does(kind operate.OutboxKind, seen operate.OutboxEntry) error {
	return w.Operator.DoOutbox(w.Context(), operate.OutboxAct{Kind: kind, Seen: seen, By: "anna", Reason: "fixed", TraceID: strings.Repeat("ab", 16)})
}

// operated has five entries wait for a day, the last one behind another one of its key.
func operated[TX any](w *world[TX]) {
	w.numbered(5, 4, 24*time.Hour, func(body string) outbox.Entry {
		e := outbox.Entry{Scope: "account/" + body, URL: w.receiver.URL + "/pay?token=secret", Header: http.Header{"Authorization": {"secret"}}, Body: []byte(body)}
		if body >= "3" {
			e.Key = "in order"
		}
		return e
	})
	p := epoch.Partition{Group: memsource.DefaultGroup, Topic: "orders"}
	es := w.entries(operate.OutboxQuery{})
	if len(es) != 5 {
		w.Fatalf("%d entries: %+v", len(es), es)
	}
	for i, e := range es {
		if e.Partition != p || e.Scope != fmt.Sprintf("account/%d", i) || e.URL != w.receiver.URL || e.Header != nil || e.Body != nil || e.IdempotencyKey == "" ||
			e.Method != "POST" || e.AddedAt.IsZero() || e.RetryRequested || (e.Key == "in order") != (i >= 3) {
			w.Errorf("listed: %+v", e)
		}
		whole, err := w.Operator.OutboxEntry(w.Context(), e.ID)
		if err != nil || !strings.HasSuffix(whole.URL, "token=secret") || whole.Header.Get("Authorization") != "secret" || string(whole.Body) != fmt.Sprint(i) {
			w.Errorf("shown: %+v, %v", whole, err)
		}
	}
	number := int32(0)
	for want, q := range map[int]operate.OutboxQuery{
		2: {Key: "in order"}, 1: {Limit: 1}, 3: {After: es[1].ID}, 0: {Filter: operate.Filter{Group: "nobody"}}, 5: {Filter: operate.Filter{Topic: "orders"}, Number: &number},
	} {
		if got := w.entries(q); len(got) != want {
			w.Errorf("%+v selects %d, want %d", q, len(got), want)
		}
	}
	fence, err := w.Operator.Partition(w.Context(), p)
	w.must(err)
	w.up.Store(true)
	w.must(errors.Join(w.does(operate.OutboxDiscard, es[0]), w.does(operate.OutboxRetry, es[1]), w.does(operate.OutboxRetry, es[3])))
	for what, change := range map[string]func(*operate.OutboxEntry){
		"its idempotency key":         func(e *operate.OutboxEntry) { e.IdempotencyKey = "another" },
		"its partition":               func(e *operate.OutboxEntry) { e.Partition.Number = 1 },
		"its ID":                      func(e *operate.OutboxEntry) { e.ID += 1 << 20 },
		"everything: it is discarded": func(e *operate.OutboxEntry) { *e = es[0] },
	} {
		other := es[2]
		change(&other)
		for _, kind := range []operate.OutboxKind{operate.OutboxDiscard, operate.OutboxRetry} {
			if err := w.does(kind, other); !errors.Is(err, operate.ErrNoOutboxEntry) {
				w.Errorf("%s of an entry that differs in %s: %v", kind, what, err)
			}
		}
	}
	if err := w.does("burn", es[2]); !errors.Is(err, operate.ErrAct) {
		w.Errorf("no such act: %v", err)
	}
	if err := w.Operator.DoOutbox(w.Context(), operate.OutboxAct{Kind: operate.OutboxDiscard, Seen: es[2], Reason: "r"}); !errors.Is(err, operate.ErrAct) {
		w.Errorf("nobody: %v", err)
	}

	w.awaitLeft(1)
	got := w.arrived()
	if i, j := slices.Index(got, "3"), slices.Index(got, "4"); i < 0 || j < i {
		w.Errorf("came %q", got)
	}
	slices.Sort(got)
	if left := w.entries(operate.OutboxQuery{}); !slices.Equal(got, []string{"1", "3", "4"}) || left[0].ID != es[2].ID || left[0].RetryRequested {
		w.Errorf("came %q; left %+v", got, left)
	}
	if _, err := w.Operator.OutboxEntry(w.Context(), es[1].ID); !errors.Is(err, operate.ErrNoOutboxEntry) {
		w.Errorf("what was delivered is there: %v", err)
	}
	ds, err := w.Operator.History(w.Context(), operate.HistoryQuery{Kinds: []operate.DecisionKind{operate.DecidedOutboxRetry, operate.DecidedOutboxDiscard}})
	w.must(err)
	done := []struct {
		kind operate.DecisionKind
		of   operate.OutboxEntry
	}{{operate.DecidedOutboxRetry, es[3]}, {operate.DecidedOutboxRetry, es[1]}, {operate.DecidedOutboxDiscard, es[0]}}
	if len(ds) != len(done) {
		w.Fatalf("the audit log is %+v, want %+v", ds, done)
	}
	for i, d := range ds {
		if d.Kind != done[i].kind || d.Entry != done[i].of.ID || d.IdempotencyKey != done[i].of.IdempotencyKey || d.Partition != p || d.By != "anna" || d.At.IsZero() ||
			d.Reason != "fixed" || d.TraceID != strings.Repeat("ab", 16) || d.Epoch != fence.Epoch || d.Claim != fence.Claim || d.Owner != fence.Owner {
			w.Errorf("%+v, want %+v under the claim of %+v", d, done[i], fence.Fence)
		}
	}
}

// discarded has the relay know of an entry that an operator discards behind the one that it sends.
func discarded[TX any](w *world[TX]) {
	w.numbered(3, 2, 500*time.Millisecond, func(body string) outbox.Entry {
		return outbox.Entry{Key: "k", Scope: "s", URL: w.receiver.URL, Body: []byte(body)}
	})
	w.must(w.does(operate.OutboxDiscard, w.entries(operate.OutboxQuery{})[1]))
	w.up.Store(true)
	w.awaitLeft(0)
	if got := w.arrived(); !slices.Equal(got, []string{"0", "2"}) {
		w.Errorf("came %q", got)
	}
}
