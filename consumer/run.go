// Package consumer applies the messages of a [Source] to an [epoch.Sink], each
// exactly once.
package consumer

import (
	"context"

	"github.com/epochfence/epochfence/epoch"
)

// Run consumes until ctx ends.
func Run[TX any](ctx context.Context, source Source, sink epoch.Sink[TX], handle Handler[TX], o Options[TX]) error {
	panic("under construction")
}

// RunBatch is Run for a [BatchHandler].
func RunBatch[TX any](ctx context.Context, source Source, sink epoch.Sink[TX], handle BatchHandler[TX], o Options[TX]) error {
	panic("under construction")
}
