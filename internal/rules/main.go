// Command rules takes the guards away that keep the rules in docs/RULES.md,
// one at a time, and runs the test that is named for each. A guard is caught if
// its test fails without it. It exits with 1 if one is not, or is no longer
// where guards.go says. No file of the module changes: the compiler is given
// the files without the guard by go test -overlay.
//
//	go run ./internal/rules             # all of them, a few minutes
//	go run ./internal/rules R2 R9       # some rules only
//	go run ./internal/rules "SQLite"    # those whose text says so
//	go run ./internal/rules consumer    # those of a package's tests
//	go run ./internal/rules -table      >docs/RULES.md
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
)

func main() {
	table := flag.Bool("table", false, "print docs/RULES.md, and run nothing")
	jobs := flag.Int("jobs", runtime.NumCPU()+1, "how many tests run at a time: some only wait")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *table, max(*jobs, 1), flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "rules:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, table bool, jobs int, only []string) error {
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/epochfence/epochfence").Output()
	if err != nil {
		return fmt.Errorf("find the module: %w", err)
	}
	module := strings.TrimSpace(string(out))
	if table {
		t, err := markdown(module)
		fmt.Print(t)
		return err
	}
	gs := slices.DeleteFunc(slices.Clone(guards), func(g guard) bool { return len(only) > 0 && !slices.ContainsFunc(only, g.answersTo) })
	if len(gs) == 0 {
		return fmt.Errorf("no guard answers to %q; want rules (R1), or words of lines in docs/RULES.md", only)
	}
	if err := passWithTheirGuards(ctx, module, gs); err != nil {
		return err
	}
	return takeAway(ctx, module, jobs, gs)
}

// answersTo reports whether word is the guard's rule, the package of its test, or
// part of its text or of a file that it is in.
func (g guard) answersTo(word string) bool {
	return word == g.rule || word == g.pkg || strings.Contains(g.taken, word) ||
		slices.ContainsFunc(g.edits, func(e edit) bool { return strings.Contains(e.file, word) })
}

// takeAway takes one guard after the other away, so many at a time.
func takeAway(ctx context.Context, module string, jobs int, gs []guard) error {
	var (
		running            sync.WaitGroup
		mu                 sync.Mutex
		done, missed, weak int
		free               = make(chan struct{}, jobs)
		began              = time.Now()
	)
	for _, g := range gs {
		free <- struct{}{}
		running.Go(func() {
			run, err := without(ctx, module, g)
			<-free
			mu.Lock()
			defer mu.Unlock()
			if ctx.Err() != nil {
				return
			}
			verdict := fmt.Sprintf("caught by %s %s", g.pkg, g.test)
			if run > 1 {
				weak++
				verdict += fmt.Sprintf(", but not before run %d: the test is too weak", run)
			}
			if err != nil {
				missed++
				verdict = "NOT CAUGHT: " + err.Error()
			}
			done++
			fmt.Printf("%3d/%d %4.0fs  %-6s %s: %s\n", done, len(gs), time.Since(began).Seconds(), g.rule, g.taken, verdict)
		})
	}
	running.Wait()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if missed > 0 {
		return fmt.Errorf("%d of %d guards are not caught", missed, len(gs))
	}
	fmt.Printf("all %d guards are caught, %d of them not at once\n", len(gs), weak)
	return nil
}

// passWithTheirGuards runs all the tests once before anything is taken away.
func passWithTheirGuards(ctx context.Context, module string, gs []guard) error {
	tests := map[string][]string{}
	for _, g := range gs {
		tests[g.pkg] = append(tests[g.pkg], pattern(g.test))
	}
	for _, pkg := range slices.Sorted(maps.Keys(tests)) {
		began := time.Now()
		slices.Sort(tests[pkg])
		if out, err := goTest(ctx, module, "", pkg, strings.Join(slices.Compact(tests[pkg]), "|"), 3*time.Minute); err != nil {
			return fmt.Errorf("with every guard in its place the tests of %s fail: %w\n%s", pkg, err, out)
		}
		fmt.Printf("%s: with every guard in its place its tests pass (%.0f s)\n", pkg, time.Since(began).Seconds())
	}
	return nil
}

// runs is how often a test may pass without its guard before that counts as not
// caught: what some schedules do not show is asked for again, and said.
const runs = 4

// without runs the test of one guard without it until it fails, and returns in
// which run it did, or an error if it does not.
func without(ctx context.Context, module string, g guard) (run int, err error) {
	temp, err := os.MkdirTemp("", "epochfence-rules-")
	if err != nil {
		return 0, err
	}
	defer func() { _ = os.RemoveAll(temp) }()
	over, err := overlay(temp, module, g.edits)
	if err != nil {
		return 0, err
	}
	top, _, _ := strings.Cut(g.test, "/")
	failed := regexp.MustCompile(`(?m)^(--- FAIL: |\s+)` + top + `\b.*\(`)
	for run = 1; run <= runs; run++ {
		// A test that hangs without the guard has failed as well.
		out, err := goTest(ctx, module, over, g.pkg, pattern(g.test), 30*time.Second)
		switch {
		case err == nil:
		case failed.MatchString(out):
			return run, nil
		default:
			return 0, fmt.Errorf("%s %s did not run: %w\n%s", g.pkg, g.test, err, out)
		}
	}
	return 0, fmt.Errorf("%s %s passes without it, %d times", g.pkg, g.test, runs)
}

// overlay writes the files as they are after the edits, and what go test
// -overlay wants to know of them, to a directory. It returns the latter's path.
func overlay(temp, module string, edits []edit) (string, error) {
	replace := map[string]string{} // the module's file -> ours
	for n, e := range edits {
		original := filepath.Join(module, filepath.FromSlash(e.file))
		from := cmp.Or(replace[original], original)
		before, err := os.ReadFile(from)
		if err != nil {
			return "", err
		}
		if n := strings.Count(string(before), e.old); n != 1 {
			return "", fmt.Errorf("%s has this %d times, want it once; where is the guard now?\n%s", e.file, n, e.old)
		}
		to := filepath.Join(temp, fmt.Sprintf("%d%s", n, filepath.Ext(original)))
		if err := os.WriteFile(to, []byte(strings.Replace(string(before), e.old, e.new, 1)), 0o644); err != nil {
			return "", err
		}
		replace[original] = to
	}
	data, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	path := filepath.Join(temp, "overlay.json")
	return path, os.WriteFile(path, data, 0o644)
}

// overlayVar tells tests that read the module's source files which of them are
// replaced.
const overlayVar = "EPOCHFENCE_RULES_OVERLAY"

// goTest runs tests of one package. A service that is not there is a failure.
func goTest(ctx context.Context, module, overlay, pkg, run string, timeout time.Duration) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "test", "-overlay="+overlay, "-vet=off", "-count=1", "-ldflags=-s -w", "-timeout", timeout.String(), "-run", run, "./"+pkg)
	cmd.Dir = module
	cmd.Env = append(os.Environ(), "CI=true", overlayVar+"="+overlay)
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	if err == nil && strings.Contains(string(out), "no tests to run") {
		err = errors.New("no test of that name")
	}
	return string(out), err
}

// pattern is what go test -run takes for one test or subtest.
func pattern(test string) string {
	parts := strings.Split(strings.ReplaceAll(test, " ", "_"), "/")
	for i, p := range parts {
		parts[i] = "^" + regexp.QuoteMeta(p) + "$"
	}
	return strings.Join(parts, "/")
}
