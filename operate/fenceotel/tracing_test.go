package fenceotel_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/memsource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/operate/fenceotel"
	"github.com/epochfence/epochfence/outbox"
	"github.com/epochfence/epochfence/outbox/httpfence"
	"github.com/epochfence/epochfence/sinks/memsink"
)

var both = propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{})

// traces is what a test's spans are.
type traces struct {
	*testing.T
	spans    *tracetest.InMemoryExporter
	provider *sdktrace.TracerProvider
}

func newTraces(t *testing.T) *traces {
	spans := tracetest.NewInMemoryExporter()
	return &traces{t, spans, sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))}
}

func (ts *traces) tracing(parent bool) *fenceotel.Tracing {
	return fenceotel.NewTracing(fenceotel.Options{Provider: ts.provider, Propagator: both, System: "kafka", Parent: parent})
}

// named are the spans of that name.
func (ts *traces) named(name string) (all tracetest.SpanStubs) {
	for _, s := range ts.spans.GetSpans() {
		if s.Name == name {
			all = append(all, s)
		}
	}
	return all
}

func (ts *traces) one(name string) tracetest.SpanStub {
	ts.Helper()
	all := ts.named(name)
	if len(all) != 1 {
		ts.Fatalf("%d spans %q, want one", len(all), name)
	}
	return all[0]
}

// attribute is the value of one, as text.
func attribute(s tracetest.SpanStub, key string) string {
	for _, a := range s.Attributes {
		if string(a.Key) == key {
			return a.Value.String()
		}
	}
	return ""
}

func (ts *traces) wantAttributes(s tracetest.SpanStub, pairs ...string) {
	ts.Helper()
	for i := 0; i < len(pairs); i += 2 {
		if got := attribute(s, pairs[i]); got != pairs[i+1] {
			ts.Errorf("%s has %s %q, want %q", s.Name, pairs[i], got, pairs[i+1])
		}
	}
}

// produced is a message, with the trace of its producer in its headers.
func (ts *traces) produced(value string) (consumer.Message, trace.SpanContext) {
	ts.Helper()
	member, err := baggage.NewMember("tenant", value)
	if err != nil {
		ts.Fatal(err)
	}
	bag, err := baggage.New(member)
	if err != nil {
		ts.Fatal(err)
	}
	ctx, span := ts.provider.Tracer("producer").Start(baggage.ContextWithBaggage(ts.Context(), bag), "produce")
	span.End()
	carrier := propagation.MapCarrier{}
	both.Inject(ctx, carrier)
	m := consumer.Message{Value: []byte(value)}
	for k, v := range carrier {
		m.Headers = append(m.Headers, consumer.Header{Key: strings.ToUpper(k), Value: []byte(v)})
	}
	return m, span.SpanContext()
}

// consume applies messages that are there in one transaction.
func (ts *traces) consume(tr *fenceotel.Tracing, h consumer.Handlers[*memsink.Tx], ms ...consumer.Message) {
	ts.Helper()
	log := memsource.New("orders", 1)
	log.AppendMessages(0, ms...)
	err := consumer.Run(log.UntilApplied(ts.Context()), log.Member("a"), fenceotel.Sink[*memsink.Tx](tr, memsink.New()), h,
		consumer.Options{Observe: tr.Observe, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		ts.Fatal(err)
	}
}

func linked(s tracetest.SpanStub) (ids []trace.SpanID) {
	for _, l := range s.Links {
		ids = append(ids, l.SpanContext.SpanID())
	}
	return ids
}

func TestAMessagesSpanIsInTheCommitsTraceWithALinkToItsProducer(t *testing.T) {
	ts := newTraces(t)
	tr := ts.tracing(false)
	chair, fromChair := ts.produced("chair")
	table, fromTable := ts.produced("table")
	var tenants []string
	ts.consume(tr, consumer.Each(fenceotel.Each(tr, func(ctx context.Context, _ *memsink.Tx, m consumer.Message, _ epoch.Epoch) error {
		tenants = append(tenants, baggage.FromContext(ctx).Member("tenant").Value())
		_, span := ts.provider.Tracer("handler").Start(ctx, "work on "+string(m.Value))
		span.End()
		return nil
	})), chair, table)

	commit := ts.one("commit orders")
	if commit.Parent.IsValid() || commit.SpanKind != trace.SpanKindClient || commit.Status.Code != codes.Unset {
		t.Errorf("the commit is %+v", commit)
	}
	ts.wantAttributes(commit, "messaging.system", "kafka", "messaging.operation.name", "commit", "messaging.operation.type", "settle",
		"messaging.destination.name", "orders", "messaging.destination.partition.id", "0", "messaging.consumer.group.name", "group", "epochfence.commit.partitions", "1")
	process := ts.named("process orders")
	if len(process) != 2 {
		t.Fatalf("%d process spans", len(process))
	}
	for i, from := range []trace.SpanContext{fromChair, fromTable} {
		p := process[i]
		if p.Parent.SpanID() != commit.SpanContext.SpanID() || p.SpanKind != trace.SpanKindConsumer || !slices.Equal(linked(p), []trace.SpanID{from.SpanID()}) {
			t.Errorf("process span %d has parent %v and links %v", i, p.Parent.SpanID(), linked(p))
		}
		ts.wantAttributes(p, "messaging.operation.name", "process", "messaging.operation.type", "process", "messaging.kafka.offset", string(rune('0'+i)), "epochfence.epoch", "1")
		if work := ts.one("work on " + []string{"chair", "table"}[i]); work.Parent.SpanID() != p.SpanContext.SpanID() {
			t.Errorf("what the handler does is below %v", work.Parent.SpanID())
		}
	}
	if !slices.Equal(tenants, []string{"chair", "table"}) {
		t.Errorf("baggage %q", tenants)
	}
	claim := ts.one("claim orders")
	ts.wantAttributes(claim, "messaging.operation.name", "claim", "epochfence.epoch", "1", "epochfence.claim.attempts", "1")
	if claim.EndTime.Before(claim.StartTime) || claim.Parent.IsValid() {
		t.Errorf("the claim is %+v", claim)
	}
}

func TestWithParentAMessagesSpanIsInItsOwnTraceWithALinkToTheCommit(t *testing.T) {
	ts := newTraces(t)
	tr := ts.tracing(true)
	chair, from := ts.produced("chair")
	ts.consume(tr, consumer.Each(fenceotel.Each(tr, func(context.Context, *memsink.Tx, consumer.Message, epoch.Epoch) error { return nil })),
		chair, consumer.Message{Value: []byte("of no trace")})
	commit, process := ts.one("commit orders"), ts.named("process orders")
	if p := process[0]; p.Parent.SpanID() != from.SpanID() || !slices.Equal(linked(p), []trace.SpanID{commit.SpanContext.SpanID()}) {
		t.Errorf("parent %v, links %v", p.Parent.SpanID(), linked(p))
	}
	if p := process[1]; p.Parent.SpanID() != commit.SpanContext.SpanID() || len(p.Links) != 0 {
		t.Errorf("parent %v, links %v", p.Parent.SpanID(), linked(p))
	}
}

// A client such as franz-go with kotel has made spans of messages already.
func TestTheSpanOfTheSourcesClientComesBeforeTheHeaders(t *testing.T) {
	for _, parent := range []bool{false, true} {
		ts := newTraces(t)
		tr := ts.tracing(parent)
		m, _ := ts.produced("chair")
		ctx, receive := ts.provider.Tracer("client").Start(t.Context(), "receive")
		receive.End()
		m.Context = ctx
		ts.consume(tr, consumer.Each(fenceotel.Each(tr, func(context.Context, *memsink.Tx, consumer.Message, epoch.Epoch) error { return nil })), m)
		received := receive.SpanContext()
		commit, p := ts.one("commit orders"), ts.one("process orders")
		if want := map[bool]trace.SpanID{true: received.SpanID(), false: commit.SpanContext.SpanID()}[parent]; p.Parent.SpanID() != want {
			t.Errorf("parent: %v: the process span is below %v, want %v", parent, p.Parent.SpanID(), want)
		}
		if !parent && !slices.Equal(linked(p), []trace.SpanID{received.SpanID()}) {
			t.Errorf("links %v", linked(p))
		}
		if got := commit.SpanContext.TraceID() == received.TraceID(); got != parent {
			t.Errorf("parent: %v: the commit is in the message's trace: %v", parent, got)
		}
	}
}

func TestABatchHasALinkToEachMessage(t *testing.T) {
	ts := newTraces(t)
	tr := ts.tracing(false)
	var ms []consumer.Message
	var want []trace.SpanID
	for range 200 {
		m, from := ts.produced("x")
		ms, want = append(ms, m), append(want, from.SpanID())
	}
	ts.consume(tr, consumer.Batches(fenceotel.Batches(tr, func(ctx context.Context, _ *memsink.Tx, _ []consumer.Message, _ epoch.Epoch) error {
		if !trace.SpanContextFromContext(ctx).IsValid() {
			t.Error("the handler has no span")
		}
		return nil
	})), ms...)
	p := ts.one("process orders")
	if !slices.Equal(linked(p), want[:128]) {
		t.Errorf("%d links", len(p.Links))
	}
	ts.wantAttributes(p, "messaging.batch.message_count", "200")
}

func TestASpanOfSeveralPartitionsNamesNone(t *testing.T) {
	ts := newTraces(t)
	at := func(n int32) consumer.Message {
		p := epoch.Partition{Group: "group", Topic: "orders", Number: n}
		return consumer.Message{Partition: p, Under: &epoch.Fence{Origin: epoch.Origin{Partition: p}, Epoch: 7}}
	}
	handle := fenceotel.EachTransaction(ts.tracing(false), func(ctx context.Context, _ *memsink.Tx, _ []consumer.Message) error {
		if !trace.SpanContextFromContext(ctx).IsValid() {
			t.Error("the handler has no span")
		}
		return nil
	})
	for _, ms := range [][]consumer.Message{{at(3), at(3)}, {at(3), at(4)}} {
		if err := handle(t.Context(), nil, ms); err != nil {
			t.Fatal(err)
		}
	}
	spans := ts.named("process orders")
	ts.wantAttributes(spans[0], "messaging.destination.partition.id", "3", "epochfence.epoch", "7", "messaging.batch.message_count", "2")
	ts.wantAttributes(spans[1], "messaging.destination.partition.id", "", "epochfence.epoch", "", "messaging.batch.message_count", "2")
}

func TestASpanSaysWhatFailed(t *testing.T) {
	ts := newTraces(t)
	tr := ts.tracing(false)
	broken := errors.New("no such item")
	tries := 0
	ts.consume(tr, consumer.Each(fenceotel.Each(tr, func(context.Context, *memsink.Tx, consumer.Message, epoch.Epoch) error {
		switch tries++; tries {
		case 1:
			return broken
		case 2:
			panic("oh")
		}
		return nil
	})), consumer.Message{Value: []byte("chair")})
	var said []string
	for _, s := range ts.named("process orders") {
		said = append(said, s.Status.Code.String()+" "+s.Status.Description+" "+attribute(s, "error.type"))
	}
	if want := []string{"Error no such item *errors.errorString", "Error it did not return *errors.errorString", "Unset  "}; !slices.Equal(said, want) {
		t.Errorf("%q, want %q", said, want)
	}
	if commits := ts.named("commit orders"); len(commits) != 3 || commits[0].Status.Code != codes.Error || commits[2].Status.Code != codes.Unset {
		t.Errorf("commits %+v", commits)
	}
}

func TestAnAttemptToClaimThatFailsIsASpanWithTheReason(t *testing.T) {
	ts := newTraces(t)
	tr := ts.tracing(false)
	tr.Observe(consumer.NotClaimed{Partition: at, Reason: consumer.ReasonNotConfirmed, Err: errors.New("no leader"), Took: time.Second})
	claim := ts.one("claim orders")
	ts.wantAttributes(claim, "error.type", "not_confirmed", "messaging.destination.partition.id", "3")
	if d := claim.EndTime.Sub(claim.StartTime); claim.Status.Code != codes.Error || d != time.Second {
		t.Errorf("the claim took %v, %+v", d, claim.Status)
	}
}

func TestTheTraceGoesOnThroughTheOutboxToTheReceiver(t *testing.T) {
	ts := newTraces(t)
	tr := ts.tracing(false)
	var received trace.SpanContext
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		received = trace.SpanContextFromContext(both.Extract(r.Context(), propagation.HeaderCarrier(r.Header)))
		w.WriteHeader(http.StatusConflict)
	}))
	defer srv.Close()
	ctx, handler := ts.provider.Tracer("handler").Start(t.Context(), "process orders")
	given := http.Header{"X-Own": {"1"}}
	e := tr.Entry(ctx, outbox.Entry{URL: srv.URL + "/secret", Header: given})
	handler.End()
	if len(given) != 1 || e.Header.Get("X-Own") != "1" {
		t.Errorf("the entry's own header became %v, the application's %v", e.Header, given)
	}

	// Later, and elsewhere, the relay sends it.
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, e.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header = e.Header.Clone()
	if err := (httpfence.Call{Scope: "account/17", Epoch: 7, Key: "k"}).SetHeaders(req.Header); err != nil {
		t.Fatal(err)
	}
	before := req.Header.Get("Traceparent")
	res, err := (&http.Client{Transport: tr.Transport(nil)}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, res.Body)
	_ = res.Body.Close()
	send := ts.one("send")
	if send.Parent.SpanID() != handler.SpanContext().SpanID() || received.SpanID() != send.SpanContext.SpanID() {
		t.Errorf("the request is below %v, and the receiver below %v", send.Parent.SpanID(), received.SpanID())
	}
	if req.Header.Get("Traceparent") != before {
		t.Error("the request that was given has been changed")
	}
	ts.wantAttributes(send, "http.request.method", "POST", "http.response.status_code", "409", "server.address", "127.0.0.1", "epochfence.scope", "account/17", "epochfence.epoch", "7")
	if send.Status.Code != codes.Error {
		t.Errorf("%+v", send.Status)
	}
	for _, a := range send.Attributes {
		if strings.Contains(a.Value.String(), "secret") {
			t.Errorf("%s holds the path", a.Key)
		}
	}
}

func TestARequestWithoutAnAnswerFailsWithoutTellingItsURL(t *testing.T) {
	ts := newTraces(t)
	srv := httptest.NewServer(http.NotFoundHandler())
	srv.Close()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, srv.URL+"/secret", nil)
	if err != nil {
		t.Fatal(err)
	}
	if res, err := ts.tracing(false).Transport(http.DefaultTransport).RoundTrip(req); err == nil {
		_ = res.Body.Close()
		t.Fatal("answered")
	}
	if send := ts.one("send"); send.Status.Code != codes.Error || strings.Contains(send.Status.Description, "secret") {
		t.Errorf("%+v", send.Status)
	}
}

// From a decision one gets to the spans in which it was made.
func TestTheDecisionLogNamesTheTracesOfClaimsRefusalsAndHalts(t *testing.T) {
	ts := newTraces(t)
	tr := ts.tracing(false)
	log := memsource.New("orders", 1)
	log.AppendMessages(0, consumer.Message{Value: []byte("chair")}, consumer.Message{Value: []byte("poison")})
	sink := memsink.New()
	another := sink.Open()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	raced, taken := false, false
	sink.Script(memsink.Hooks{
		Claim: func(ctx context.Context, c epoch.Claim, do func() error) error {
			if !raced { // by a claim of somebody else's
				raced = true
				claims(t, another, c.Origin)
			}
			return do()
		},
		Commit: func(_ context.Context, as []epoch.Advance, do func() error) error {
			if !taken {
				taken = true
				f, err := epoch.FenceOf(ctx, another, as[0].Partition)
				if err != nil {
					t.Error(err)
				}
				claims(t, another, f.Origin)
			}
			return do()
		},
	})
	err := consumer.Run(ctx, log.Member("a"), fenceotel.Sink[*memsink.Tx](tr, sink), consumer.Each(func(_ context.Context, _ *memsink.Tx, m consumer.Message, _ epoch.Epoch) error {
		if string(m.Value) == "poison" {
			return consumer.Permanent(errors.New("it is no order"))
		}
		return nil
	}), consumer.Options{Logger: slog.New(slog.DiscardHandler), Observe: func(e consumer.Event) {
		tr.Observe(e)
		if _, ok := e.(consumer.Halted); ok {
			stop()
		}
	}})
	if err != nil && !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	decisions, err := another.Operator().History(t.Context(), operate.HistoryQuery{})
	if err != nil {
		t.Fatal(err)
	}
	var got, want []string
	for _, d := range slices.Backward(decisions) {
		if d.TraceID != "" {
			got = append(got, string(d.Kind)+" "+d.TraceID)
		}
	}
	trace := func(kind operate.DecisionKind, spans tracetest.SpanStubs, i int) {
		t.Helper()
		if i < 0 || i >= len(spans) {
			t.Fatalf("%d spans", len(spans))
		}
		want = append(want, string(kind)+" "+spans[i].SpanContext.TraceID().String())
	}
	claimed, commits := ts.named("claim orders"), ts.named("commit orders")
	trace(operate.DecidedClaim, claimed, 1) // the first one is refused, which is no decision
	trace(operate.DecidedStale, commits, slices.IndexFunc(commits, func(s tracetest.SpanStub) bool { return strings.Contains(s.Status.Description, "stale") }))
	trace(operate.DecidedClaim, claimed, 2)
	trace(operate.DecidedHalt, commits, len(commits)-1)
	slices.Sort(got) // what is written beside the work comes later
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("the decisions with a trace are\n%q, want\n%q", got, want)
	}
	for i, attempts := range []string{"1", "2", "1"} {
		ts.wantAttributes(claimed[i], "epochfence.claim.attempts", attempts)
	}
}

// claims makes a claim as another process would.
func claims(t *testing.T, s *memsink.Sink, o epoch.Origin) {
	t.Helper()
	seen, err := epoch.FenceOf(t.Context(), s, o.Partition)
	if err == nil {
		_, err = s.Claim(t.Context(), seen, epoch.NewClaim(epoch.Lease{Origin: o, Generation: 1, Owner: "b"}))
	}
	if err != nil {
		t.Error(err)
	}
}

// What a sink has besides it keeps.
func TestATracedSinkHidesNeitherItsDatabasesNorItsDecisionLog(t *testing.T) {
	tr := newTraces(t).tracing(false)
	if s, ok := epoch.As[epoch.Sharded](fenceotel.Sink[*memsink.Tx](tr, sharded{memsink.New(), nil})); !ok || s == nil {
		t.Error("a sink of several databases is not one any more")
	}
	one := fenceotel.Sink[*memsink.Tx](tr, memsink.New())
	if _, ok := epoch.As[epoch.Sharded](one); ok {
		t.Error("a sink of one database has become one of several")
	}
	if _, ok := epoch.As[operate.Ledger[*memsink.Tx]](one); !ok {
		t.Error("the audit log is hidden")
	}
}

type sharded struct {
	*memsink.Sink
	epoch.Sharded
}
