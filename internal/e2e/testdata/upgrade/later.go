//go:build later

package main

import (
	"context"
	"errors"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/operate"
)

// This file is for versions that can defer a message, and never.go for those before.

func retryLater() error { return consumer.RetryAfter(errors.New("it is later"), 10*time.Second) }

func deferred(ctx context.Context, o operate.Operator) ([]operate.DeadLetter, error) {
	return o.DeadLetters(ctx, operate.DeadLetterQuery{Limit: 1 << 16, Deferred: true})
}
