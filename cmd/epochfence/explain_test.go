//go:build unix

package main

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/epochfence/epochfence/operate"
)

// Three processes: one is frozen in its transaction, one meets a message that it cannot
// apply and is killed, one continues.
func TestExplainTellsOfATakeoverAndAHalt(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it starts processes")
	}
	t.Parallel()
	l := workers(t, inPostgres(t, none))
	l.produce(400)
	a := l.worker("worker-a")
	l.awaits("worker-a applies", func() bool { return l.known(1) && l.at(1).Next > 20 && l.at(0).Next > 20 })
	first := l.at(1)

	a.signal(syscall.SIGSTOP)
	b := l.worker("worker-b")
	l.awaits("worker-b has taken over", func() bool { return strings.HasPrefix(l.at(1).Owner, "worker-b") && l.at(1).Next > first.Next+20 })
	second := l.at(1)
	a.signal(syscall.SIGCONT)
	l.awaits("it is in the log that worker-a was refused, or lost it", func() bool {
		return len(l.log(operate.HistoryQuery{Claim: first.Claim, Kinds: []operate.DecisionKind{operate.DecidedStale, operate.DecidedLoss}})) > 0
	})
	a.signal(syscall.SIGKILL)

	from := l.log(operate.HistoryQuery{Claim: first.Claim, Kinds: []operate.DecisionKind{operate.DecidedClaim}})[0].To
	story := l.does(exitOK, "explain", "orders/1", "--offset", text(from)).out
	tells(t, story, "Epoch "+text(first.Epoch)+", claimed by worker-a", "applied the offsets in ["+text(from)+", ", "worker-b", "claimed it under epoch", "Afterwards")
	story = l.does(exitOK, "explain", "orders/1", "--claim", first.Claim.String()).out
	tells(t, story, "claimed by worker-a", "claim "+first.Claim.String())
	story = l.does(exitOK, "explain", "orders/1", "--at", l.log(operate.HistoryQuery{Claim: second.Claim, Kinds: []operate.DecisionKind{operate.DecidedClaim}})[0].At.Format(time.RFC3339Nano)).out
	tells(t, story, "claimed by worker-b")
	tells(t, l.does(exitOK, "owners").out, "worker-b")

	l.poison(1)
	l.awaits("the partition has halted", func() bool { return strings.Contains(l.run("list", "orders/1").out, "halted") })
	poison := l.at(1).Next
	story = l.does(exitOK, "explain", "orders/1").out
	tells(t, story, "now    halted", "HALTED by worker-b", fmt.Sprintf("at offset %d", poison), "message_failed: ", "it is no order", "If the message can never be applied, skip it",
		fmt.Sprintf("epochfence skip billing/orders/1 --through %d --reason", poison), "This claim is in the fence.")
	tells(t, l.run("describe", "orders/1").out, "it is no order", fmt.Sprintf("epochfence skip billing/orders/1 --through %d --reason", poison))
	tells(t, l.does(exitTrouble, "check").out, "TROUBLE", "halted of billing/orders/1", "it is no order")

	b.signal(syscall.SIGKILL)
	l.executes("skip", "orders/1", "--through", text(poison))
	l.produced++ // the one that is skipped is a message too
	l.worker("worker-c")
	l.awaits("worker-c has followed", func() bool { return strings.HasPrefix(l.at(1).Owner, "worker-c") })
	story = l.does(exitOK, "explain", "orders/1", "--offset", text(poison)).out
	tells(t, story, "No claim matches")
	tells(t, l.does(exitOK, "history", "orders/1", "--kind", "skip").out, "skip", "anna", "for the test")
}
