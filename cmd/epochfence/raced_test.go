package main

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

// commands are those that write, and return where partition 1 is to have gone on from after its last act;
// -1: where it was.
var commands = map[string]func(l *live) epoch.Offset{
	"rewind to an offset": func(l *live) epoch.Offset {
		l.executes("rewind", "orders/1", "--to", "7")
		return 7
	},
	"rewind to the start": func(l *live) epoch.Offset {
		l.executes("rewind", "billing/orders/1", "--to", "start")
		return 0
	},
	"rewind by a number": func(l *live) epoch.Offset {
		l.executes("rewind", "orders/1", "--to", "-5")
		return -1
	},
	"rewind to a time": func(l *live) epoch.Offset {
		l.executes("rewind", "orders/1", "--to", "@2020-01-01T00:00:00Z")
		return 0
	},
	"rewind to the end": func(l *live) epoch.Offset {
		l.executes("rewind", "orders/1", "--to", "end")
		return -1
	},
	"rewind of all partitions": func(l *live) epoch.Offset {
		l.executes("rewind", "--group", "billing", "--to", "3")
		return 3
	},
	"evict": func(l *live) epoch.Offset {
		for range 5 {
			l.executes("evict", "orders/1")
			l.awaits("the owner claims again", func() bool { return operate.OperatorOf(l.at(1).Owner) == "" })
		}
		return -1
	},
	"pause and resume": func(l *live) epoch.Offset {
		l.executes("pause", "orders/1")
		stood := l.at(1).Next
		l.awaits("the other partition continues", func() bool { return l.at(0).Next > stood+20 })
		if now := l.at(1); now.Next != stood || now.Pause.Reason != "for the test" || now.Pause.By != "anna" {
			l.t.Errorf("paused at %d, and it is\n%+v", stood, now)
		}
		l.executes("resume", "orders/1")
		return stood
	},
	"rebase to another lease source, and back": func(l *live) epoch.Offset {
		source := l.at(1).Source
		l.executes("rebase", "orders/1", "--source", "somebody else")
		l.awaits("the partition has halted", func() bool { return strings.Contains(l.run("list", "orders/1").out, "halted") })
		// What the broker says is what it was.
		l.executes("rebase", "orders/1")
		if now := l.at(1).Source; now != source {
			l.t.Errorf("the lease source is %q, want %q", now, source)
		}
		return -1
	},
	"drill": func(l *live) epoch.Offset {
		l.does(exitOK, "drill", "--execute")
		return -1
	},
	"migrate and grants": func(l *live) epoch.Offset {
		if l.stored { // it has neither
			l.does(exitUsage, "migrate", "up", "--execute")
			return -1
		}
		l.does(exitOK, "migrate", "up", "--execute")
		at, err := url.Parse(l.place.url)
		must(l.t, err)
		for _, kind := range roleKinds {
			switch at.Scheme {
			case "file": // SQLite has no roles
				l.does(exitUsage, "grants", "--role", "anna", "--as", string(kind), "--execute")
			case "mysql":
				l.does(exitOK, "grants", "--role", "root@localhost", "--as", string(kind), "--execute")
			default:
				l.does(exitOK, "grants", "--role", at.User.Username(), "--as", string(kind), "--execute")
			}
		}
		return -1
	},
}

// Each command that writes, beside a consumer that is at work: nothing is lost or doubled
// but what was asked for, and the owner continues from where it was told.
func TestEachCommandBesideALiveConsumer(t *testing.T) {
	for name, do := range commands {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			everywhere(t, func(t *testing.T, open func(broken) *place) { besideALiveConsumer(t, open, do) })
		})
	}
}

func besideALiveConsumer(t *testing.T, open func(broken) *place, do func(l *live) epoch.Offset) {
	t.Helper()
	l := atWork(t, open(none))
	l.through()
	var want epoch.Offset
	l.growing(func() {
		grown := l.at(1).Next
		l.awaits("the partition is at work", func() bool { return l.at(1).Next > grown })
		want = do(l)
	})
	l.through()
	l.audit(none)
	last, claimed := lastAct(l), lastClaim(l)
	if last == nil {
		return
	}
	if want >= 0 && last.To != want {
		t.Errorf("the act has put the position at %d, want %d", last.To, want)
	}
	if claimed.ID < last.ID {
		t.Fatalf("no owner has claimed after the act: %+v", last)
	}
}

// lastAct is the last that an operator has done to partition 1.
func lastAct(l *live) *operate.Decision {
	p := partition(1)
	ds, err := l.op.History(l.t.Context(), operate.HistoryQuery{Partition: &p})
	must(l.t, err)
	for _, d := range ds {
		if d.By != "" {
			return &d
		}
	}
	return nil
}

func lastClaim(l *live) operate.Decision {
	p := partition(1)
	ds, err := l.op.History(l.t.Context(), operate.HistoryQuery{Partition: &p, Kinds: []operate.DecisionKind{operate.DecidedClaim}, Limit: 1})
	must(l.t, err)
	return ds[0]
}

// A message that halts its partition, as the handler has no place for dead letters, is
// looked at and skipped.
func TestSkipOfAMessageThatHalts(t *testing.T) {
	everywhere(t, func(t *testing.T, open func(broken) *place) {
		poison := func(m consumer.Message) bool { return m.Partition.Number == 1 && m.Offset == 60 }
		p := open(poison)
		l := atWork(t, p.halting())
		l.through()
		l.produce(50)
		l.awaits("the partition has halted", func() bool { return strings.Contains(l.run("list", "orders/1").out, "halted") })
		if at := l.at(1).Next; at != 60 {
			t.Fatalf("halted at %d", at)
		}
		said := l.does(exitOK, "describe", "orders/1").out
		if !strings.Contains(said, "is no order") {
			t.Errorf("describe does not say why:\n%s", said)
		}
		plan := l.does(exitOK, "skip", "orders/1", "--through", "60").out
		if !strings.Contains(plan, "offset 60 is never applied") || l.at(1).Next != 60 {
			t.Errorf("a dry run:\n%s", plan)
		}
		l.executes("skip", "orders/1", "--through", "60")
		l.through()
		l.audit(poison)
	})
}

// A dead letter is replayed by the owner, in its own transaction, while the partition continues.
func TestReplayBesideALiveConsumer(t *testing.T) {
	everywhere(t, func(t *testing.T, open func(broken) *place) {
		var fixed atomic.Bool
		l := atWork(t, open(func(m consumer.Message) bool { return !fixed.Load() && m.Offset%20 == 10 }))
		l.through()
		l.growing(func() {
			l.awaits("there are dead letters", func() bool { return l.at(1).DeadLetters >= 3 })
			ls, err := l.op.DeadLetters(t.Context(), operate.DeadLetterQuery{})
			must(t, err)
			first, second := fmt.Sprint(ls[0].ID), fmt.Sprint(ls[1].ID)

			failed := l.does(exitError, "deadletters", "replay", first, "--wait", "30s", "--execute", "--by", "anna", "--reason", "too early")
			if !strings.Contains(failed.out, "is no order") {
				t.Errorf("a replay that fails says\n%s", failed.out)
			}
			fixed.Store(true)
			done := l.executes("deadletters", "replay", first, "--wait", "30s")
			if !strings.Contains(done.out, "replayed") {
				t.Errorf("a replay says\n%s", done.out)
			}
			l.executes("deadletters", "discard", second)
			l.does(exitError, "deadletters", "show", first)
			l.does(exitError, "deadletters", "show", second)

			times := map[epoch.Offset]int{}
			for _, e := range l.applied() {
				if e.number == ls[0].Message.Partition.Number {
					times[e.offset]++
				}
			}
			if at := ls[0].Message.Offset; times[at] != 1 {
				t.Errorf("the message at %d was applied %d times", at, times[at])
			}
		})
		l.through()
	})
}

// Requests for replays are taken back while the owners are carrying them out: of each,
// one of the two is done.
func TestWithdrawalsBesideALiveConsumer(t *testing.T) {
	everywhere(t, func(t *testing.T, open func(broken) *place) {
		var fixed atomic.Bool
		l := atWork(t, open(func(m consumer.Message) bool { return !fixed.Load() && m.Offset%4 == 2 }))
		l.through()
		fixed.Store(true)
		ls, err := l.op.DeadLetters(t.Context(), operate.DeadLetterQuery{})
		must(t, err)
		if len(ls) < 20 {
			t.Fatalf("%d dead letters", len(ls))
		}
		replayed := func(letter operate.DeadLetter) (times int) {
			for _, e := range l.applied() {
				if e.number == letter.Message.Partition.Number && e.offset == letter.Message.Offset {
					times++
				}
			}
			return times
		}
		ids := []string{"deadletters", "replay"}
		for _, letter := range ls {
			ids = append(ids, fmt.Sprint(letter.ID))
		}
		l.executes(ids...)
		l.awaits("an owner is at it", func() bool { return replayed(ls[0]) == 1 })
		withdrawn := map[int64]bool{}
		for _, letter := range slices.Backward(ls) {
			a := l.run("deadletters", "withdraw", fmt.Sprint(letter.ID), "--execute", "--by", "anna", "--reason", "for the test")
			withdrawn[letter.ID] = a.code == exitOK
			if a.code != exitOK && a.code != exitError && a.code != exitChanged {
				t.Errorf("exit code %d\n%s%s", a.code, a.out, a.errs)
			}
		}
		l.awaits("nothing is requested any more", func() bool {
			left, err := l.op.DeadLetters(t.Context(), operate.DeadLetterQuery{Requested: true})
			must(t, err)
			return len(left) == 0
		})
		l.stop()
		for _, letter := range ls {
			_, err := l.op.DeadLetter(t.Context(), letter.ID)
			there := !errors.Is(err, operate.ErrNoDeadLetter)
			if n := replayed(letter); there != withdrawn[letter.ID] || (n == 1) == there || n > 1 {
				t.Errorf("dead letter %d: withdrawn %v, there %v, applied %d times", letter.ID, withdrawn[letter.ID], there, n)
			}
		}
	})
}

// What was decided on must still be so.
func TestAPlanThatIsOutOfDateIsRefused(t *testing.T) {
	everywhere(t, func(t *testing.T, open func(broken) *place) {
		l := atWork(t, open(none))
		l.through()
		var seen struct{ Plan string }
		l.reads(&seen, "rewind", "orders/1", "--to", "7")
		before := l.at(1)
		l.executes("evict", "orders/1")
		l.awaits("the owner has claimed again", func() bool { return operate.OperatorOf(l.at(1).Owner) == "" })
		a := l.does(exitChanged, "rewind", "orders/1", "--to", "7", "--plan", seen.Plan, "--execute", "--by", "anna", "--reason", "too late")
		if now := l.at(1); now.Next != before.Next || !strings.Contains(a.errs, "look again") {
			t.Errorf("refused with %q, and the partition is at %d, was at %d", a.errs, now.Next, before.Next)
		}
		l.reads(&seen, "rewind", "orders/1", "--to", "7")
		l.executes("rewind", "orders/1", "--to", "7", "--plan", seen.Plan)
		l.through()
		l.audit(none)
	})
}

// Two people at a time: of acts from one look one is done, and the other is told.
func TestTwoPeopleAtATime(t *testing.T) {
	everywhere(t, func(t *testing.T, open func(broken) *place) {
		l := atWork(t, open(none))
		l.through()
		l.stop()
		var seen struct{ Plan string }
		l.reads(&seen, "evict", "orders/1")
		answers := make(chan answer, 2)
		for range 2 {
			go func() {
				answers <- (&cli{t, l.env}).run("evict", "orders/1", "--plan", seen.Plan, "--execute", "--by", "anna", "--reason", "for the test")
			}()
		}
		if one, other := <-answers, <-answers; one.code+other.code != exitOK+exitChanged {
			t.Errorf("they were answered\n%+v\n%+v", one, other)
		}
	})
}

// A zombie that has its transaction open while an operator rewinds commits nothing.
func TestRewindWhileAZombieHasItsTransactionOpen(t *testing.T) {
	p := inPostgres(t, none)
	var frozen atomic.Bool
	thaw, inside := make(chan struct{}), make(chan struct{})
	p.during = func(m consumer.Message) {
		if m.Partition.Number == 1 && m.Offset == 60 && frozen.CompareAndSwap(false, true) {
			close(inside)
			<-thaw
		}
	}
	l := atWork(t, p)
	l.through()
	l.produce(30)
	<-inside
	began := time.Now()
	l.executes("rewind", "orders/1", "--to", "40")
	if took := time.Since(began); took > time.Minute {
		t.Errorf("it took %v beside a transaction that is frozen", took)
	}
	close(thaw)
	l.through()
	l.audit(none)
}
