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
	c.elsewhere = counted(dir)
	t.Cleanup(func() { _ = c.Stop(0) })
	for range workers {
		if _, err := c.Start(); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

func TestAFrozenWorkerIsThawedOnceItsPartitionHasMovedOnAndMayCommitWhatItHeld(t *testing.T) {
	c := newTestCrew(t, 2)
	locked := 3
	c.unlocked = func(context.Context) bool { locked--; return locked == 0 }
	line, err := c.freezeWorker(t.Context(), InHand, func() {})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(line, "then committed") {
		t.Errorf("line is %q: nothing fences a puppet", line)
	}
	if locked != 0 {
		t.Error("it was frozen with the lock")
	}
	if n := len(c.living()); n != 2 {
		t.Errorf("%d workers, want 2", n)
	}
}

func TestAKilledWorkerIsReplacedAndItsPartitionTakenOver(t *testing.T) {
	c := newTestCrew(t, 2)
	line, err := c.killWorker(t.Context(), AfterCommit, func() {})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(line, "worker 3 joined") {
		t.Errorf("line is %q", line)
	}
	if err := c.await(t.Context(), 20*time.Second, func() bool { return len(c.workers) == 2 }); err != nil {
		t.Error(err)
	}
}

func TestAWorkerThatEndsByItselfFailsTheShowWithItsLastWords(t *testing.T) {
	c := NewCrew(func(int) any { return puppetConfig{Crash: true} })
	if _, err := c.Start(); err != nil {
		t.Fatal(err)
	}
	_, err := c.Address(t.Context())
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

func TestTheFirstWorkerAtThePointIsStruckAndOthersGoOn(t *testing.T) {
	c := newTestCrew(t, 2)
	p, err := c.strike(t.Context(), InHand, func() {})
	if err != nil {
		t.Fatal(err)
	}
	other := map[int]int{1: 2, 2: 1}[p.n]
	c.mu.Lock()
	p.stopping = true
	c.mu.Unlock()
	p.kill()
	if p, err = c.strike(t.Context(), AfterCommit, func() {}); err != nil || p.n != other {
		t.Errorf("worker %d does not go on: %v", other, err)
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
	elsewhere, first := c.elsewhere, ""
	c.elsewhere = func(ctx context.Context, subject string, n int) (bool, error) {
		if first == "" {
			first = subject
			return true, nil
		}
		return elsewhere(ctx, subject, n)
	}
	p, err := c.strike(t.Context(), InHand, func() {})
	if err != nil || p.subject == first {
		t.Errorf("it stands at %s, which others have done, %v", first, err)
	}
}
