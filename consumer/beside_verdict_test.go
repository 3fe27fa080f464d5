package consumer

import (
	"errors"
	"slices"
	"testing"

	"github.com/epochfence/epochfence/epoch"
)

// What is known of one call is not known of all: a common call has messages of all partitions, and calls beside
// each other have all begun when one of them fails.
func TestWhatACommonCallOrCallsBesideEachOtherSayOfEachPartition(t *testing.T) {
	t.Parallel()
	failure, ended := errors.New("out of stock"), epoch.ErrTxEndedByHandler
	of := func(err error, change func(*result)) result {
		r := result{err: err, called: true, handler: err, batch: 0, at: 2}
		change(&r)
		return r
	}
	plain := func(*result) {}
	whole := func(r *result) { r.whole, r.at = true, -1 }
	beside := func(r *result) { r.beside = true }
	late := func(r *result) { r.timedOut = true }
	besideLate := func(r *result) { r.beside, r.timedOut = true, true }
	for name, c := range map[string]struct {
		r    result
		want []verdict // of action, finding and at
	}{
		"one of several calls fails":         {of(failure, plain), []verdict{{action: retry, finding: oneOfThem, at: 2}, {action: retry}}},
		"a common call fails":                {of(failure, whole), []verdict{{action: retry, finding: oneOfThem, at: -1}, {action: retry, finding: oneOfThem, at: -1}}},
		"one of those beside others fails":   {of(failure, beside), []verdict{{action: retry, finding: oneOfThem, at: 2}, {action: retry}}},
		"one of several runs out of time":    {of(failure, late), []verdict{{action: retry, finding: tooMany}, {action: retry}}},
		"those beside each other do":         {of(failure, besideLate), []verdict{{action: retry, finding: tooMany}, {action: retry, finding: tooMany}}},
		"one ends the transaction":           {of(ended, plain), []verdict{{action: haltForGood}, {action: retry}}},
		"a common call ends it":              {of(ended, whole), []verdict{{action: haltForGood}, {action: haltForGood}}},
		"one beside others ends it":          {of(ended, beside), []verdict{{action: haltForGood}, {action: haltForGood}}},
		"a common call loses its connection": {of(errors.Join(failure, epoch.ErrInDoubt), whole), []verdict{{action: claimAgain, finding: oneOfThem, at: -1}, {action: claimAgain, finding: oneOfThem, at: -1}}},
	} {
		tried := []trial{{partition: epoch.Partition{Topic: "orders"}, messages: 5}, {partition: epoch.Partition{Topic: "orders", Number: 1}, messages: 5}}
		got := policy{maxAttempts: 10, onFailure: true}.judge(tried, c.r)
		for i := range got {
			got[i].err = nil
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}
