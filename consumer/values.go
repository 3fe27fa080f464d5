package consumer

import "context"

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
