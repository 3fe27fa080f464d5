package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/epochfence/epochfence/internal/pgtest"
)

const (
	// runs is how often a test may pass without its guard before that counts as not
	// caught: what some schedules do not show is asked for again, and said. A
	// test that is brief is asked more often, for as long as brief is.
	runs      = 4
	runsBrief = 20
	brief     = 5 * time.Second

	// hang is how long a test may take without its guard, or three times as long as with it: if
	// it hangs, it has failed as well, provided that it does not with it, right afterwards.
	hang = 30 * time.Second

	// whole packages take longer, beside each other.
	baselineTimeout = 5 * time.Minute
)

// timedOut is what a test binary says whose time is up.
const timedOut = "panic: test timed out"

// trials run the binaries of tests, so many at a time.
type trials struct {
	*builder
	postgres string
	free     chan struct{}

	mu   sync.Mutex
	took map[string]time.Duration // by the tests of guards that are in their places
}

// baseline runs the tests of a package's guards, with all of them in their places.
func (t *trials) baseline(ctx context.Context, pkg string, ms []mutant) (took time.Duration, out string, err error) {
	t.free <- struct{}{}
	defer func() { <-t.free }()
	var tests []string
	for _, m := range ms {
		tests = append(tests, pattern(m.test))
	}
	slices.Sort(tests)
	began := time.Now()
	out, err = t.test(ctx, t.binary(pkg), pkg, strings.Join(slices.Compact(tests), "|"), baselineTimeout)
	t.learn(pkg, out)
	return time.Since(began), out, err
}

// passed is what a test binary says of a test.
var passed = regexp.MustCompile(`(?m)^ *--- PASS: (\S+) \((\S+)\)$`)

// learn notes how long tests took.
func (t *trials) learn(pkg, out string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, m := range passed.FindAllStringSubmatch(out, -1) {
		if took, err := time.ParseDuration(m[2]); err == nil {
			t.took[pkg+" "+m[1]] = took
		}
	}
}

// without runs the test of one guard without it until it fails, and returns in
// which run it did and how long all took, or an error if it does not.
func (t *trials) without(ctx context.Context, m mutant) (run int, took time.Duration, err error) {
	binary, env, err := t.prepare(ctx, m)
	if err != nil {
		return 0, 0, err
	}
	t.free <- struct{}{}
	defer func() { <-t.free }()
	began := time.Now()
	run, err = t.untilItFails(ctx, binary, m, env)
	return run, time.Since(began), err
}

func (t *trials) untilItFails(ctx context.Context, binary string, m mutant, env []string) (run int, err error) {
	top, _, _ := strings.Cut(m.test, "/")
	failed := regexp.MustCompile(`(?m)^(--- FAIL: |\s+)` + top + `\b.*\(`)
	began, limit := time.Now(), t.limit(m)
	for run = 1; run <= runs || run <= runsBrief && time.Since(began) < brief; run++ {
		out, err := t.test(ctx, binary, m.pkg, pattern(m.test), limit, env...)
		switch {
		case err == nil:
		case strings.Contains(out, timedOut):
			return run, t.passesWith(ctx, m, limit/2)
		case failed.MatchString(out):
			return run, nil
		default:
			return 0, fmt.Errorf("%s %s did not run: %w\n%s", m.pkg, m.test, err, out)
		}
	}
	return 0, fmt.Errorf("%s %s passes without it, %d times", m.pkg, m.test, run-1)
}

// limit is how long the test of a guard may take without it.
func (t *trials) limit(m mutant) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return max(hang, 3*t.took[m.pkg+" "+strings.ReplaceAll(m.test, " ", "_")])
}

// passesWith runs the test of a guard that is in its place, after it hung without: it may
// have been for what runs beside it.
func (t *trials) passesWith(ctx context.Context, m mutant, limit time.Duration) error {
	if out, err := t.test(ctx, t.binary(m.pkg), m.pkg, pattern(m.test), limit); err != nil {
		return fmt.Errorf("%s %s hangs without it, and with it: %w\n%s", m.pkg, m.test, err, out)
	}
	return nil
}

// prepare returns the binary that runs the test of a guard, and the environment in which
// it does so without it.
func (t *trials) prepare(ctx context.Context, m mutant) (binary string, env []string, err error) {
	binary = t.binary(m.pkg)
	switch m.way {
	case switched:
		env = append(env, switchVar+"="+strconv.Itoa(m.number))
	case alone:
		if binary, err = t.alone(ctx, m); err != nil {
			return "", nil, err
		}
	case shown:
		files, err := t.changed(m, "")
		if err != nil {
			return "", nil, err
		}
		over, err := t.overlay(strconv.Itoa(m.number), files)
		return binary, append(env, overlayVar+"="+over), err
	}
	scripts, err := t.scripts(m)
	return binary, append(env, scriptsVar+"="+scripts), err
}

// overlayVar tells tests that read the module's source files which of them are
// replaced.
const overlayVar = "EPOCHFENCE_RULES_OVERLAY"

// test runs tests of one package. A service that is not there is a failure.
func (t *trials) test(ctx context.Context, binary, pkg, run string, timeout time.Duration, env ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout+hang) // if it cannot even say that it hangs
	defer cancel()
	args := []string{"-test.v", "-test.timeout=" + timeout.String(), "-test.run=" + run}
	if slices.Contains(t.needs[pkg], usesRapid) { // a failure is wanted, not its smallest form, and none is to come back
		args = append(args, "-rapid.nofailfile", "-rapid.shrinktime=10ms")
	}
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Dir = filepath.Join(t.module, filepath.FromSlash(pkg))
	cmd.Env = append(os.Environ(), append(env, "CI=true", pgtest.Env+"="+t.postgres)...)
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	if err == nil && strings.Contains(string(out), "no tests to run") {
		err = errors.New("no test of that name")
	}
	return string(out), err
}

// pattern is what -test.run takes for one test or subtest.
func pattern(test string) string {
	parts := strings.Split(strings.ReplaceAll(test, " ", "_"), "/")
	for i, p := range parts {
		parts[i] = "^" + regexp.QuoteMeta(p) + "$"
	}
	return strings.Join(parts, "/")
}
