//go:build unix

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/natsstore"
	"github.com/epochfence/epochfence/internal/servers/natstest"
	"github.com/epochfence/epochfence/lease"
)

// lockRig runs the program as a process, with the locks in a bucket.
type lockRig struct {
	t     *testing.T
	store string
	items *natsstore.Store
	log   string // which commands write to
}

func locks(t *testing.T) *lockRig {
	t.Helper()
	server := natstest.Start(t)
	items, err := natsstore.Open(t.Context(), server.JetStream(t), natsstore.Options{Bucket: "locks"})
	must(t, err)
	return &lockRig{t, server.URL() + "/locks", items, filepath.Join(t.TempDir(), "log")}
}

// lock is `epochfence lock nightly … -- sh -c script`. The script has $LOG. A machine that stands for seconds loses
// nobody the lock, unless flags have a shorter --ttl.
func (l *lockRig) lock(script string, flags ...string) *exec.Cmd {
	l.t.Helper()
	self, err := os.Executable()
	must(l.t, err)
	cmd := exec.CommandContext(l.t.Context(), self, append(append([]string{"lock", "nightly", "--store", l.store, "--ttl", "1m"}, flags...), "--", "sh", "-c", script)...)
	cmd.Env = append(os.Environ(), "EPOCHFENCE_TEST_ITSELF=1", "LOG="+l.log)
	cmd.WaitDelay = time.Minute
	return cmd
}

// begun starts cmd, and returns once its script has written a line.
func (l *lockRig) begun(cmd *exec.Cmd) (said *strings.Builder) {
	l.t.Helper()
	said = &strings.Builder{}
	cmd.Stdout, cmd.Stderr = said, said
	must(l.t, cmd.Start())
	l.t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	l.until("the command has begun", func() bool { return l.wrote() != "" })
	return said
}

func (l *lockRig) wrote() string {
	text, err := os.ReadFile(l.log)
	if err != nil && !os.IsNotExist(err) {
		l.t.Fatal(err)
	}
	return string(text)
}

func (l *lockRig) until(what string, holds func() bool) {
	l.t.Helper()
	limit, again := time.After(time.Minute), time.NewTicker(10*time.Millisecond)
	defer again.Stop()
	for !holds() {
		select {
		case <-again.C:
		case <-limit:
			l.t.Fatalf("a minute has passed before %s; the log:\n%s", what, l.wrote())
		}
	}
}

// ends waits for cmd, and wants its exit code and what it says.
func (l *lockRig) ends(cmd *exec.Cmd, said *strings.Builder, code int, parts ...string) {
	l.t.Helper()
	_ = cmd.Wait()
	if got := cmd.ProcessState.ExitCode(); got != code {
		l.t.Errorf("exit code %d, want %d: %s", got, code, said)
	}
	tells(l.t, said.String(), parts...)
}

func (l *lockRig) member(name string) *lease.Member {
	l.t.Helper()
	m, err := lease.Open(l.t.Context(), l.items, lease.Options{Group: "locks", Name: name, TTL: time.Minute})
	must(l.t, err)
	l.t.Cleanup(m.Close)
	return m
}

func TestACommandUnderALockHasItsStreamsAndItsExitCode(t *testing.T) {
	t.Parallel()
	l := locks(t)
	for _, x := range []struct {
		script string
		code   int
		out    string
	}{
		{"cat; echo $EPOCHFENCE_LOCK", 0, "from outside\nlocks/nightly\n"},
		{"exit 7", 7, ""},
		{"kill -9 $$", 128 + 9, ""},
	} {
		cmd := l.lock(x.script)
		cmd.Stdin = strings.NewReader("from outside\n")
		var errs strings.Builder
		cmd.Stderr = &errs
		out, _ := cmd.Output()
		if code := cmd.ProcessState.ExitCode(); code != x.code || string(out) != x.out || errs.Len() > 0 {
			t.Errorf("%q: exit code %d, %q, %q; want %d, %q and nothing", x.script, code, out, &errs, x.code, x.out)
		}
	}
}

func TestWhatCannotRunUnderALockIsSaid(t *testing.T) {
	t.Parallel()
	l := locks(t)
	held, err := l.member("another").Acquire(t.Context(), "taken")
	must(t, err)
	defer func() { _ = held.Release(t.Context()) }()
	notExecutable := filepath.Join(t.TempDir(), "script")
	must(t, os.WriteFile(notExecutable, []byte("#!/bin/sh\n"), 0o600))
	c := &cli{t, map[string]string{"EPOCHFENCE_STORE": l.store}}
	for _, x := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"lock", "free", "--", "no-such-command"}, 127, "no-such-command"},
		{[]string{"lock", "free", "--", notExecutable}, 126, "permission denied"},
		{[]string{"lock", "taken", "--wait", "0", "--", "echo", "ran"}, 124, "is held by another@"},
		{[]string{"lock", "taken", "--wait", "50ms", "--", "echo", "ran"}, 124, "is held by another@"},
		{[]string{"lock", "free", "--store", "nats://127.0.0.1:1/locks", "--timeout", "1s", "--", "echo", "ran"}, 125, "the command did not run"},
		{[]string{"lock", "free", "--store", "nats://127.0.0.1:1", "--", "echo", "ran"}, exitUsage, "name the bucket"},
		{[]string{"lock", "free", "echo", "ran"}, exitUsage, "NAME -- COMMAND"},
		{[]string{"lock", "--", "echo", "ran"}, exitUsage, "NAME -- COMMAND"},
		{[]string{"lock", "free", "--ttl", "1ms", "--", "echo", "ran"}, 125, "Options.TTL is 1ms"},
	} {
		a := c.does(x.code, x.args...)
		tells(t, a.errs, x.says)
		if a.out != "" {
			t.Errorf("%v printed %q", x.args, a.out)
		}
	}
}

func TestAStoreThatDoesNotAnswerAnyMoreIsNoLockThatAnotherHas(t *testing.T) {
	t.Parallel()
	server := natstest.Start(t)
	items, err := natsstore.Open(t.Context(), server.JetStream(t), natsstore.Options{Bucket: "locks"})
	must(t, err)
	m, err := lease.Open(t.Context(), items, lease.Options{Group: "locks", TTL: time.Second, Logger: quiet})
	must(t, err)
	t.Cleanup(m.Close)
	must(t, server.Stop())
	_, err = acquire(t.Context(), m, "free", 100*time.Millisecond)
	if code := exitCode(err); code != exitLock {
		t.Errorf("exit code %d, want %d: %v", code, exitLock, err)
	}
}

func TestCommandsUnderALockDoNotOverlapAndTheirTokensGrow(t *testing.T) {
	t.Parallel()
	l := locks(t)
	const processes = 6
	var all []*exec.Cmd
	for range processes {
		cmd := l.lock(`echo begins $EPOCHFENCE_TOKEN >>$LOG; read line; echo ends >>$LOG`)
		cmd.Stdin = strings.NewReader("\n")
		must(t, cmd.Start())
		all = append(all, cmd)
	}
	for _, cmd := range all {
		must(t, cmd.Wait())
	}
	text, last := l.wrote(), 0
	if !regexp.MustCompile(fmt.Sprintf(`^(begins \d+\nends\n){%d}$`, processes)).MatchString(text) {
		t.Fatalf("the commands have written:\n%s", text)
	}
	for _, token := range regexp.MustCompile(`\d+`).FindAllString(text, -1) {
		n, err := strconv.Atoi(token)
		must(t, err)
		if n <= last {
			t.Errorf("the token %d came after %d", n, last)
		}
		last = n
	}
}

// evict takes the lock from its holder, as an operator could who deletes its item.
func (l *lockRig) evict() {
	l.t.Helper()
	for item, err := range l.items.List(l.t.Context(), "") {
		must(l.t, err)
		for strings.Contains(item.Key, "nightly") && item.Live {
			err := l.items.Delete(l.t.Context(), item)
			if !errors.Is(err, cas.ErrConflict) {
				must(l.t, err)
				break
			}
			item, err = l.items.Get(l.t.Context(), item.Key) // it was renewed meanwhile
			must(l.t, err)
		}
	}
}

func TestACommandWhoseLockIsLostIsEndedAndThatIsSaid(t *testing.T) {
	t.Parallel()
	t.Run("it ends at SIGTERM, and returns 0", func(t *testing.T) {
		t.Parallel()
		l := locks(t)
		cmd := l.lock(`trap 'echo told >>$LOG; exit 0' TERM; echo begins >>$LOG; while :; do sleep 0.05; done`, "--ttl", "1s")
		said := l.begun(cmd)
		l.evict()
		l.ends(cmd, said, 123, "the lease was lost", "another one may have run beside it")
		tells(t, l.wrote(), "told")
	})
	t.Run("it ignores SIGTERM, and has started another", func(t *testing.T) {
		t.Parallel()
		l := locks(t)
		cmd := l.lock(`trap '' TERM; sh -c 'echo $$ >>$LOG; exec sleep 600' & wait`, "--ttl", "1s", "--kill-after", "100ms")
		said := l.begun(cmd)
		l.evict()
		l.ends(cmd, said, 123, "signal: killed")
		started, err := strconv.Atoi(strings.TrimSpace(l.wrote()))
		must(t, err)
		l.until("what it has started is gone", func() bool { return isGone(started) })
	})
	t.Run("both were suspended until another process had the lock", func(t *testing.T) {
		t.Parallel()
		l := locks(t)
		cmd := l.lock(`trap 'echo told >>$LOG; exit 3' TERM; echo $$ >>$LOG; while :; do sleep 0.05; done`, "--ttl", "10s")
		said := l.begun(cmd)
		script, err := strconv.Atoi(strings.TrimSpace(l.wrote()))
		must(t, err)
		must(t, cmd.Process.Signal(syscall.SIGSTOP))
		must(t, syscall.Kill(script, syscall.SIGSTOP))
		held, err := l.member("another").Acquire(t.Context(), "nightly")
		must(t, err)
		defer func() { _ = held.Release(t.Context()) }()
		must(t, cmd.Process.Signal(syscall.SIGCONT))
		l.ends(cmd, said, 123, "the lease was lost")
		tells(t, l.wrote(), "told")
	})
}

// isGone reports whether a process is neither running nor waiting for its parent.
func isGone(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return syscall.Kill(pid, 0) != nil
	}
	_, state, _ := strings.Cut(string(stat), ") ")
	return strings.HasPrefix(state, "Z")
}

func TestASignalIsPassedOnAndTheLockIsFreeAfterwards(t *testing.T) {
	t.Parallel()
	l := locks(t)
	cmd := l.lock(`trap 'exit 9' TERM; echo begins >>$LOG; while :; do sleep 0.05; done`, "--ttl", "1h")
	said := l.begun(cmd)
	must(t, cmd.Process.Signal(syscall.SIGTERM))
	l.ends(cmd, said, 9)
	next := l.lock("exit 4", "--ttl", "1h")
	said = &strings.Builder{}
	must(t, next.Start())
	l.ends(next, said, 4)
}

func TestASignalThatWasIgnoredBeforeStaysSo(t *testing.T) {
	t.Parallel()
	l := locks(t)
	cmd := l.lock(`echo begins >>$LOG; until [ -e $LOG.end ]; do sleep 0.05; done; exit 4`, "--ttl", "1h")
	cmd.Args = append([]string{"nohup"}, cmd.Args...)
	nohup, err := exec.LookPath("nohup")
	must(t, err)
	cmd.Path = nohup
	said := l.begun(cmd)
	must(t, cmd.Process.Signal(syscall.SIGHUP))
	must(t, os.WriteFile(l.log+".end", nil, 0o600))
	l.ends(cmd, said, 4)
}

func TestACommandIsToldWhenTheProcessWithItsLockIsKilled(t *testing.T) {
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		t.Skip("only Linux has a death signal")
	}
	t.Parallel()
	l := locks(t)
	cmd := l.lock(`trap 'echo told >>$LOG; exit 0' TERM; echo begins >>$LOG; while :; do sleep 0.05; done`)
	l.begun(cmd)
	must(t, cmd.Process.Kill())
	l.until("the command was told", func() bool { return strings.Contains(l.wrote(), "told") })
}
