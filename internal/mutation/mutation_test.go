// Package mutation runs mutation tests: it takes away, one at a time, the guards that keep the rules
// of the protocol (docs/guarantees.md#the-rules), and runs the test named for each. A guard is
// caught if its test fails without it. TestEachGuardIsCaught fails if a guard is not caught, or is no
// longer where its entry says. No file of the module changes: the compiler gets other files by -overlay.
// Each package is built once, with all of its guards behind a switch (switch_test.go). SQL is replaced as
// it is read.
//
//	make mutation                    # all of them, a few minutes
//	make mutation WITHOUT='R2 R9'    # some rules only
//	make mutation WITHOUT=SQLite     # those whose text contains this
//	make mutation WITHOUT=./consumer # those of a package's tests
package mutation

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

var jobs = flag.Int("jobs", 4*runtime.NumCPU(), "how many tests of guards run at a time: most only wait")

// The arguments after -args name the guards: rules, words of their texts, files or packages; or all.
func TestEachGuardIsCaught(t *testing.T) {
	only := flag.Args()
	if len(only) == 0 {
		t.Skip("make mutation names guards; no arguments do here")
	}
	p, err := newPlan(os.DirFS(module), guards, func(g guard) bool { return slices.Contains(only, "all") || slices.ContainsFunc(only, g.answersTo) })
	if err != nil {
		t.Fatal(err)
	}
	if len(p.mutants) == 0 {
		t.Fatalf("no guard answers to %q; want rules (R1), or words of their texts", only)
	}
	fmt.Println(p)
	ctx, stop := signal.NotifyContext(t.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	dir, err := filepath.Abs(module)
	if err != nil {
		t.Fatal(err)
	}
	b := &builder{module: dir, temp: t.TempDir()}
	if err := b.build(ctx, p); err != nil {
		t.Fatal(err)
	}
	postgres, stopPostgres, err := b.postgres(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := stopPostgres(); err != nil {
			t.Error(err)
		}
	}()
	trials := &trials{builder: b, postgres: postgres, free: make(chan struct{}, max(*jobs, 1)), took: map[string]time.Duration{}}
	if err := trials.passUnmutated(ctx, p); err != nil {
		t.Fatal(err)
	}
	if err := trials.failWithout(ctx, p); err != nil {
		t.Fatal(err)
	}
}

// .ci/run reads the packages whose tests catch guards, each with a hash of these guards.
func TestThePackagesWithGuards(t *testing.T) {
	for _, pkg := range packagesOf(guards) {
		fmt.Printf("./%s %s\n", pkg, hashOf(guards, pkg))
	}
}

func packagesOf(guards []guard) []string {
	packages := map[string]bool{}
	for _, g := range guards {
		packages[g.pkg] = true
	}
	return slices.Sorted(maps.Keys(packages))
}

func hashOf(guards []guard, pkg string) string {
	h := sha256.New()
	for _, g := range guards {
		if g.pkg == pkg {
			_, _ = fmt.Fprintf(h, "%q\n", g)
		}
	}
	return hex.EncodeToString(h.Sum(nil))[:16]
}

// answersTo reports whether word is the guard's rule, ./ and the package of its test, or part of its
// text or of a file that it is in.
func (g guard) answersTo(word string) bool {
	return word == g.rule || word == "./"+g.pkg || strings.Contains(g.taken, word) ||
		slices.ContainsFunc(g.edits, func(e edit) bool { return strings.Contains(e.file, word) })
}

// passUnmutated runs all tests once with all guards. It runs failed tests of a package once more
// without others running, and prints that.
func (t *trials) passUnmutated(ctx context.Context, p *plan) error {
	var (
		running sync.WaitGroup
		mu      sync.Mutex
		again   []string
	)
	for _, pkg := range p.packages() {
		running.Go(func() {
			took, out, err := t.baseline(ctx, pkg, p.of(pkg))
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				again = append(again, pkg)
				fmt.Printf("%s: with every guard in its place its tests fail beside others: %v\n%s\n", pkg, err, out)
				return
			}
			fmt.Printf("%s: with every guard in its place its tests pass (%.0f s)\n", pkg, took.Seconds())
		})
	}
	running.Wait()
	for _, pkg := range again {
		if _, out, err := t.baseline(ctx, pkg, p.of(pkg)); err != nil {
			return fmt.Errorf("with every guard in its place the tests of %s fail: %w\n%s", pkg, err, out)
		}
		fmt.Printf("%s: by themselves they pass\n", pkg)
	}
	return nil
}

func (t *trials) failWithout(ctx context.Context, p *plan) error {
	var (
		running            sync.WaitGroup
		mu                 sync.Mutex
		done, missed, weak int
		again              []mutant
		began              = time.Now()
	)
	try := func(m mutant, last bool) {
		run, took, err := t.without(ctx, m)
		mu.Lock()
		defer mu.Unlock()
		if ctx.Err() != nil {
			return
		}
		if err != nil && !last {
			again = append(again, m)
			fmt.Printf("%-6s %s: not caught beside others: %v (%.1f s)\n", m.rule, m.taken, err, took.Seconds())
			return
		}
		verdict := fmt.Sprintf("caught by %s %s", m.pkg, m.test)
		if run > 1 {
			weak++
			verdict += fmt.Sprintf(", but not before run %d: the test is too weak", run)
		}
		if err != nil {
			missed++
			verdict = "NOT CAUGHT: " + err.Error()
		}
		done++
		fmt.Printf("%3d/%d %4.0fs  %-6s %s: %s (%.1f s)\n", done, len(p.mutants), time.Since(began).Seconds(), m.rule, m.taken, verdict, took.Seconds())
	}
	for _, m := range p.mutants {
		running.Go(func() { try(m, false) })
	}
	running.Wait()
	for _, m := range again { // as passUnmutated does
		try(m, true)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if missed > 0 {
		return fmt.Errorf("%d of %d guards are not caught", missed, len(p.mutants))
	}
	fmt.Printf("all %d guards are caught, %d of them not at once\n", len(p.mutants), weak)
	return nil
}
