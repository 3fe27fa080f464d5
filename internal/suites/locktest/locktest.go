// Package locktest plays the histories of work under a lock with leases on a driver's server and
// effects in SQLite and PostgreSQL.
//
// The tests of a driver must not import drivers of these databases, because whoever uses the driver
// would download them (internal/mutation). So the histories run in a program, the test of package play,
// which reaches the store by HTTP.
package locktest

import (
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"github.com/epochfence/epochfence/cas/castest"
)

const module = "github.com/epochfence/epochfence"

// Env is the environment variable that gives the program the address of the store.
const Env = "EPOCHFENCE_LOCKTEST"

// Run plays the histories on a rig, each as a subtest.
func Run(t *testing.T, create func(t testing.TB) castest.Rig) {
	if testing.Short() {
		t.Skip("servers are not for -short")
	}
	s := newServer(t, create)
	program := build(t)
	serving := httptest.NewServer(s)
	defer serving.Close()
	cmd := exec.CommandContext(t.Context(), program, "-test.v", "-test.run", "^TestLocks$", "-test.timeout", "5m")
	cmd.Env = append(os.Environ(), Env+"="+serving.URL)
	out, err := cmd.CombinedOutput()
	shown := 0
	for _, m := range regexp.MustCompile(`(?m)^ +--- (PASS|FAIL|SKIP): TestLocks/(.*) \([^)]*\)$`).FindAllStringSubmatch(string(out), -1) {
		shown++
		t.Run(m[2], func(t *testing.T) {
			switch m[1] {
			case "FAIL":
				t.Fail()
			case "SKIP":
				t.Skip("skipped in the program")
			}
		})
	}
	if err != nil || shown == 0 {
		t.Fatalf("%v, %d histories\n%s", err, shown, out)
	}
}

func build(t *testing.T) string {
	t.Helper()
	root, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), "locktest")
	args := []string{"test", "-c", "-o", program}
	if raced() {
		args = append(args, "-race")
	}
	cmd := exec.CommandContext(t.Context(), "go", append(args, "./internal/suites/locktest/play")...)
	cmd.Dir = strings.TrimSpace(string(root))
	cmd.Env = append(os.Environ(), "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the program: %v\n%s", err, out)
	}
	return program
}

// raced reports whether the race detector is on.
func raced() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}
