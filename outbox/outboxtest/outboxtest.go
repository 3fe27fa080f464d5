// Package outboxtest is the suite that every [outbox.Store] must pass. A store's test calls [Run]
// with a function that makes an empty database:
//
//	func TestStore(t *testing.T) {
//		outboxtest.Run(t, func(t testing.TB) outboxtest.Rig[*mysink.Tx] {
//			db := emptyDatabase(t)
//			return outboxtest.Rig[*mysink.Tx]{Sink: mysink.Open(db), Store: mystore.Open(db), Operator: mysink.OpenOperator(db)}
//		})
//	}
package outboxtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/memsource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/suites/verdict"
	"github.com/epochfence/epochfence/internal/waits"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/outbox"
	"github.com/epochfence/epochfence/outbox/httpfence"
)

// Rig is one empty database.
type Rig[TX any] struct {
	Sink     epoch.Sink[TX]
	Store    outbox.Store[TX]
	Operator operate.Operator
}

// Run runs every history on a database of its own. create makes an empty one, which is removed when
// t ends.
func Run[TX any](t *testing.T, create func(t testing.TB) Rig[TX]) {
	for claim, play := range map[string]func(*world[TX]){
		"entries are read, counted, followed by key and deleted in their own partition alone":   keeps[TX],
		"an entry that commits late is not missed, and keeps the order of its key":              late[TX],
		"while a partition changes hands each entry takes effect once, in the order of its key": handsOver[TX],
		"operators see, retry and discard entries, and the audit log has what they did":         operated[TX],
		"a request to retry an entry stays until that entry's relay reads it":                   asked[TX],
	} {
		t.Run(claim, func(t *testing.T) {
			t.Parallel()
			w := &world[TX]{TB: verdict.TB{TB: t}, Rig: create(t)}
			w.receiver = httptest.NewServer(httpfence.Handler(httpfence.NewMemory(), http.HandlerFunc(w.receive), httpfence.Options{Logger: quiet}))
			t.Cleanup(w.receiver.Close)
			play(w)
		})
	}
}

var quiet = slog.New(slog.DiscardHandler)

// world is a database and a receiver.
type world[TX any] struct {
	verdict.TB
	Rig[TX]
	receiver *httptest.Server
	up       atomic.Bool // the receiver takes entries; otherwise it answers 503
	refused  atomic.Int32

	mu   sync.Mutex
	came []string // the bodies that were taken
}

func (w *world[TX]) receive(answer http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if !w.up.Load() || err != nil {
		w.refused.Add(1)
		answer.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.came = append(w.came, string(body))
}

func (w *world[TX]) arrived() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.came)
}

// runs begins a consumer that adds an entry for each message, until the history ends.
func (w *world[TX]) runs(source consumer.Source, retry time.Duration, entry func(body string) outbox.Entry) {
	w.Helper()
	box, err := outbox.New(w.Store, outbox.Options[TX]{RetryMin: retry, RetryMax: retry, Logger: quiet})
	w.NoError(err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.Context()))
	done := make(chan error, 1)
	go func() {
		done <- consumer.Run(ctx, source, w.Sink, consumer.Each(func(ctx context.Context, tx TX, m consumer.Message, _ epoch.Epoch) error {
			return box.Add(ctx, tx, m, entry(string(m.Value)))
		}).Background(box.Relay), consumer.Options{Guarantee: w.Sink.Facts().Guarantee, RetryMin: time.Millisecond, Logger: quiet})
	}()
	w.Cleanup(func() {
		cancel()
		w.NoError(<-done)
	})
}

func (w *world[TX]) entries(q operate.OutboxQuery) []operate.OutboxEntry {
	w.Helper()
	es, err := w.Operator.OutboxEntries(w.Context(), q)
	w.NoError(err)
	return es
}

func (w *world[TX]) await(what string, ok func() bool) {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), time.Minute)
	defer cancel()
	if !waits.Until(ctx, 10*time.Millisecond, ok) {
		w.Fatalf("not within a minute: %s; left: %+v, came: %q", what, w.entries(operate.OutboxQuery{}), w.arrived())
	}
}

func (w *world[TX]) awaitLeft(n int) {
	w.Helper()
	w.await(fmt.Sprint(n, " entries are left"), func() bool { return len(w.entries(operate.OutboxQuery{})) == n })
}

// claims takes a partition that nobody has claimed.
func (w *world[TX]) claims(p epoch.Partition) epoch.Fence {
	w.Helper()
	o := epoch.Origin{Partition: p, Log: "log", Source: "broker"}
	w.NoError(w.Sink.Seed(w.Context(), []epoch.Start{{Origin: o}}))
	seen, err := epoch.FenceOf(w.Context(), w.Sink, p)
	w.NoError(err)
	f, err := w.Sink.Claim(w.Context(), seen, epoch.NewClaim(epoch.Lease{Origin: o, Generation: 1, Owner: "test"}))
	w.NoError(err)
	return f
}

// commits runs do for messages up to offset 7.
func (w *world[TX]) commits(f epoch.Fence, do func(ctx context.Context, tx TX) error) {
	w.Helper()
	w.NoError(w.Sink.Commit(w.Context(), []epoch.Advance{{Partition: f.Partition, Claim: f.Claim, To: 8}}, epoch.TxOptions{}, do))
}

// held runs do as the relay would, beside the messages.
func (w *world[TX]) held(ctx context.Context, f epoch.Fence, do func(ctx context.Context, tx TX) error) error {
	return epoch.CommitHeld(ctx, w.Sink, epoch.Hold{Partition: f.Partition, Claim: f.Claim}, epoch.TxOptions{}, do)
}

// add adds an entry whose idempotency key is id.
func (w *world[TX]) add(ctx context.Context, tx TX, p epoch.Partition, key, id string) error {
	e := outbox.Entry{Key: key, Scope: "s", IdempotencyKey: id, Method: "POST", URL: "http://host/"}
	return w.Store.Add(ctx, tx, epoch.Message{Partition: p, Offset: 7}, e)
}

var orders = epoch.Partition{Group: "billing", Topic: "orders", Number: 3}

// keeps has three entries of each key, by turns, in a partition and in that of another group.
func keeps[TX any](w *world[TX]) {
	keys := []string{"a", "A", "a ", "ä", "", `k"[,{}]\`, "a%_"}
	f, other := w.claims(orders), w.claims(epoch.Partition{Group: "another group", Topic: orders.Topic, Number: orders.Number})
	for _, f := range []epoch.Fence{other, f} {
		w.commits(f, func(ctx context.Context, tx TX) (err error) {
			for i := range 3 * len(keys) {
				err = errors.Join(err, w.add(ctx, tx, f.Partition, keys[i%len(keys)], fmt.Sprint(i)))
			}
			return err
		})
	}
	var rows []outbox.Row
	want := func(what string, got []outbox.Row, err error, want ...int) {
		w.Helper()
		var is []int
		for _, r := range got {
			is = append(is, slices.IndexFunc(rows, func(o outbox.Row) bool { return o.ID == r.ID && o.Key == r.Key && o.IdempotencyKey == r.IdempotencyKey }))
		}
		if slices.Sort(is); err != nil || !slices.Equal(is, want) {
			w.Errorf("%s: %v of the entries, %v; want %v", what, is, err, want)
		}
	}
	w.NoError(w.held(w.Context(), f, func(ctx context.Context, tx TX) error {
		first, at, err := w.Store.Scan(ctx, tx, orders, outbox.Cursor{}, 5)
		if err != nil {
			return err
		}
		far, err := w.Store.Next(ctx, tx, orders, outbox.Cursor{ID: math.MaxInt64, Seen: at.Seen}, []outbox.Place{{Key: keys[6]}})
		if err != nil || len(far) != 1 || far[0].Key != keys[6] || far[0].IdempotencyKey != "6" {
			w.Errorf("the first of key %q, which the scan has not reached: %+v, %v", keys[6], far, err)
		}
		rows, at, err = w.Store.Scan(ctx, tx, orders, at, 100)
		if err != nil {
			return err
		}
		rows = slices.Concat(first, rows)
		if len(first) != 5 || len(rows) != 3*len(keys) {
			return fmt.Errorf("scanned %d entries and then those up to %d, want 5 and all", len(first), len(rows))
		}
		var after []outbox.Place
		for i, r := range rows {
			w.Wantf(r.Key == keys[i%len(keys)] && r.IdempotencyKey == fmt.Sprint(i) && r.Offset == 7, "entry %d is %+v", i, r)
			if i < len(keys) {
				after = append(after, outbox.Place{Key: r.Key, ID: r.ID})
			}
		}
		for limit, want := range map[int]int{100: len(rows), 5: 5} {
			n, oldest, err := w.Store.Count(ctx, tx, orders, limit)
			if ago := time.Since(oldest); n != want || ago < -time.Second || ago > time.Minute || err != nil {
				w.Errorf("counted %d up to %d, the oldest %v old, %v; want %d of this minute", n, limit, ago, err, want)
			}
		}
		got, err := w.Store.Next(ctx, tx, orders, at, after)
		want("behind the first of each key", got, err, 7, 8, 9, 10, 11, 12, 13)
		gone, err := w.Store.Delete(ctx, tx, orders, []int64{rows[7].ID, rows[10].ID, rows[20].ID + 1<<40})
		if slices.Sort(gone); err != nil || !slices.Equal(gone, []int64{rows[7].ID, rows[10].ID}) {
			w.Errorf("deleted %d, %v; want %d and %d", gone, err, rows[7].ID, rows[10].ID)
		}
		got, err = w.Store.Next(ctx, tx, orders, at, after)
		want("behind the first of each key, two second ones gone", got, err, 8, 9, 11, 12, 13, 14, 17)
		got, err = w.Store.Load(ctx, tx, orders, []int64{rows[16].ID, rows[7].ID, rows[1].ID})
		want("loaded again", got, err, 1, 16)
		got, err = w.Store.Next(ctx, tx, orders, at, []outbox.Place{{Key: "A", ID: rows[15].ID}, {Key: "unknown"}})
		want("behind the last", got, err)
		return nil
	}))
	w.NoError(w.held(w.Context(), other, func(ctx context.Context, tx TX) error {
		n, _, err := w.Store.Count(ctx, tx, other.Partition, 100)
		gone, errDelete := w.Store.Delete(ctx, tx, other.Partition, []int64{rows[0].ID})
		w.Wantf(n == len(rows) && len(gone) == 0, "%d entries of the other partition, want %d; deleted %d of ours", n, len(rows), gone)
		return errors.Join(err, errDelete)
	}))
}

// late commits an entry after a transaction beside it has added another one, unless the store has
// that one wait.
func late[TX any](w *world[TX]) {
	f := w.claims(orders)
	add := func(id string) func(context.Context, TX) error {
		return func(ctx context.Context, tx TX) error { return w.add(ctx, tx, orders, "k", id) }
	}
	var at outbox.Cursor
	scan := func(from outbox.Cursor) (ids []string) {
		w.Helper()
		w.NoError(w.held(w.Context(), f, func(ctx context.Context, tx TX) error {
			rows, then, err := w.Store.Scan(ctx, tx, orders, from, 100)
			for _, r := range rows {
				ids = append(ids, r.IdempotencyKey)
			}
			at = then
			return err
		}))
		return ids
	}
	var waits error
	var read []string
	w.commits(f, func(ctx context.Context, tx TX) error {
		err := add("late")(ctx, tx)
		short, cancel := context.WithTimeout(ctx, 3*time.Second)
		defer cancel()
		if waits = w.held(short, f, add("other")); waits == nil {
			read = scan(at)
		}
		return err
	})
	if waits != nil {
		w.Logf("who adds to a partition waits for who has added: %v", waits)
		w.Wantf(errors.Is(waits, epoch.ErrTransient), "this is no epoch.ErrTransient")
		w.NoError(w.held(w.Context(), f, add("other")))
	}
	read = append(read, scan(at)...) // what has a higher ID than the late one is read again
	var first []outbox.Row
	w.NoError(w.held(w.Context(), f, func(ctx context.Context, tx TX) (err error) {
		first, err = w.Store.Next(ctx, tx, orders, at, []outbox.Place{{Key: "k"}})
		return err
	}))
	all := scan(outbox.Cursor{})
	if len(all) != 2 || len(read) < 2 || !slices.Equal(read[len(read)-2:], all) || len(first) != 1 || first[0].IdempotencyKey != all[0] {
		w.Errorf("read %q, of which the first is %+v; want the two of %q", read, first, all)
	}
}

// handsOver takes a partition from a member that does not hear of it, again and again, while the
// receiver fails.
func handsOver[TX any](w *world[TX]) {
	const rounds = 12
	log := memsource.New("orders", 1)
	group := log.Group(memsource.DefaultGroup)
	group.Script()
	members := []*memsource.Member{group.Member("a"), group.Member("b")}
	for _, m := range members {
		w.runs(m, time.Millisecond, func(body string) outbox.Entry {
			return outbox.Entry{Key: body[:1], Scope: body[:1], URL: w.receiver.URL, Body: []byte(body)}
		})
	}
	var want []string
	for n := range rounds {
		for _, account := range []string{"a", "b", "c"} {
			want = append(want, fmt.Sprintf("%s/%02d", account, n))
			log.Append(0, want[len(want)-1])
		}
		w.up.Store(n%2 == 1)
		group.Grant(members[n%2], "orders", 0)
		came, refused := len(w.arrived()), w.refused.Load()
		w.await("something is sent", func() bool {
			n := len(w.arrived()) // all of it may have come before we have looked
			return n > came || n == len(want) || w.refused.Load() > refused
		})
	}
	w.await("everything is sent", func() bool { return len(w.arrived()) >= len(want) })
	w.awaitLeft(0)
	got := w.arrived()
	byAccount := func(a, b string) int { return strings.Compare(a[:1], b[:1]) }
	slices.SortStableFunc(got, byAccount)
	if slices.SortStableFunc(want, byAccount); !slices.Equal(got, want) {
		w.Errorf("the effects are %q, want %q", got, want)
	}
}

// asked has operators retry an entry of each of two relays.
func asked[TX any](w *world[TX]) {
	f := w.claims(orders)
	w.commits(f, func(ctx context.Context, tx TX) error {
		return errors.Join(w.add(ctx, tx, orders, "a", "of one"), w.add(ctx, tx, orders, "b", "of the other"))
	})
	es := w.entries(operate.OutboxQuery{})
	for _, e := range es {
		w.NoError(w.Operator.DoOutbox(w.Context(), operate.OutboxAct{Kind: operate.OutboxRetry, Seen: e, By: "anna", Reason: "fixed"}))
	}
	one, other := es[0].ID, es[1].ID
	for n, c := range []struct{ ids, want []int64 }{{nil, nil}, {[]int64{one}, []int64{one}}, {[]int64{one}, nil}, {[]int64{one, other}, []int64{other}}, {[]int64{one, other}, nil}} {
		var got []int64
		w.NoError(w.held(w.Context(), f, func(ctx context.Context, tx TX) (err error) {
			got, err = w.Store.Retries(ctx, tx, orders, c.ids)
			return err
		}))
		left := w.entries(operate.OutboxQuery{})
		w.Wantf(slices.Equal(got, c.want) && left[0].RetryRequested == (n < 1) && left[1].RetryRequested == (n < 3), "%d: of %d, %d are to be tried now, want %d; left %+v", n, c.ids, got, c.want, left)
	}
}

// operated has five entries wait for a day, the last one behind another one of its key.
func operated[TX any](w *world[TX]) {
	log := memsource.New("orders", 1)
	log.Append(0, "0", "1", "2", "3", "4")
	w.runs(log.Member("a"), 24*time.Hour, func(body string) outbox.Entry {
		e := outbox.Entry{Scope: "account/" + body, URL: w.receiver.URL + "/pay?token=secret", Header: http.Header{"Authorization": {"secret"}}, Body: []byte(body)}
		if body >= "3" {
			e.Key = "in order"
		}
		return e
	})
	w.await("the receiver refuses four", func() bool { return w.refused.Load() >= 4 })
	p := epoch.Partition{Group: memsource.DefaultGroup, Topic: "orders"}
	fence, err := w.Operator.Partition(w.Context(), p)
	w.NoError(err)
	es := w.entries(operate.OutboxQuery{})
	w.Mustf(len(es) == 5, "%d entries: %+v", len(es), es)
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
	for want, q := range map[int]operate.OutboxQuery{
		2: {Key: "in order"}, 1: {Limit: 1}, 3: {After: es[1].ID}, 0: {Filter: operate.Filter{Group: "nobody"}}, 5: {Filter: operate.Filter{Topic: "orders"}, Number: new(int32)},
	} {
		got := w.entries(q)
		w.Wantf(len(got) == want, "%+v selects %d, want %d", q, len(got), want)
	}

	act := operate.OutboxAct{By: "anna", Reason: "fixed", TraceID: strings.Repeat("ab", 16)}
	does := func(kind operate.OutboxKind, seen operate.OutboxEntry) error {
		act.Kind, act.Seen = kind, seen
		return w.Operator.DoOutbox(w.Context(), act)
	}
	w.up.Store(true)
	w.NoError(errors.Join(does(operate.OutboxDiscard, es[0]), does(operate.OutboxRetry, es[1]), does(operate.OutboxRetry, es[3])))
	for what, change := range map[string]func(*operate.OutboxEntry){
		"its idempotency key":         func(e *operate.OutboxEntry) { e.IdempotencyKey = "another" },
		"its partition":               func(e *operate.OutboxEntry) { e.Partition.Number = 1 },
		"its ID":                      func(e *operate.OutboxEntry) { e.ID += 1 << 20 },
		"everything: it is discarded": func(e *operate.OutboxEntry) { *e = es[0] },
	} {
		other := es[2]
		change(&other)
		for _, kind := range []operate.OutboxKind{operate.OutboxDiscard, operate.OutboxRetry} {
			err := does(kind, other)
			w.Wantf(errors.Is(err, operate.ErrNoOutboxEntry), "%s of an entry that differs in %s: %v", kind, what, err)
		}
	}
	w.awaitLeft(1)
	got := w.arrived()
	if i, j := slices.Index(got, "3"), slices.Index(got, "4"); len(got) != 3 || !slices.Contains(got, "1") || i < 0 || j < i {
		w.Errorf("came %q, want 1, and 4 after 3", got)
	}
	left := w.entries(operate.OutboxQuery{})
	w.Wantf(left[0].ID == es[2].ID && !left[0].RetryRequested, "left %+v", left)
	if _, err := w.Operator.OutboxEntry(w.Context(), es[1].ID); !errors.Is(err, operate.ErrNoOutboxEntry) {
		w.Errorf("what was delivered is there: %v", err)
	}
	ds, err := w.Operator.History(w.Context(), operate.HistoryQuery{Kinds: []operate.DecisionKind{operate.DecidedOutboxRetry, operate.DecidedOutboxDiscard}})
	var observed []string
	for _, d := range ds {
		observed = append(observed, fmt.Sprintf("%s %d %s %s", d.Kind, d.Entry, d.IdempotencyKey, d.Partition))
		if d.At.IsZero() || d.By != "anna" || d.Reason != "fixed" || d.TraceID != act.TraceID || d.Epoch != fence.Epoch || d.Claim != fence.Claim || d.Owner != fence.Owner {
			w.Errorf("%+v, want the claim of %+v", d, fence.Fence)
		}
	}
	of := func(kind string, e operate.OutboxEntry) string {
		return fmt.Sprintf("outbox-%s %d %s %s", kind, e.ID, e.IdempotencyKey, p)
	}
	if want := []string{of("retry", es[3]), of("retry", es[1]), of("discard", es[0])}; err != nil || !slices.Equal(observed, want) {
		w.Errorf("the audit log is %q, %v; want %q", observed, err, want)
	}
}
