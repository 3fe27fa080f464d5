package kafkaoutbox_test

import (
	"slices"
	"testing"

	"github.com/epochfence/epochfence/outbox"
)

func TestRecordsArriveOnceAndInTheOrderOfTheirKeys(t *testing.T) {
	r := newRig(t, onKfake(t))
	r.add("a", "b", "-", "a", "b", "a", "a")
	r.takeOver(&process{})
	r.awaitEmpty()
	r.add("b", "a", "-")
	r.awaitEmpty()
	r.wantAll()
	if got := r.observed(outbox.Delivered); !slices.IsSorted(got) || len(got) != 10 {
		t.Errorf("delivered %v; want ten entries", got)
	}
}
