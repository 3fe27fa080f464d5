package show

import (
	"slices"
	"testing"
)

func TestTheAuditFindsEachKindOfDamage(t *testing.T) {
	exact := []Effect{{0, "a", 0, 3}, {1, "b", 0, 3}, {2, "a", 1, 3}, {3, "b", 1, 4}, {4, "a", 2, 5}}
	for name, c := range map[string]struct {
		change func([]Effect) []Effect
		want   Findings
	}{
		"none": {
			func(es []Effect) []Effect { return es },
			Findings{Sent: 5, Epochs: true, Effects: 5},
		},
		"doubled at once": {
			func(es []Effect) []Effect { return slices.Insert(es, 1, es[0]) },
			Findings{Sent: 5, Epochs: true, Effects: 6, Doubled: 1},
		},
		"doubled later": {
			func(es []Effect) []Effect { return append(es, es[0]) },
			Findings{Sent: 5, Epochs: true, Effects: 6, Doubled: 1, Disorder: 1},
		},
		"lost": {
			func(es []Effect) []Effect { return slices.Delete(es, 2, 3) },
			Findings{Sent: 5, Epochs: true, Effects: 4, Lost: 1},
		},
		"lost at the end": {
			func(es []Effect) []Effect { return es[:4] },
			Findings{Sent: 5, Epochs: true, Effects: 4, Lost: 1},
		},
		"out of order": {
			func(es []Effect) []Effect { es[0], es[2] = es[2], es[0]; return es },
			Findings{Sent: 5, Epochs: true, Effects: 5, Disorder: 1},
		},
		"of a message nobody sent": {
			func(es []Effect) []Effect { return append(es, Effect{9, "a", 3, 5}) },
			Findings{Sent: 5, Epochs: true, Effects: 6, Alien: 1},
		},
		"of what differs from what was sent": {
			func(es []Effect) []Effect { es[4].Message = -1; return es },
			Findings{Sent: 5, Epochs: true, Effects: 5, Alien: 1, Lost: 1},
		},
		"under an epoch that fell": {
			func(es []Effect) []Effect { es[2].Epoch = 2; return es },
			Findings{Sent: 5, Epochs: true, Effects: 5, Regressed: 1},
		},
	} {
		t.Run(name, func(t *testing.T) {
			audit := NewAudit(5)
			for _, e := range c.change(slices.Clone(exact)) {
				audit.Add(e)
			}
			got := audit.Findings
			if got != c.want {
				t.Errorf("found %+v, want %+v", got, c.want)
			}
			if got.Exact() != (name == "none") {
				t.Errorf("exact is %v", got.Exact())
			}
		})
	}
}
