package show

import (
	"bytes"
	"errors"
	"strings"
	"testing"
)

func TestTheExitStatusFollowsTheFencedColumn(t *testing.T) {
	b := NewBoard(&bytes.Buffer{})
	column := func(name string, exact, judged bool) *Column {
		c := &Column{Name: name, Exact: exact}
		if !judged {
			c.Err = errors.New("cut")
		}
		return c
	}
	for name, c := range map[string]struct {
		columns []*Column
		want    int
	}{
		"exact beside damage":    {[]*Column{column(Fence, true, true), column(Baseline, false, true)}, StatusExact},
		"damage":                 {[]*Column{column(Fence, false, true), column(Baseline, true, true)}, StatusNot},
		"not judged":             {[]*Column{column(Fence, true, false)}, StatusNot},
		"beside one unplayed":    {[]*Column{column(Fence, true, true), column(Baseline, true, false)}, StatusExact},
		"alone, as -naive=false": {[]*Column{column(Fence, true, true)}, StatusExact},
	} {
		if got := conclude(b, c.columns, "all"); got != c.want {
			t.Errorf("%s: status %d, want %d", name, got, c.want)
		}
	}
}

func TestATableIsAligned(t *testing.T) {
	got := table([]*Column{
		{Name: "fenced", Rows: []Row{{"messages sent", "1,234,567"}, {"  doubled", "0"}}},
		{Name: "baseline", Rows: []Row{{"messages sent", "0"}, {"  doubled", "12,345"}}},
	})
	want := strings.Join([]string{
		"                                  fenced   baseline",
		"   ------------------------------------------------",
		"   messages sent               1,234,567          0",
		"     doubled                           0     12,345",
		"",
	}, "\n")
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestThousands(t *testing.T) {
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", -1234567: "-1,234,567", 100: "100"} {
		if got := Thousands(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
}
