package show

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/epochfence/epochfence/internal/servers/subprocess"
)

// The test binary plays its own workers, as the shows do.
func TestMain(m *testing.M) {
	Enter(puppet)
	if dir := os.Getenv(parentVariable); dir != "" {
		os.Exit(parent(dir))
	}
	os.Exit(m.Run())
}

// puppetConfig is what a puppet is configured with.
type puppetConfig struct {
	Dir   string // where the partition's owner is written
	Crash bool
	Noise bool // it prints over its own reports
}

// puppet owns partition 0 as long as its sign of life in a file is fresh. It
// counts in a file and, like the baseline, asks nobody whether it still may.
func puppet(ctx context.Context, stage *Stage) error {
	var c puppetConfig
	if err := stage.Config(&c); err != nil {
		return err
	}
	fmt.Println("what a library prints is no report") // in all tests
	if c.Noise {
		_, _ = os.NewFile(1, "reports").WriteString("no report\n")
		<-ctx.Done()
		return nil
	}
	if c.Crash {
		return errors.New("puppet: cut")
	}
	lease := filepath.Join(c.Dir, "lease")
	me := strconv.Itoa(os.Getpid())
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		owner, _ := os.ReadFile(lease)
		info, err := os.Stat(lease)
		if err == nil && string(owner) != me && time.Since(info.ModTime()) < 5*time.Second {
			continue
		}
		if err := os.WriteFile(lease, []byte(me), 0o600); err != nil {
			return err
		}
		if err := transaction(stage, filepath.Join(c.Dir, "count")); err != nil {
			return err
		}
	}
}

func transaction(stage *Stage, count string) error {
	b, _ := os.ReadFile(count)
	n, _ := strconv.ParseInt(string(b), 10, 64)
	cue := stage.Cue(Subject(0, n), InHand, AfterWrites, AfterCommit)
	cue.Reach(InHand)
	err := os.WriteFile(count, []byte(strconv.FormatInt(n+1, 10)), 0o600)
	cue.Reach(AfterWrites)
	return cue.Done(err)
}

// counted reports whether puppets in dir have done what a subject names.
func counted(dir string) func(context.Context, string, Point, string) (bool, error) {
	return func(_ context.Context, subject string, _ Point, _ string) (bool, error) {
		_, offset, _ := Position(subject)
		b, _ := os.ReadFile(filepath.Join(dir, "count"))
		n, _ := strconv.ParseInt(string(b), 10, 64)
		return n > offset, nil
	}
}

// parentVariable makes the test binary a parent that is to be killed.
const parentVariable = "EPOCHFENCE_SHOW_TEST_PARENT"

// parent starts two workers and freezes one, says so, and waits.
func parent(dir string) int {
	crew := newCrew("worker", role{}, func(string) any { return puppetConfig{Dir: dir} })
	for range 2 {
		if _, err := crew.Start(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	crew.mu.Lock()
	one, two := crew.workers[0].cmd.Process, crew.workers[1].cmd.Process
	crew.mu.Unlock()
	if err := subprocess.Freeze(one); err != nil {
		return 1
	}
	fmt.Println(one.Pid, two.Pid)
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}
