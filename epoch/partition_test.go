package epoch_test

import (
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/epochfence/epochfence/epoch"
)

func TestPartitionString(t *testing.T) {
	for want, p := range map[string]epoch.Partition{
		"billing/orders/0":           {Group: "billing", Topic: "orders"},
		"billing/größe/7":            {Group: "billing", Topic: "größe", Number: 7},
		"g/t/2147483647":             {Group: "g", Topic: "t", Number: math.MaxInt32},
		"g/t/-1":                     {Group: "g", Topic: "t", Number: -1},
		`""/""/0`:                    {},
		`"a/b"/c/0`:                  {Group: "a/b", Topic: "c"},
		`a/"b/c"/0`:                  {Group: "a", Topic: "b/c"},
		`"two words"/"a\nline"/0`:    {Group: "two words", Topic: "a\nline"},
		`"say \"x\""/"\xff\u200b"/0`: {Group: `say "x"`, Topic: "\xff\u200b"},
	} {
		if got := p.String(); got != want {
			t.Errorf("%#v is %s, want %s", p, got, want)
		}
	}
}

// Sinks use the text as a name in logs, and people compare it.
func TestPartitionsWithDifferentNamesReadDifferently(t *testing.T) {
	name := rapid.OneOf(rapid.String(), rapid.StringMatching(`[a"/\\ ]{0,4}`))
	rapid.Check(t, func(t *rapid.T) {
		p := epoch.Partition{Group: name.Draw(t, "group"), Topic: name.Draw(t, "topic"), Number: rapid.Int32().Draw(t, "number")}
		q := epoch.Partition{Group: name.Draw(t, "group"), Topic: name.Draw(t, "topic"), Number: rapid.Int32().Draw(t, "number")}
		if (p == q) != (p.String() == q.String()) {
			t.Fatalf("%#v and %#v are %s and %s", p, q, p, q)
		}
	})
}

func TestCompareOrdersByGroupThenTopicThenNumber(t *testing.T) {
	rising := []epoch.Partition{
		{Group: "", Topic: "z", Number: 9},
		{Group: "A", Topic: "z", Number: 9},
		{Group: "a", Topic: "", Number: 9},
		{Group: "a", Topic: "B", Number: 9},
		{Group: "a", Topic: "_", Number: 9},
		{Group: "a", Topic: "b", Number: -1},
		{Group: "a", Topic: "b", Number: 2},
		{Group: "a", Topic: "b", Number: 10},
		{Group: "a", Topic: "ba", Number: 0},
		{Group: "a", Topic: "é", Number: 0},
		{Group: "ab", Topic: "", Number: 0},
	}
	for i, p := range rising {
		for j, q := range rising {
			want := 0
			if i < j {
				want = -1
			} else if i > j {
				want = 1
			}
			if got := p.Compare(q); got != want {
				t.Errorf("%s against %s: %d, want %d", p, q, got, want)
			}
		}
	}
}
