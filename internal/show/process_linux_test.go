package show

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/epochfence/epochfence/internal/servers/subprocess"
)

func TestNoWorkerIsLeftWhenTheParentIsKilledNotEvenAFrozenOne(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), parentVariable+"="+t.TempDir())
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = in.Close() }()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var one, two int
	_, scanError := fmt.Fscan(out, &one, &two)
	_ = cmd.Process.Kill()
	_, _ = io.Copy(io.Discard, out)
	_ = cmd.Wait()
	if scanError != nil {
		t.Fatal(scanError)
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for limit := time.Now().Add(20 * time.Second); !gone(one) || !gone(two); <-tick.C {
		if time.Now().After(limit) {
			t.Fatalf("frozen worker %d gone: %v; worker %d gone: %v", one, gone(one), two, gone(two))
		}
	}
}

// gone reports whether the process has ended. Nobody may be there to reap it.
func gone(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return true
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && strings.Contains(string(stat), ") Z ")
}

func TestAFrozenProcessHasNoThreadThatRuns(t *testing.T) {
	c := newTestCrew(t, 1)
	c.mu.Lock()
	p := c.workers[0].cmd.Process
	c.mu.Unlock()
	for range 100 {
		for range 2 { // one that stands is frozen
			if err := subprocess.Freeze(p); err != nil {
				t.Fatal(err)
			}
		}
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.Pid))
		if err != nil || len(threads) == 0 {
			t.Fatalf("threads %v, %v", threads, err)
		}
		for _, thread := range threads {
			stat, err := os.ReadFile(thread)
			if _, state, _ := strings.Cut(string(stat), ") "); err != nil || !strings.HasPrefix(state, "T") {
				t.Fatalf("%s is %q, %v; want state T", thread, stat, err)
			}
		}
		if err := subprocess.Thaw(p); err != nil {
			t.Fatal(err)
		}
	}
}
