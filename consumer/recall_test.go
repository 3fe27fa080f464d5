package consumer

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

func TestWhatHasHungIsKnownByTheLogAndByThisProcess(t *testing.T) {
	hang := func(from, to epoch.Offset) operate.Decision {
		return operate.Decision{Kind: operate.DecidedHang, From: from, To: to}
	}
	onFailure := operate.Decision{Kind: operate.DecidedOnFailureHang, From: 7, To: 8, Reason: "it was poison"}
	times := func(n int, d operate.Decision) []operate.Decision { return slices.Repeat([]operate.Decision{d}, n) }
	one := func(at epoch.Offset, attempts int) hungMessage {
		return hungMessage{first: at, last: at, attempts: attempts}
	}
	recorded := func(m hungMessage) hungMessage {
		m.recorded = true
		return m
	}
	failed := func(m hungMessage, why string) hungMessage {
		m.failed = errors.New(why)
		return m
	}
	batch := hungMessage{first: 5, last: 9}
	const next = 5
	for _, c := range []struct {
		name  string
		known hungMessage
		log   []operate.Decision
		want  hungMessage
	}{
		{"nothing", hungMessage{}, nil, hungMessage{}},
		{"once, elsewhere", hungMessage{}, times(1, hang(7, 8)), recorded(one(7, 1))},
		{"several times, elsewhere", hungMessage{}, times(3, hang(7, 8)), recorded(one(7, 3))},
		{"the first message there is", hungMessage{}, times(2, hang(5, 6)), recorded(one(5, 2))},
		{"a message of a batch", hungMessage{}, times(2, hang(5, 10)), recorded(batch)},
		{"a batch, and then the message alone", hungMessage{}, append(times(2, hang(7, 8)), hang(5, 10)), recorded(one(7, 2))},
		{"another message in between", hungMessage{}, []operate.Decision{hang(7, 8), hang(6, 7), hang(7, 8)}, recorded(one(7, 1))},
		{"background work in between", hungMessage{}, []operate.Decision{hang(7, 8), hang(-1, -1), hang(7, 8)}, recorded(one(7, 2))},
		{"one that is applied", hungMessage{}, times(3, hang(4, 5)), hungMessage{}},
		{"one that is applied in between", hungMessage{}, []operate.Decision{hang(7, 8), hang(4, 5), hang(7, 8)}, recorded(one(7, 2))},
		{"a batch that is applied in part", hungMessage{}, times(1, hang(2, 7)), recorded(hungMessage{first: 2, last: 6})},
		{"OnFailure", hungMessage{}, times(1, onFailure), failed(recorded(one(7, 1)), "it was poison")},
		{"OnFailure, after the handler", hungMessage{}, append(times(1, onFailure), times(2, hang(7, 8))...), failed(recorded(one(7, 3)), "it was poison")},
		{"the handler, after OnFailure", hungMessage{}, append(times(1, hang(7, 8)), onFailure), recorded(one(7, 2))},

		{"what the log has is not counted twice", recorded(one(7, 2)), times(2, hang(7, 8)), recorded(one(7, 2))},
		{"here and elsewhere", recorded(one(7, 1)), times(3, hang(7, 8)), recorded(one(7, 3))},
		{"failures here, and a hang", recorded(one(7, 5)), times(1, hang(7, 8)), recorded(one(7, 5))},
		{"here, and an operator has acted since", recorded(one(7, 5)), nil, hungMessage{}},
		{"here, and another message elsewhere", recorded(one(7, 5)), times(1, hang(6, 7)), recorded(one(6, 1))},
		{"here, and the log could not be written", one(7, 2), nil, one(7, 2)},
		{"here, and the log has the hangs of others only", one(7, 1), times(3, hang(7, 8)), one(7, 3)},
		{"a message here, and the log has its batch only", one(7, 1), times(1, hang(5, 10)), one(7, 1)},
		{"OnFailure here, and the log could not be written", failed(one(7, 3), "poison"), times(2, hang(7, 8)), failed(one(7, 3), "poison")},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := recalled(c.known, c.log, next)
			if fmt.Sprint(got.failed) != fmt.Sprint(c.want.failed) {
				t.Errorf("OnFailure was called because %v, want %v", got.failed, c.want.failed)
			}
			got.failed, c.want.failed = nil, nil
			if got != c.want {
				t.Errorf("known is %+v, want %+v", got, c.want)
			}
		})
	}
}
