//go:build unix

package show

import (
	"context"
	"strings"
	"testing"
	"time"
)

func newTestCrew(t *testing.T, workers int) *Crew {
	t.Helper()
	dir := t.TempDir()
	c := NewCrew(func(int) any { return puppetConfig{Dir: dir} })
	c.partitions, c.done = 1, counted(dir)
	t.Cleanup(func() { _ = c.Stop(0) })
	for range workers {
		if _, err := c.Start(); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.awaitHeld(t.Context()); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestAFrozenWorkerIsThawedOnceItsPartitionHasMovedOnAndMayCommitWhatItHeld(t *testing.T) {
	c := newTestCrew(t, 2)
	locked := 3
	c.unlocked = func(context.Context) bool { locked--; return locked == 0 }
	line, err := c.freezeWorker(t.Context(), 1, InHand, func() {})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(line, "then committed") {
		t.Errorf("line is %q: nothing fences a puppet", line)
	}
	if locked != 0 {
		t.Error("it was frozen with the lock")
	}
	if len(c.takeovers) != 1 || c.takeovers[0] <= 0 { // a machine that stalls lets a puppet's lease run out at any time
		t.Errorf("takeovers %v, want one", c.takeovers)
	}
	if alive, frozen := c.count(); alive != 2 || frozen != 0 {
		t.Errorf("%d workers, %d frozen; want 2 and 0", alive, frozen)
	}
}

func TestAKilledWorkerIsReplacedAndItsPartitionTakenOver(t *testing.T) {
	c := newTestCrew(t, 2)
	line, err := c.killWorker(t.Context(), 1, AfterCommit, func() {})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(line, "worker 3 joined") {
		t.Errorf("line is %q", line)
	}
	if err := c.await(t.Context(), 20*time.Second, func() bool { return len(c.workers) == 2 }); err != nil {
		t.Error(err)
	}
	if n := len(c.takeovers); n != 1 {
		t.Errorf("%d takeovers, want 1", n)
	}
}

func TestAWorkerThatEndsByItselfFailsTheShowWithItsLastWords(t *testing.T) {
	c := NewCrew(func(int) any { return puppetConfig{Crash: true} })
	c.partitions = 1
	if _, err := c.Start(); err != nil {
		t.Fatal(err)
	}
	err := c.awaitHeld(t.Context())
	if err == nil || !strings.Contains(err.Error(), "puppet: cut") {
		t.Errorf("error is %v, want the worker's", err)
	}
}

func TestStopLeavesNoWorkerBehindEvenAFrozenOne(t *testing.T) {
	c := newTestCrew(t, 2)
	c.mu.Lock()
	frozen := c.workers[2]
	c.mu.Unlock()
	if err := freeze(frozen.cmd.Process); err != nil {
		t.Fatal(err)
	}
	if err := c.Stop(20 * time.Second); err != nil {
		t.Error(err)
	}
	if err := c.await(t.Context(), 20*time.Second, func() bool { return len(c.workers) == 0 }); err != nil {
		t.Error("workers are left")
	}
}

func TestAPartitionIsWithWhoGotItLastInWhateverOrderWorkersSaySo(t *testing.T) {
	c := NewCrew(func(int) any { return nil })
	two, three := &process{n: 2}, &process{n: 3}
	holds := func(p *process, number int64) { c.handle(p, report{Kind: reportHolds, Partition: 0, Number: number}) }
	holds(three, 6)
	holds(two, 5) // which was busy when it should have said so, and has lost it since
	if c.holder[0] != 3 {
		t.Errorf("worker %d has partition 0, want 3", c.holder[0])
	}
	three.away = true
	holds(three, 7)
	holds(two, 7)
	if c.holder[0] != 2 {
		t.Errorf("worker %d has partition 0, want 2, which took it from the frozen one", c.holder[0])
	}
}

func TestAnotherProcessSaysWhereItIs(t *testing.T) {
	c := NewCrew(func(int) any { return puppetConfig{Ready: "here"} })
	if _, err := c.Start(); err != nil {
		t.Fatal(err)
	}
	if address, err := c.Address(t.Context()); address != "here" || err != nil {
		t.Errorf("it is at %q, %v", address, err)
	}
	if err := c.Stop(20 * time.Second); err != nil {
		t.Error(err)
	}
}

func TestAProcessWhoseReportsCannotBeReadIsEndedWithTheReason(t *testing.T) {
	c := NewCrew(func(int) any { return puppetConfig{Noise: true} })
	if _, err := c.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Address(t.Context()); err == nil || !strings.Contains(err.Error(), "it wrote what is no report") {
		t.Errorf("error is %v", err)
	}
}

func TestWhatOthersHaveDoneIsNoPlaceToStrike(t *testing.T) {
	c := newTestCrew(t, 1)
	done := c.done
	first := ""
	c.done = func(ctx context.Context, subject string) (bool, error) {
		if first == "" {
			first = subject
			return true, nil
		}
		return done(ctx, subject)
	}
	p, err := c.strike(t.Context(), 1, InHand, func() {})
	if err != nil || p.subject == first {
		t.Errorf("it stands at %s, which others have done, %v", first, err)
	}
}
