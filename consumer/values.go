package consumer

import "context"

// This file gives a handler the values of its message's own context, such as a trace. Deadline and
// cancellation stay those of the transaction.

// withValues returns ctx with the values of the message's context before its own.
func withValues(ctx context.Context, m Message) context.Context {
	if m.Context == nil {
		return ctx
	}
	return valued{ctx, context.WithoutCancel(m.Context)}
}

// valued is a context with the values of two contexts. Those of values come first.
type valued struct {
	context.Context
	values context.Context
}

func (c valued) Value(key any) any {
	if v := c.values.Value(key); v != nil {
		return v
	}
	return c.Context.Value(key)
}
