package main

import (
	"os"
	"testing"

	"github.com/epochfence/epochfence/internal/show"
)

// The workers and the gateways are this test binary.
func TestMain(m *testing.M) {
	show.Enter(work)
	os.Exit(m.Run())
}
