// Command mutation runs mutation tests: it takes away, one at a time, the guards that keep the rules
// of the protocol (docs/guarantees.md#the-rules), and runs the test named for each. A guard is
// caught if its test fails without it. The exit code is 1 if a guard is not caught, or is no longer
// where its entry says. No file of the module changes: the compiler gets other files by -overlay.
// Each package is built once, with all of its guards behind a switch (switch.go). SQL is replaced as
// it is read.
//
//	go run ./internal/mutation             # all of them, a few minutes
//	go run ./internal/mutation R2 R9       # some rules only
//	go run ./internal/mutation "SQLite"    # those whose text contains this
//	go run ./internal/mutation ./consumer  # those of a package's tests
//	go run ./internal/mutation -packages   # these packages, each with a hash of its guards
//	go run ./internal/mutation -table      # a table of all guards
package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

func main() {
	table := flag.Bool("table", false, "print a table of all guards in Markdown, and run nothing")
	packages := flag.Bool("packages", false, "print the packages whose tests catch guards, each with a hash of these guards, and run nothing")
	jobs := flag.Int("jobs", 4*runtime.NumCPU(), "how many tests run at a time: most only wait")
	flag.Parse()
	if *packages {
		for _, pkg := range packagesOf(guards) {
			fmt.Printf("./%s %s\n", pkg, hashOf(guards, pkg))
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *table, max(*jobs, 1), flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "mutation:", err)
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
		t, err := markdown(os.DirFS(module))
		fmt.Print(t)
		return err
	}
	p, err := newPlan(os.DirFS(module), guards, func(g guard) bool { return len(only) == 0 || slices.ContainsFunc(only, g.answersTo) })
	if err != nil {
		return err
	}
	if len(p.mutants) == 0 {
		return fmt.Errorf("no guard answers to %q; want rules (R1), or words of lines of -table", only)
	}
	fmt.Println(p)
	return takeAway(ctx, module, jobs, p)
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

func takeAway(ctx context.Context, module string, jobs int, p *plan) (err error) {
	temp, err := os.MkdirTemp("", "epochfence-mutation-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(temp)) }()
	b := &builder{module: module, temp: temp}
	if err := b.build(ctx, p); err != nil {
		return err
	}
	postgres, stop, err := b.postgres(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	t := &trials{builder: b, postgres: postgres, free: make(chan struct{}, jobs), took: map[string]time.Duration{}}
	if err := t.passUnmutated(ctx, p); err != nil {
		return err
	}
	return t.failWithout(ctx, p)
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
