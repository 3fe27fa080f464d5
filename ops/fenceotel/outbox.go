package fenceotel

import (
	"context"
	"net/http"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.39.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/epochfence/epochfence/httpfence"
	"github.com/epochfence/epochfence/outbox"
)

// Entry returns e with the trace context of ctx among its headers, so that its request, sent
// later and perhaps by another process, continues with that trace:
//
//	err := box.Add(ctx, tx, m, tr.Entry(ctx, e))
func (t *Tracing) Entry(ctx context.Context, e outbox.Entry) outbox.Entry {
	e.Header = e.Header.Clone()
	if e.Header == nil {
		e.Header = http.Header{}
	}
	t.o.Propagator.Inject(ctx, propagation.HeaderCarrier(e.Header))
	return e
}

// Transport returns base with a span around each request, which is in the trace of the
// handler that added the entry, and which the receiver is told of. It is for the client of
// [outbox.Options]; nil means [http.DefaultTransport], which keeps two connections to a
// host: give one that keeps as many as [outbox.Options].Concurrency needs where they are many.
// The path and the query of a URL are in no span, as they may be secret.
func (t *Tracing) Transport(base http.RoundTripper) http.RoundTripper {
	if base == nil {
		base = http.DefaultTransport
	}
	return transport{t, base}
}

type transport struct {
	t    *Tracing
	base http.RoundTripper
}

func (r transport) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx := r.t.o.Propagator.Extract(req.Context(), propagation.HeaderCarrier(req.Header))
	ctx, span := r.t.tracer.Start(ctx, "send", trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(
		semconv.HTTPRequestMethodKey.String(req.Method), semconv.ServerAddress(req.URL.Hostname()), semconv.URLScheme(req.URL.Scheme)))
	defer span.End()
	if c, err := httpfence.ReadCall(req.Header); err == nil {
		span.SetAttributes(scopeKey.String(c.Scope), epochKey.Int64(int64(c.Epoch)))
	}
	req = req.Clone(ctx)
	r.t.o.Propagator.Inject(ctx, propagation.HeaderCarrier(req.Header))
	res, err := r.base.RoundTrip(req)
	if err != nil {
		span.SetStatus(codes.Error, "the request failed") // the error's text has the URL
		span.SetAttributes(semconv.ErrorTypeKey.String(errorType(err)))
		return nil, err
	}
	span.SetAttributes(semconv.HTTPResponseStatusCode(res.StatusCode))
	if res.StatusCode >= 400 {
		span.SetStatus(codes.Error, res.Status)
	}
	return res, nil
}
