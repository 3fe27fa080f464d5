package show

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
)

func TestWhatIsLeftOverTakesNoVerdictAway(t *testing.T) {
	var out, errOut bytes.Buffer
	play := func(context.Context, *Board) ([]*Column, error) {
		return []*Column{{Name: Fence, Crew: NewCrew(nil), Exact: true, Judged: true}}, errors.New("the topic is still there")
	}
	status := Run(t.Context(), "demo", &out, &errOut, func() error { return nil }, play, func(*Board, []*Column) {})
	if status != StatusExact || !strings.Contains(out.String(), "is exact") {
		t.Errorf("status %d, %q", status, out.String())
	}
	if !strings.Contains(errOut.String(), "demo: not all could be cleaned up: the topic is still there") {
		t.Errorf("nothing is said of what is left over: %q", errOut.String())
	}
}

func TestTheExitStatusFollowsTheFencedColumn(t *testing.T) {
	b := NewBoard(&bytes.Buffer{})
	column := func(name string, exact, judged bool) *Column {
		return &Column{Name: name, Crew: NewCrew(nil), Exact: exact, Judged: judged}
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
		if got := Conclude(b, c.columns, func(*Board, []*Column) {}); got != c.want {
			t.Errorf("%s: status %d, want %d", name, got, c.want)
		}
	}
}
