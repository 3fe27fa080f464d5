//go:build !later

package main

import (
	"context"
	"errors"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/operate"
)

func retryLater() error { return consumer.Permanent(errors.New("it is later")) }

func deferred(context.Context, operate.Operator) ([]operate.DeadLetter, error) { return nil, nil }
