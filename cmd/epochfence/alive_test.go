package main

import (
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/operate"
)

// The processes are gone, and all there is to look at is the sink.
func TestADeadGroupDoesNotLookWell(t *testing.T) {
	everywhere(t, func(t *testing.T, open func(broken) *place) {
		l := atWork(t, open(none))
		l.through()
		tells(t, l.does(exitOK, "check").out, "OK: 2 partitions")
		tells(t, l.does(exitOK, "describe").out, "claimed", "(alive, seen ")
		tells(t, l.does(exitOK, "list").out, "claimed")
		owner := l.at(0).Owner
		name := owner[:strings.LastIndex(owner, "/")]

		l.stop() // in good order, and nobody else is there
		tells(t, l.does(exitTrouble, "check").out, "TROUBLE: 1 finding", "processes: no process of group billing is alive")
		tells(t, l.does(exitOK, "describe").out, "orphaned", owner+" (no sign of life)")

		// Killed: the last sign is there.
		sign := operate.Process{Run: "killed", Group: "billing", Name: name, Host: "pod-7", Every: time.Millisecond}
		must(t, l.alive(t.Context(), sign))
		l.awaits("it is dead", func() bool { return strings.Contains(l.run("check").out, "was seen last") })
		l.produce(100)
		tells(t, l.does(exitTrouble, "check").out, "no process of group billing is alive; "+name+" on pod-7 was seen last, ")
		tells(t, l.does(exitOK, "describe").out, "orphaned", owner+" (not seen for ")
		tells(t, l.does(exitOK, "owners").out, "no", "pod-7")
		tells(t, l.does(exitTrouble, "doctor").out, "bad", "no process of group billing is alive")

		// One lives, and does not take over what the dead one has left.
		must(t, l.alive(t.Context(), operate.Process{Run: "standby", Group: "billing", Name: "standby", Host: "pod-8", Every: time.Hour}))
		tells(t, l.does(exitTrouble, "check").out, "TROUBLE: 2 findings", "owner of billing/orders/0: "+owner+" has claimed it: not seen for ", ", and no process has claimed the partition since")

		l.work()
		l.through()
		tells(t, l.does(exitOK, "check").out, "OK: 2 partitions")
	})
}

// The process lives and gives signs of life, and its handler does not return.
func TestAHangDoesNotLookWell(t *testing.T) {
	everywhere(t, func(t *testing.T, open func(broken) *place) {
		free := make(chan struct{})
		p := open(none)
		p.timeout = time.Second
		p.during = func(m consumer.Message) {
			if m.Partition.Number == 0 && m.Offset == 50 {
				<-free
			}
		}
		l := atWork(t, p)
		l.through()
		tells(t, l.does(exitOK, "check").out, "OK: 2 partitions")
		must(t, l.client.ProduceSync(t.Context(), &kgo.Record{Value: []byte("order 50")}).FirstErr())
		const said = "billing/orders/0: the handler hangs on the message at offset 50, epoch "
		l.awaits("it is given up", func() bool { return strings.Contains(l.run("check").out, said) })
		tells(t, l.does(exitTrouble, "check").out, "TROUBLE: 1 finding", "says: "+said)
		tells(t, l.does(exitOK, "list").out, "hung")
		tells(t, l.does(exitOK, "describe").out, "hung", "billing/orders/0 is given up, and no process has claimed it since:\n  "+said, "restart the process")
		tells(t, l.does(exitOK, "owners").out, "says: "+said)
		tells(t, l.does(exitTrouble, "doctor").out, "says: "+said)
		close(free)
		l.awaits("the partition is claimed again", func() bool { return l.run("check").code == exitOK })
	})
}
