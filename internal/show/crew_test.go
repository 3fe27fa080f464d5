//go:build unix

package show

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/epochfence/epochfence/internal/servers/subprocess"
)

func newTestCrew(t *testing.T, workers int) *Crew {
	t.Helper()
	dir := t.TempDir()
	c := newCrew("worker", role{}, func(string) any { return puppetConfig{Dir: dir} })
	c.elsewhere = counted(dir)
	c.unlocked = func(context.Context) bool { return true }
	t.Cleanup(func() { _ = c.Stop(0) })
	for range workers {
		if _, err := c.Start(); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// over reports whether the process has ended.
func (p *process) over() bool {
	select {
	case <-p.exited:
		return true
	default:
		return false
	}
}

func TestAFrozenWorkerIsThawedOnceItsPartitionHasMovedOnAndMayCommitWhatItHeld(t *testing.T) {
	c := newTestCrew(t, 2)
	locked := 3
	c.unlocked = func(context.Context) bool { locked--; return locked == 0 }
	line, err := c.strike(t.Context(), Incident{At: InHand}, func() {})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(line, "then committed") {
		t.Errorf("line is %q: nothing fences a puppet", line)
	}
	if locked != 0 {
		t.Error("it was frozen with the lock")
	}
	for _, p := range c.workers {
		if p.over() {
			t.Errorf("%s has ended", p.name)
		}
	}
	if n := len(c.workers); n != 2 {
		t.Errorf("%d workers, want 2", n)
	}
}

func TestAKilledWorkerIsReplacedAndItsPartitionTakenOver(t *testing.T) {
	c := newTestCrew(t, 2)
	line, err := c.strike(t.Context(), Incident{Kill: true, At: AfterCommit}, func() {})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(line, "worker 3 joined") {
		t.Errorf("line is %q", line)
	}
	if err := c.await(t.Context(), "they end", func() bool { return c.workers[0].over() || c.workers[1].over() }); err != nil {
		t.Error(err)
	}
}

func TestAWorkerThatEndsByItselfOrWritesNoReportsFailsTheShowWithItsLastWords(t *testing.T) {
	for name, c := range map[string]struct {
		config puppetConfig
		want   string
	}{
		"ends":  {puppetConfig{Crash: true}, "puppet: cut"},
		"noise": {puppetConfig{Noise: true}, "it wrote a line that is not a report"},
	} {
		crew := newCrew("worker", role{}, func(string) any { return c.config })
		if _, err := crew.Start(); err != nil {
			t.Fatal(err)
		}
		err := crew.Poll(t.Context(), Patience, "it ends", func(context.Context) (bool, error) { return false, nil })
		if err == nil || !strings.Contains(err.Error()+crew.logs(), c.want) {
			t.Errorf("%s: error is %v%s", name, err, crew.logs())
		}
	}
}

func TestStopLeavesNoWorkerBehindEvenAFrozenOne(t *testing.T) {
	c := newTestCrew(t, 2)
	c.mu.Lock()
	frozen := c.workers[1]
	c.mu.Unlock()
	if err := subprocess.Freeze(frozen.cmd.Process); err != nil {
		t.Fatal(err)
	}
	if err := c.Stop(20 * time.Second); err != nil {
		t.Error(err)
	}
	if err := c.await(t.Context(), "they end", func() bool { return c.workers[0].over() && c.workers[1].over() }); err != nil {
		t.Error("workers are left")
	}
}

func TestTheFirstWorkerAtThePointIsStruckAndOthersGoOn(t *testing.T) {
	c := newTestCrew(t, 2)
	p, err := c.stop(t.Context(), InHand, func() {})
	if err != nil {
		t.Fatal(err)
	}
	other := map[string]string{"worker 1": "worker 2", "worker 2": "worker 1"}[p.name]
	c.mu.Lock()
	p.stopping = true
	c.mu.Unlock()
	_ = p.kill()
	if p, err = c.stop(t.Context(), AfterCommit, func() {}); err != nil || p.name != other {
		t.Errorf("%s does not go on: %v", other, err)
	}
}

func TestWhatOthersHaveDoneIsNoPlaceToStrike(t *testing.T) {
	c := newTestCrew(t, 1)
	elsewhere, first := c.elsewhere, ""
	c.elsewhere = func(ctx context.Context, subject string, at Point, worker string) (bool, error) {
		if first == "" {
			first = subject
			return true, nil
		}
		return elsewhere(ctx, subject, at, worker)
	}
	p, err := c.stop(t.Context(), InHand, func() {})
	if err != nil || p.subject == first {
		t.Errorf("it stands at %s, which others have done, %v", first, err)
	}
}
