// Package commandtest runs the command epochfence as a program, for the tests of other modules.
package commandtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/sinks/cassink"
)

const module = "github.com/epochfence/epochfence"

// Reaches fails t unless the command operates the sink in the store s when --store is url. env are
// variables of the client, as NAME=VALUE.
func Reaches(t *testing.T, s cas.Store, url string, env ...string) {
	t.Helper()
	program := build(t)
	run := func(args ...string) string {
		cmd := exec.CommandContext(t.Context(), program, args...)
		cmd.Env = append(append(os.Environ(), "EPOCHFENCE_STORE="+url), env...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("epochfence %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	run("drill", "--execute")
	if out := run("list"); !strings.Contains(out, "epochfence-drill/drill/0") {
		t.Errorf("epochfence list does not show the partition of the drill:\n%s", out)
	}
	run("pause", "drill/0", "--execute", "--by", "anna", "--reason", "for the test")
	run("doctor", "--group", "another")
	sink, err := cassink.Open(t.Context(), s, cassink.Options{})
	if err != nil {
		t.Fatal(err)
	}
	ps, err := sink.Operator().Partitions(t.Context(), operate.Filter{})
	if err != nil || len(ps) != 1 || ps[0].Owner != "operator anna" {
		t.Errorf("the store has %+v, %v, want the partition that anna has paused", ps, err)
	}
}

func build(t *testing.T) string {
	t.Helper()
	root, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), "epochfence")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", program, ".")
	cmd.Dir = filepath.Join(strings.TrimSpace(string(root)), "cmd", "epochfence")
	cmd.Env = append(os.Environ(), "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the command: %v\n%s", err, out)
	}
	return program
}
