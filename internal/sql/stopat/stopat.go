// Package stopat lets a test end a transaction at one of its handler's statements. Package consumertest sets
// what is asked before each statement, and the sinks ask it. It is in the context of a Commit, so that the
// handler's own contexts cannot hide it.
package stopat

import "context"

// Stop is called before a statement is sent. If it returns an error, the statement is not sent, and the handler
// gets the error.
type Stop func() error

type key struct{}

// With returns ctx for a transaction whose statements stop asks for.
func With(ctx context.Context, stop Stop) context.Context { return context.WithValue(ctx, key{}, stop) }

// Of returns what With has set, or a function that stops nothing.
func Of(ctx context.Context) Stop {
	if stop, is := ctx.Value(key{}).(Stop); is {
		return stop
	}
	return func() error { return nil }
}
