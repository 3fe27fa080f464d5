package main

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

// failsOver cannot be read for so many looks, and then has no dead letters.
type failsOver struct {
	operate.Operator
	looks   int
	history []operate.Decision
}

func (f *failsOver) History(context.Context, operate.HistoryQuery) ([]operate.Decision, error) {
	return f.history, nil
}

var errAway = errors.New("the server is away")

func (f *failsOver) DeadLetter(context.Context, int64) (operate.DeadLetter, error) {
	if f.looks--; f.looks >= 0 {
		return operate.DeadLetter{}, errAway
	}
	return operate.DeadLetter{}, operate.ErrNoDeadLetter
}

func TestAWaitForAReplayOutlivesASinkThatIsAway(t *testing.T) {
	t.Parallel()
	l := operate.DeadLetter{ID: 4, Requested: true, Request: 1}
	var r letterResult
	if err := awaitReplay(t.Context(), &failsOver{looks: 2}, l, time.Minute, &r); err != nil || r.Result != "replayed" {
		t.Errorf("%q, %v; want it replayed", r.Result, err)
	}
	for gone, want := range map[operate.DecisionKind]error{operate.DecidedReplay: nil, operate.DecidedDiscard: operate.ErrChanged} {
		of := func(k operate.DecisionKind, offset epoch.Offset) operate.Decision {
			return operate.Decision{Kind: k, From: offset, By: "bob"}
		}
		op := &failsOver{history: []operate.Decision{of(operate.DecidedDiscard, 7), of(gone, 0), of(operate.DecidedReplayRequest, 0)}}
		if err := awaitReplay(t.Context(), op, l, time.Minute, &r); !errors.Is(err, want) {
			t.Errorf("gone by %s: %v, want %v", gone, err, want)
		}
	}
	err := awaitReplay(t.Context(), &failsOver{looks: 1e6}, l, time.Millisecond, &r)
	if !errors.Is(err, errAway) || !strings.Contains(err.Error(), "dead letter 4: it is requested, and whether it was replayed") {
		t.Errorf("err = %v, want that nobody knows, and why", err)
	}
}

// Dead letters and deferred messages are two lists with one --after.
func TestTheNextPageOfDeadLettersLeavesNothingOut(t *testing.T) {
	t.Parallel()
	of := func(ids ...int64) (ls []operate.DeadLetter) {
		for _, id := range ids {
			ls = append(ls, operate.DeadLetter{ID: id})
		}
		return ls
	}
	for _, c := range []struct {
		dead, deferred []operate.DeadLetter
		want           int64
	}{
		{of(1, 8), of(2, 3), 3}, {of(1, 2), of(3, 9), 2}, {of(1, 8), of(2), 8}, {of(5), of(2, 3), 3}, {of(5), of(2), 0}, {nil, nil, 0},
	} {
		if got := lastOfBoth(c.dead, c.deferred, 2); got != c.want {
			t.Errorf("after %v and %v, the next page begins after %d; want %d", c.dead, c.deferred, got, c.want)
		}
	}
}
