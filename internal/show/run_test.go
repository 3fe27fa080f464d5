package show

import (
	"bytes"
	"errors"
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
		if got := Conclude(b, c.columns); got != c.want {
			t.Errorf("%s: status %d, want %d", name, got, c.want)
		}
	}
}
