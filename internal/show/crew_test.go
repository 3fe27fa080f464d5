//go:build unix

package show

import (
	"strings"
	"testing"
	"time"
)

var testLimits = Limits{Strike: 20 * time.Second, Move: 20 * time.Second, Settle: 20 * time.Second}

func newTestCrew(t *testing.T, workers int) *Crew {
	t.Helper()
	dir := t.TempDir()
	c := NewCrew(func(int) any { return puppetConfig{Dir: dir} })
	t.Cleanup(func() { c.Stop(0) })
	for range workers {
		if _, err := c.Start(); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.AwaitHeld(t.Context(), 1, 20*time.Second); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestAFrozenWorkerIsThawedOnceItsPartitionHasMovedOnAndMayCommitWhatItHeld(t *testing.T) {
	c := newTestCrew(t, 2)
	line, err := c.Freeze(t.Context(), 1, BeforeWrites, func() {}, testLimits)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(line, "then committed") {
		t.Errorf("line is %q: nothing fences a puppet", line)
	}
	tally := c.Tally()
	if len(tally.Takeovers) != 1 || tally.Takeovers[0] <= 0 { // a machine that stalls lets a puppet's lease run out at any time
		t.Errorf("takeovers %v, want one", tally.Takeovers)
	}
	if tally.Frozen != 0 || tally.Workers != 2 {
		t.Errorf("%d workers, %d frozen; want 2 and 0", tally.Workers, tally.Frozen)
	}
}

func TestAKilledWorkerIsReplacedAndItsPartitionTakenOver(t *testing.T) {
	c := newTestCrew(t, 2)
	line, err := c.Kill(t.Context(), 1, AfterCommit, func() {}, testLimits)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(line, "worker 3 joined") {
		t.Errorf("line is %q", line)
	}
	if err := c.await(t.Context(), 20*time.Second, func() bool { return c.tally.Workers == 2 }); err != nil {
		t.Error(err)
	}
	if n := len(c.Tally().Takeovers); n != 1 {
		t.Errorf("%d takeovers, want 1", n)
	}
}

func TestAWorkerThatEndsByItselfFailsTheShowWithItsLastWords(t *testing.T) {
	c := NewCrew(func(int) any { return puppetConfig{Crash: true} })
	if _, err := c.Start(); err != nil {
		t.Fatal(err)
	}
	err := c.AwaitHeld(t.Context(), 1, 20*time.Second)
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
	if killed := c.Stop(20 * time.Second); killed != 0 {
		t.Errorf("%d workers had to be killed", killed)
	}
	if n := c.Tally().Workers; n != 0 {
		if err := c.await(t.Context(), 20*time.Second, func() bool { return c.tally.Workers == 0 }); err != nil {
			t.Errorf("%d workers left", n)
		}
	}
}

func TestAPartitionIsWithWhoGotItLastInWhateverOrderWorkersSaySo(t *testing.T) {
	c := NewCrew(func(int) any { return nil })
	two, three := &process{n: 2}, &process{n: 3}
	holds := func(p *process, number int64) { c.handle(p, report{Kind: reportHolds, Partition: 0, Number: number}) }
	holds(three, 6)
	holds(two, 5) // which was busy when it should have said so, and has lost it since
	c.vacate(two)
	if c.missed(two) {
		t.Error("partition 0 waits for another owner than worker 2, and worker 3 has it")
	}
	c.vacate(three)
	holds(two, 5)
	if !c.missed(three) {
		t.Error("worker 2 took partition 0 over by what it said before")
	}
	holds(two, 7)
	if n := len(c.Tally().Takeovers); c.missed(three) || n != 1 {
		t.Errorf("worker 2 has taken over, and there were %d takeovers", n)
	}
}
