package show

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestAFrozenProcessHasNoThreadThatRuns(t *testing.T) {
	c := newTestCrew(t, 1)
	c.mu.Lock()
	p := c.workers[0].cmd.Process
	c.mu.Unlock()
	for range 100 {
		if err := freeze(p); err != nil {
			t.Fatal(err)
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
		if err := thaw(p); err != nil {
			t.Fatal(err)
		}
	}
}
