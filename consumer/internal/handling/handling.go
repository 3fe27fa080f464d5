// Package handling has what package consumer shows of its Handlers to the tests of handlers.
package handling

import (
	"context"

	"github.com/epochfence/epochfence/epoch"
)

// Functions are the user's functions in consumer.Handlers. One of the first three is set.
type Functions[TX any] struct {
	Each      func(ctx context.Context, tx TX, m epoch.Message, e epoch.Epoch) error
	Batch     func(ctx context.Context, tx TX, ms []epoch.Message, e epoch.Epoch) error
	Whole     func(ctx context.Context, tx TX, ms []epoch.Message) error
	OnFailure func(ctx context.Context, tx TX, m epoch.Message, e epoch.Epoch, cause error) error
}

// Key is the argument of consumer.Handlers.Functions, so that only this module can call it.
type Key struct{}
