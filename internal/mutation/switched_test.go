package mutation

import (
	"fmt"
	"go/format"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
)

// program has a function of each kind, and prints what they return.
const program = `package main

import "fmt"

type box[T any] struct{ v T }

func (b *box[T]) get(_ int, more ...T) (T, error) {
	if len(more) > 0 {
		return more[0], nil
	}
	return b.v, nil
}

func (box[_]) unnamed(int, string) string { return "unnamed" }

func pair[K comparable, V any](k K, _ V) (same bool) {
	same = k == k
	return
}

func recovers() (said any) {
	defer func() { said = recover() }()
	panic("recovered")
}

func down(n int) int {
	if n == 0 {
		return 0
	}
	return 1 + down(n-1)
}

var printed []any

func print(all ...any) {
	printed = append(printed, all...)
}

func both() int { return first() + second() }
func first() int { return 1 }
func second() int { return 20 }

var atStart = both()

func init() {
	print("init")
}

func main() {
	b := &box[string]{"v"}
	v, _ := b.get(1)
	more, _ := b.get(1, "more")
	print(v, b.unnamed(1, ""), more, pair(1, ""), recovers(), down(3), atStart)
	fmt.Println(printed...)
}
`

func TestAFunctionDoesTheSameBehindItsSwitchAndOtherwiseWithoutItsGuard(t *testing.T) {
	const all = "init v unnamed more true recovered 3 21"
	gs := []struct {
		edits []edit
		want  string
	}{
		{[]edit{{"main.go", "len(more) > 0", "false"}}, "init v unnamed v true recovered 3 21"},
		{[]edit{{"main.go", "b.v, nil", "more[0], nil"}, {"main.go", "len(more) > 0", "len(more) == 0"}, {"main.go", "return more[0], nil\n}", "return b.v, nil\n}"}}, all},
		{[]edit{{"main.go", `return "unnamed"`, `return "other"`}}, "init v other more true recovered 3 21"},
		{[]edit{{"main.go", "same = k == k", ""}}, "init v unnamed more false recovered 3 21"},
		{[]edit{{"main.go", `panic("recovered")`, `panic("other")`}}, "init v unnamed more true other 3 21"},
		{[]edit{{"main.go", "1 + down(n-1)", "10 + down(n-1)"}}, "init v unnamed more true recovered 30 21"},
		{[]edit{{"main.go", "append(printed, all...)", "append(printed, len(all))"}}, "1 7"},
		{[]edit{{"main.go", "{ return 1 }", "{ return 3 }"}, {"main.go", "{ return 20 }", "{ return 40 }"}}, "init v unnamed more true recovered 3 43"},
		{[]edit{{"main.go", `print("init")`, ""}}, "v unnamed more true recovered 3 21"},
	}
	var guards []guard
	for _, g := range gs {
		guards = append(guards, guard{rule: "R1", taken: "a rule", edits: g.edits, pkg: "p"})
	}
	p := planned(t, program, guards...)
	for _, m := range p.mutants {
		if m.way != switched {
			t.Errorf("%v %s", m.edits, m.way)
		}
	}
	binary := compiled(t, p)
	run := func(number int, want string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), binary)
		cmd.Env = append(os.Environ(), switchVar+"="+strconv.Itoa(number))
		out, err := cmd.CombinedOutput()
		if got := strings.TrimSpace(string(out)); got != want || err != nil {
			t.Errorf("without guard %d: got %s, %v, want %s", number, got, err, want)
		}
	}
	run(0, all)
	for i, g := range gs {
		run(i+1, g.want)
	}
}

// A guard that cannot be behind a switch, or would not do the same there, is refused.
func TestAGuardThatCannotBeSwitchedIsRefused(t *testing.T) {
	const src = `package main

import "runtime"

const limit = 3

type t struct{ a int }

func (x t) signature(n int) int { return n }

func recovers() { _ = recover() }

func callers() func() int {
	return func() int {
		_, _, line, _ := runtime.Caller(1)
		return line + 1
	}
}

func good() int { return limit }

func main() {}
`
	for _, c := range []struct {
		edits []edit
		want  string
	}{
		{[]edit{{"main.go", "limit = 3", "limit = 4"}}, "can be switched"},
		{[]edit{{"main.go", "a int", "a, b int"}}, "can be switched"},
		{[]edit{{"main.go", "n int) int { return n }", "n int) int { return 0 }"}}, "can be switched"},
		{[]edit{{"main.go", "_ = recover()", ""}}, "can be switched"},
		{[]edit{{"main.go", "line + 1", "line"}}, "can be switched"},
		{[]edit{{"main.go", "return limit", "return 4"}, {"main.go", "limit = 3", "limit = 4"}}, "can be switched"},
		{[]edit{{"main.go", "return limit", "return 4"}}, switched.String()},
		{[]edit{{"a.sql", "1", "2"}}, replaced.String()},
		{[]edit{{"a.sql", "1", "2"}, {"main.go", "return limit", "return 4"}}, switched.String()},
	} {
		p, err := newPlan(files(src), []guard{{edits: c.edits, pkg: "p"}}, all)
		got := fmt.Sprint(err)
		if err == nil {
			got = p.mutants[0].way.String()
		}
		if !strings.Contains(got, c.want) {
			t.Errorf("%v: %s, want %s", c.edits, got, c.want)
		}
	}
}

func TestEditsOfAGuardThatOverlapAreRefused(t *testing.T) {
	m := files(program)
	g := guard{edits: []edit{{"main.go", "len(more) > 0 {", "false {"}, {"main.go", "if len(more) > 0", "if true"}}}
	if _, err := newPlan(m, []guard{g}, all); err == nil || !strings.Contains(err.Error(), "overlap") {
		t.Error(err)
	}
}

func all(guard) bool { return true }

// files are a module with the least that every plan wants.
func files(program string) fstest.MapFS {
	return fstest.MapFS{
		"main.go": {Data: []byte(program)},
		"a.sql":   {Data: []byte("select 1")},
		"go.mod":  {Data: []byte("module example\n\ngo 1.25\n")},
		scriptsFile: {Data: []byte("package sqlschema\n\nimport \"io/fs\"\n\n" +
			"func Read(files fs.FS, dir, of string) []string { return nil }\n")},
	}
}

func planned(t *testing.T, program string, gs ...guard) *plan {
	t.Helper()
	p, err := newPlan(files(program), gs, all)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// compiled builds the command with its switches.
func compiled(t *testing.T, p *plan) string {
	t.Helper()
	switches, err := p.switches()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, name := range []string{"main.go", "mutation_switch.go"} {
		text := switches[name]
		if _, err := format.Source([]byte(text)); err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		if err := write(filepath.Join(dir, name), text); err != nil {
			t.Fatal(err)
		}
	}
	if err := write(filepath.Join(dir, "go.mod"), "module example\n\ngo 1.25\n"); err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(dir, "example")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", binary, ".")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s\n%s", err, out, switches["main.go"])
	}
	return binary
}
