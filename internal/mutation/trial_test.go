package mutation

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

	"github.com/epochfence/epochfence/internal/servers/pgtest"
)

const (
	// runs limits how often a test may pass without its guard before the guard counts as not
	// caught. Some schedules do not show the failure, so such a test runs again, and the report
	// says so. A brief test gets runsBrief runs, for at most brief in all.
	runs      = 4
	runsBrief = 20
	brief     = 5 * time.Second

	// hang is how long a test may take without its guard, or three times as long as with it. A test
	// that hangs has failed too, unless it hangs with the guard right afterwards.
	hang = 15 * time.Second

	// baselineTimeout is longer, because whole packages run in parallel.
	baselineTimeout = 5 * time.Minute
)

const timedOut = "panic: test timed out"

// trials run test binaries, a limited number at a time.
type trials struct {
	*builder
	postgres string
	free     chan struct{}

	mu   sync.Mutex
	took map[string]time.Duration // by test, with all guards
}

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

var passed = regexp.MustCompile(`(?m)^ *--- PASS: (\S+) \((\S+)\)$`)

func (t *trials) learn(pkg, out string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, m := range passed.FindAllStringSubmatch(out, -1) {
		if took, err := time.ParseDuration(m[2]); err == nil {
			t.took[pkg+" "+m[1]] = took
		}
	}
}

// without runs the test of one guard without the guard until it fails. It returns the number of the
// failed run and the total time, or an error if the test does not fail.
func (t *trials) without(ctx context.Context, m mutant) (run int, took time.Duration, err error) {
	binary, env, err := t.prepare(m)
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
			err := t.passesWith(ctx, m, limit/2)
			if errors.Is(err, errBusy) && limit < maxLimit {
				limit = maxLimit // it is the machine that is slow
				continue
			}
			return run, err
		case failed.MatchString(out):
			return run, nil
		default:
			return 0, fmt.Errorf("%s %s did not run: %w\n%s", m.pkg, m.test, err, out)
		}
	}
	return 0, fmt.Errorf("%s %s passes without it, %d times", m.pkg, m.test, run-1)
}

func (t *trials) limit(m mutant) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return max(hang, 3*t.took[m.pkg+" "+strings.ReplaceAll(m.test, " ", "_")])
}

// errBusy: a test takes too long with its guard, too.
var errBusy = errors.New("it takes too long")

// maxLimit is for a test that has taken too long with its guard.
const maxLimit = 2 * time.Minute

// passesWith runs the test with its guard after it hung without it: other running tests may have
// caused the hang.
func (t *trials) passesWith(ctx context.Context, m mutant, limit time.Duration) error {
	out, err := t.test(ctx, t.binary(m.pkg), m.pkg, pattern(m.test), limit)
	if err != nil && strings.Contains(out, timedOut) {
		err = fmt.Errorf("%w: %w", errBusy, err)
	}
	if err != nil {
		return fmt.Errorf("%s %s hangs without it, and with it: %w\n%s", m.pkg, m.test, err, out)
	}
	return nil
}

// prepare returns the binary for the test of a guard, and the environment that takes the guard
// away.
func (t *trials) prepare(m mutant) (binary string, env []string, err error) {
	binary = t.binary(m.pkg)
	switch m.way {
	case switched:
		env = append(env, switchVar+"="+strconv.Itoa(m.number))
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

// overlayVar tells tests that read the module's source files which files are replaced.
const overlayVar = "EPOCHFENCE_MUTATION_OVERLAY"

// test runs tests of one package. A missing service is a failure.
func (t *trials) test(ctx context.Context, binary, pkg, run string, timeout time.Duration, env ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout+hang) // in case it cannot report its own timeout
	defer cancel()
	args := []string{"-test.v", "-test.timeout=" + timeout.String(), "-test.run=" + run}
	if slices.Contains(t.needs[pkg], usesRapid) { // neither a smaller failure nor a stored one is wanted
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

func pattern(test string) string {
	parts := strings.Split(strings.ReplaceAll(test, " ", "_"), "/")
	for i, p := range parts {
		parts[i] = "^" + regexp.QuoteMeta(p) + "$"
	}
	return strings.Join(parts, "/")
}
