package consumer

import "context"

// withValues returns ctx with the values of the message's own context, if it has one.
func withValues(ctx context.Context, m Message) context.Context {
	if m.Context == nil {
		return ctx
	}
	return valued{ctx, context.WithoutCancel(m.Context)}
}

// valued is a context with the values of another, where that has them.
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
