package pgschema

import "context"

type ownKey struct{}

// Own marks the statements that are sent with ctx through a handler's transaction as a
// package's own, and not the handler's. What its tables refuse is no message's fault. The
// mark travels through whatever a program has wrapped the transaction in, and no program can set it.
func Own(ctx context.Context) context.Context { return context.WithValue(ctx, ownKey{}, true) }

// IsOwn reports whether [Own] has marked ctx.
func IsOwn(ctx context.Context) bool { return ctx.Value(ownKey{}) != nil }
