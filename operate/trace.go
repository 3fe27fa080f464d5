package operate

import (
	"context"
	"errors"
)

// This file carries trace ids to the audit log, in a context or with an error. Package fenceotel
// sets them.

type traceIDKey struct{}

// WithTraceID returns a context for [epoch.Sink.Claim], which records the trace id in the audit
// log.
func WithTraceID(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, traceIDKey{}, id)
}

// TraceID returns what [WithTraceID] has set, or the empty string.
func TraceID(ctx context.Context) string {
	id, _ := ctx.Value(traceIDKey{}).(string)
	return id
}

// InTrace returns err with a trace id, which the audit log records. An [epoch.Sink] that traces
// another sink wraps its errors with InTrace. If err is nil or id is empty, InTrace returns err.
func InTrace(err error, id string) error {
	if err == nil || id == "" {
		return err
	}
	return &tracedError{err, id}
}

// TraceOf returns the trace id that [InTrace] has set, or the empty string.
func TraceOf(err error) string {
	if t, ok := errors.AsType[*tracedError](err); ok {
		return t.id
	}
	return ""
}

type tracedError struct {
	err error
	id  string
}

func (e *tracedError) Error() string { return e.err.Error() }
func (e *tracedError) Unwrap() error { return e.err }
