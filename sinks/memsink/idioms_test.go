package memsink_test

import (
	"testing"

	"github.com/epochfence/epochfence/sinks/memsink"
	"github.com/epochfence/epochfence/sinks/sinktest"
)

func TestIdioms(t *testing.T) {
	sinktest.Idioms(t, sinktest.Idiomatic[*memsink.Tx]{Mode: "memsink", Database: create, Virtual: true})
}
