package pgschema

import "context"

type ownKey struct{}

// Own marks the statements that are sent with ctx through a handler's transaction as a package's
// own. A refusal by the package's tables is no message's fault. The mark passes through a
// transaction that a program has wrapped, and no program can set it.
func Own(ctx context.Context) context.Context { return context.WithValue(ctx, ownKey{}, true) }

// IsOwn reports whether [Own] has marked ctx.
func IsOwn(ctx context.Context) bool { return ctx.Value(ownKey{}) != nil }
