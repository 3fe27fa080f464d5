package statusz_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/operate/stats"
	"github.com/epochfence/epochfence/operate/statusz"
	"github.com/epochfence/epochfence/sinks/memsink"
)

// rig is a database and the stats of one process.
type rig struct {
	*testing.T
	sink  *memsink.Sink
	stats *stats.Stats
	op    *countingOperator
}

func newRig(t *testing.T) *rig {
	t.Helper()
	sink := memsink.New()
	return &rig{T: t, sink: sink, stats: stats.New(), op: &countingOperator{Operator: sink.Operator()}}
}

// countingOperator counts readings, and fails if it is told to.
type countingOperator struct {
	operate.Operator
	readings atomic.Int64
	fails    atomic.Bool
}

func (o *countingOperator) Partitions(ctx context.Context, f operate.Filter) ([]operate.Partition, error) {
	o.readings.Add(1)
	if o.fails.Load() {
		return nil, errors.New("connection refused")
	}
	return o.Operator.Partitions(ctx, f)
}

func orders(n int32) epoch.Partition {
	return epoch.Partition{Group: "billing", Topic: "orders", Number: n}
}

// claims has an owner claim a partition, which is seeded first if it has no fence.
func (r *rig) claims(p epoch.Partition, owner string) epoch.Fence {
	r.Helper()
	origin := epoch.Origin{Partition: p, Log: "log", Source: "issuer"}
	if _, err := epoch.FenceOf(r.Context(), r.sink, p); errors.Is(err, epoch.ErrMissing) {
		if err := r.sink.Seed(r.Context(), []epoch.Start{{Origin: origin}}); err != nil {
			r.Fatal(err)
		}
	}
	seen, err := epoch.FenceOf(r.Context(), r.sink, p)
	if err != nil {
		r.Fatal(err)
	}
	alive := operate.Process{Run: owner, Group: p.Group, Name: owner, Host: "pod-" + owner, Every: time.Hour}
	if err := operate.RecordsIn[*memsink.Tx](r.sink).Alive(r.Context(), alive); err != nil {
		r.Fatal(err)
	}
	f, err := r.sink.Claim(r.Context(), seen, epoch.NewClaim(epoch.Lease{Origin: origin, Generation: 1, Owner: owner}))
	if err != nil {
		r.Fatal(err)
	}
	return f
}

// holds has this process hold a partition, which it claims.
func (r *rig) holds(p epoch.Partition) epoch.Fence {
	r.Helper()
	f := r.claims(p, "here")
	r.says(f)
	return f
}

// says has this process say that it holds a partition, of which the sink may know nothing.
func (r *rig) says(f epoch.Fence) {
	r.stats.Observe(consumer.Joined{})
	r.stats.Observe(consumer.Granted{Partition: f.Partition})
	r.stats.Observe(consumer.Claimed{Fence: f})
}

func fence(p epoch.Partition) epoch.Fence {
	return epoch.Fence{Origin: epoch.Origin{Partition: p}, Epoch: 1, Owner: "here"}
}

func (r *rig) halts(p epoch.Partition, why consumer.Reason, err error) {
	r.stats.Observe(consumer.Halted{Partition: p, Epoch: 1, Next: 0, Reason: why, Err: err, RetryIn: time.Minute})
}

// deadLetter puts one aside.
func (r *rig) deadLetter(p epoch.Partition, offset epoch.Offset, cause error) {
	r.Helper()
	r.aside(p, offset, func(ctx context.Context, tx *memsink.Tx, m epoch.Message, e epoch.Epoch) error {
		return r.sink.DeadLetter(ctx, tx, m, e, cause)
	})
}

// defers stores a message for an hour.
func (r *rig) defers(p epoch.Partition, offset epoch.Offset, cause error) {
	r.Helper()
	r.aside(p, offset, func(ctx context.Context, tx *memsink.Tx, m epoch.Message, e epoch.Epoch) error {
		return operate.RecordsIn[*memsink.Tx](r.sink).Defer(ctx, tx, m, e, cause, time.Hour)
	})
}

func (r *rig) aside(p epoch.Partition, offset epoch.Offset, put func(ctx context.Context, tx *memsink.Tx, m epoch.Message, e epoch.Epoch) error) {
	r.Helper()
	f := r.claims(p, "here")
	advance := epoch.Advance{Partition: p, Claim: f.Claim, From: f.Next, To: offset + 1}
	err := r.sink.Commit(r.Context(), []epoch.Advance{advance}, epoch.TxOptions{}, func(ctx context.Context, tx *memsink.Tx) error {
		return put(ctx, tx, epoch.Message{Partition: p, Offset: offset, Value: []byte("secret")}, f.Epoch)
	})
	if err != nil {
		r.Fatal(err)
	}
}

// page is a handler, mounted where it does not know.
func (r *rig) page(change func(o *statusz.Options)) http.Handler {
	r.Helper()
	o := statusz.Options{Stats: r.stats, Operator: r.op, Logger: slog.New(slog.DiscardHandler)}
	if change != nil {
		change(&o)
	}
	h, err := statusz.New(o)
	if err != nil {
		r.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/status/", http.StripPrefix("/status", h))
	return mux
}

func annaMay(o *statusz.Options) {
	o.MayAct = func(r *http.Request) (string, bool) { return "anna", r.Header.Get("Who") != "nobody" }
}

func request(h http.Handler, r *http.Request) *http.Response {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result()
}

func get(h http.Handler, path string) (status int, body string) {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/status/"+path, nil))
	return w.Code, w.Body.String()
}

func post(path string, form url.Values) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "/status/"+path, strings.NewReader(form.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	return r
}

var (
	hidden = regexp.MustCompile(`<input type="hidden" name="([^"]*)" value="([^"]*)">`)
	tags   = regexp.MustCompile(`(?s)<[^>]*>`)
	spaces = regexp.MustCompile(`\s+`)
)

// fields are the hidden ones of the form in a page.
func fields(page string) url.Values {
	form := url.Values{}
	for _, m := range hidden.FindAllStringSubmatch(page, -1) {
		form.Set(m[1], m[2])
	}
	return form
}

// text is what an operator reads of a page, in one line.
func text(page string) string {
	return spaces.ReplaceAllString(tags.ReplaceAllString(page, " "), " ")
}

func wants(t *testing.T, page string, texts ...string) {
	t.Helper()
	said := text(page)
	for _, want := range texts {
		if !strings.Contains(said, want) {
			t.Errorf("the page does not say %q:\n%s", want, said)
		}
	}
}

// pass lets virtual time pass.
func pass(d time.Duration) { <-time.After(d) }

// logsEnd is a broker whose logs begin at 3 and end there.
func logsEnd(end epoch.Offset) func(context.Context, []epoch.Fence) (map[epoch.Partition]operate.Extent, error) {
	return func(_ context.Context, fences []epoch.Fence) (map[epoch.Partition]operate.Extent, error) {
		logs := map[epoch.Partition]operate.Extent{}
		for _, f := range fences {
			logs[f.Partition] = operate.Extent{Begin: 3, End: end, Lag: int64(end - f.Next)}
		}
		return logs, nil
	}
}
