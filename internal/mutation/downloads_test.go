package mutation

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// go mod tidy downloads what the tests of the packages that one uses import, as well:
// whoever is on Kafka and PostgreSQL shall not get SQLite and NATS with them.
func TestTestsOfAPackageNeedNoOtherBrokersAndDatabasesModules(t *testing.T) {
	const (
		sqlite   = "modernc.org/sqlite"
		postgres = "github.com/jackc/pgx/v5"
		kafka    = "github.com/twmb/franz-go"
		nats     = "github.com/nats-io/nats.go"
	)
	for _, c := range []struct{ uses, needs []string }{
		{[]string{"consumer", "consumer/memsource", "sinks/memsink"}, nil},
		{[]string{"consumer", "sinks/shardsink", "sinks/memsink"}, nil},
		{[]string{"consumer", "consumer/kafkasource", "sinks/memsink"}, []string{kafka, postgres}}, // its example writes there
		{[]string{"consumer", "consumer/natssource", "sinks/memsink"}, []string{nats}},
		{[]string{"consumer", "sinks/pgsink"}, []string{postgres}},
		{[]string{"consumer", "sinks/sqlsink"}, []string{sqlite}},
	} {
		needed := goList(t, append([]string{"-deps", "-test", "-f", "{{with .Module}}{{.Path}}{{end}}"}, ours(t, c.uses)...)...)
		for _, m := range []string{sqlite, postgres, kafka, nats} {
			if slices.Contains(needed, m) && !slices.Contains(c.needs, m) {
				t.Errorf("tests of %q, or of what they import, need %s", c.uses, m)
			}
		}
		for _, m := range needed {
			if strings.HasPrefix(m, "github.com/fergusstrange/") {
				t.Errorf("tests of %q need %s, which is for internal/servers/pgtest/fetch alone", c.uses, m)
			}
		}
	}
}

// ours are the packages of this module that some of them are built from.
func ours(t *testing.T, packages []string) []string {
	t.Helper()
	args := []string{"-deps"}
	for _, p := range packages {
		args = append(args, "./"+p)
	}
	return slices.DeleteFunc(goList(t, args...), func(p string) bool { return !strings.HasPrefix(p, "github.com/epochfence/epochfence/") })
}

func goList(t *testing.T, args ...string) []string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"list"}, args...)...)
	cmd.Dir = module
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v", cmd.Args, err)
	}
	return strings.Fields(string(out))
}
