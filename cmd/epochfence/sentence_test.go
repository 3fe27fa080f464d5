package main

import (
	"testing"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

func TestAHangIsToldWithItsMessage(t *testing.T) {
	for _, c := range []struct {
		from, to epoch.Offset
		want     string
	}{
		{-1, -1, "GIVEN UP by a, as a call hangs: it waits"},
		{7, 8, "GIVEN UP by a, as the message at offset 7 hangs: it waits"},
		{5, 9, "GIVEN UP by a, as a message in [5, 9) hangs: it waits"},
	} {
		for _, kind := range []operate.DecisionKind{operate.DecidedHang, operate.DecidedOnFailureHang} {
			if got := sentence("a log", operate.Decision{Kind: kind, Owner: "a", From: c.from, To: c.to, Reason: "it waits"}); got != c.want {
				t.Errorf("%s: %s, want %s", kind, got, c.want)
			}
		}
	}
}
