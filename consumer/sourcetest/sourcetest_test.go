package sourcetest_test

import (
	"testing"
	"time"

	"github.com/epochfence/epochfence/consumer/memsource"
	"github.com/epochfence/epochfence/consumer/sourcetest"
)

func TestMemsource(t *testing.T) {
	sourcetest.RunParallel(t, func(testing.TB) sourcetest.Harness { return newMemory(2 * time.Second) })
}

func TestMemsourceInABubble(t *testing.T) {
	sourcetest.RunInBubble(t, func(testing.TB) sourcetest.Harness { return newMemory(memsource.DefaultTerm) })
}
