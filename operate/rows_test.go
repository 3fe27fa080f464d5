package operate_test

import (
	"context"
	"testing"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

// listed is a sink with one row of ours and one of somebody else's, whatever is asked for.
type listed struct{ operate.Admin }

func (listed) Rows(_ context.Context, q operate.RowQuery) ([]operate.Row, error) {
	ours := operate.Row{Kind: q.Kind, ID: 1, Name: epoch.NewClaimID().String(), Body: []byte(`{"to":7,"of tomorrow":[1]}`)}
	return []operate.Row{ours, {Kind: q.Kind, ID: 2, Name: "no claim", Text: "strange", Body: []byte(`["?"]`)}}, nil
}

func TestARowThatIsNotOursHidesNoOther(t *testing.T) {
	op := operate.On(listed{})
	ds, err := op.History(t.Context(), operate.HistoryQuery{})
	if err != nil || len(ds) != 2 || ds[0].To != 7 || ds[1].ID != 2 || ds[1].Reason != "strange" || ds[1].To != -1 {
		t.Errorf("%+v, %v", ds, err)
	}
	if ps, err := op.Processes(t.Context(), ""); err != nil || len(ps) != 2 {
		t.Errorf("%+v, %v", ps, err)
	}
	if ls, err := op.DeadLetters(t.Context(), operate.DeadLetterQuery{}); err != nil || len(ls) != 2 || ls[1].Error != "strange" {
		t.Errorf("%+v, %v", ls, err)
	}
	if es, err := op.OutboxEntries(t.Context(), operate.OutboxQuery{}); err != nil || len(es) != 2 || es[1].ID != 2 {
		t.Errorf("%+v, %v", es, err)
	}
}
