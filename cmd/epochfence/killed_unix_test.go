//go:build unix

package main

import (
	"strings"
	"syscall"
	"testing"
)

// All processes of a group are killed, and messages continue coming.
func TestAGroupWhoseProcessesWereKilledIsSaidToBeDead(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it starts processes, and waits until they are taken for dead")
	}
	t.Parallel()
	l := workers(t, inPostgres(t, none))
	l.produce(100)
	killed := []*worker{l.worker("worker-a"), l.worker("worker-b")}
	l.awaits("each has a partition", func() bool {
		return l.known(1) && l.at(0).Next > 0 && l.at(1).Next > 0 && l.at(0).Owner != l.at(1).Owner
	})
	l.through()
	tells(t, l.does(exitOK, "check").out, "OK: 2 partitions")
	t.Logf("while they live:\n%s", l.does(exitOK, "owners").out)

	for _, w := range killed {
		w.signal(syscall.SIGKILL)
	}
	l.produce(100)
	l.awaits("they are taken for dead", func() bool { return strings.Contains(l.run("check").out, "no process of group billing is alive") })
	check, described := l.does(exitTrouble, "check", "--max-lag", "10").out, l.does(exitOK, "describe").out
	t.Logf("once they are dead:\n%s\n%s\n%s", check, described, l.does(exitOK, "owners").out)
	tells(t, check, "processes: no process of group billing is alive; worker-", "was seen last, ", "100 messages to apply, more than 10")
	for n := range int32(partitions) {
		tells(t, described, l.at(n).Owner+" (not seen for ")
	}

	l.worker("worker-c")
	l.through()
	tells(t, l.does(exitOK, "check").out, "OK: 2 partitions")
	if owner := l.at(0).Owner; !strings.HasPrefix(owner, "worker-c@") {
		t.Errorf("the owner is %q", owner)
	}
}
