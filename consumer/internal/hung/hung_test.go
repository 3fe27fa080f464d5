package hung

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
	one := func(at epoch.Offset, attempts int) Message {
		return Message{First: at, Last: at, Attempts: attempts}
	}
	recorded := func(m Message) Message {
		m.Recorded = true
		return m
	}
	failed := func(m Message, why string) Message {
		m.Failed = errors.New(why)
		return m
	}
	batch := Message{First: 5, Last: 9}
	const next = 5
	for _, c := range []struct {
		name  string
		known Message
		log   []operate.Decision
		want  Message
	}{
		{"nothing", Message{}, nil, Message{}},
		{"once, elsewhere", Message{}, times(1, hang(7, 8)), recorded(one(7, 1))},
		{"several times, elsewhere", Message{}, times(3, hang(7, 8)), recorded(one(7, 3))},
		{"the first message there is", Message{}, times(2, hang(5, 6)), recorded(one(5, 2))},
		{"a message of a batch", Message{}, times(2, hang(5, 10)), recorded(batch)},
		{"a batch, and then the message alone", Message{}, append(times(2, hang(7, 8)), hang(5, 10)), recorded(one(7, 2))},
		{"another message in between", Message{}, []operate.Decision{hang(7, 8), hang(6, 7), hang(7, 8)}, recorded(one(7, 1))},
		{"background work in between", Message{}, []operate.Decision{hang(7, 8), hang(-1, -1), hang(7, 8)}, recorded(one(7, 2))},
		{"one that is applied", Message{}, times(3, hang(4, 5)), Message{}},
		{"one that is applied in between", Message{}, []operate.Decision{hang(7, 8), hang(4, 5), hang(7, 8)}, recorded(one(7, 2))},
		{"a batch that is applied in part", Message{}, times(1, hang(2, 7)), recorded(Message{First: 2, Last: 6})},
		{"OnFailure", Message{}, times(1, onFailure), failed(recorded(one(7, 1)), "it was poison")},
		{"OnFailure, after the handler", Message{}, append(times(1, onFailure), times(2, hang(7, 8))...), failed(recorded(one(7, 3)), "it was poison")},
		{"the handler, after OnFailure", Message{}, append(times(1, hang(7, 8)), onFailure), recorded(one(7, 2))},

		{"what the log has is not counted twice", recorded(one(7, 2)), times(2, hang(7, 8)), recorded(one(7, 2))},
		{"here and elsewhere", recorded(one(7, 1)), times(3, hang(7, 8)), recorded(one(7, 3))},
		{"failures here, and a hang", recorded(one(7, 5)), times(1, hang(7, 8)), recorded(one(7, 5))},
		{"here, and an operator has acted since", recorded(one(7, 5)), nil, Message{}},
		{"here, and another message elsewhere", recorded(one(7, 5)), times(1, hang(6, 7)), recorded(one(6, 1))},
		{"here, and the log could not be written", one(7, 2), nil, one(7, 2)},
		{"here, and the log has the hangs of others only", one(7, 1), times(3, hang(7, 8)), one(7, 3)},
		{"a message here, and the log has its batch only", one(7, 1), times(1, hang(5, 10)), one(7, 1)},
		{"OnFailure here, and the log could not be written", failed(one(7, 3), "poison"), times(2, hang(7, 8)), failed(one(7, 3), "poison")},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := recalled(c.known, c.log, next)
			if fmt.Sprint(got.Failed) != fmt.Sprint(c.want.Failed) {
				t.Errorf("OnFailure was called because %v, want %v", got.Failed, c.want.Failed)
			}
			got.Failed, c.want.Failed = nil, nil
			if got != c.want {
				t.Errorf("known is %+v, want %+v", got, c.want)
			}
		})
	}
}
