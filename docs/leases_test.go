package docs

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/epochfence/epochfence/lease/leasetest"
)

// The suite of each driver has measured a row, see `make figures WHAT=leases`.
func TestThePageOfLeasesHasTheRowsThatTheSuitesHaveMeasured(t *testing.T) {
	files, err := filepath.Glob("leases/*.json")
	if err != nil || len(files) < 8 {
		t.Fatalf("%q, %v", files, err)
	}
	table := "\n| store | its number, as a fencing token | takeover after a kill | after leaving | calls of the store by 3 idle members in a TTL | `Acquire`, `Release` | needs |\n|---|---|---|---|---|---|---|\n"
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var r leasetest.Row
		if err := json.Unmarshal(data, &r); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if r.Killed <= 0.5 || r.Killed > 1.5 || r.Released <= 0 || r.Released > 0.5 || r.Calls <= 0 {
			t.Errorf("%s: %+v", file, r)
		}
		lock := "not measured"
		if r.Acquire > 0 {
			lock = fmt.Sprintf("%.1f, %.1f ms", r.Acquire, r.Release)
		}
		if r.PerSecond > 0 {
			lock += fmt.Sprintf("; %.0f a second", r.PerSecond)
		}
		table += fmt.Sprintf("| %s | %s | %.2f TTL | %.2f TTL | %.0f | %s | %s |\n", r.Store, r.Number, r.Killed, r.Released, r.Calls, lock, r.Needs)
	}
	isOnPage(t, "leases.md", "leases", table+"\n", "make figures WHAT=leases")
}

// isOnPage compares a table with the one between a page's comments NAME:begin and NAME:end, or with
// -update replaces that one.
func isOnPage(t *testing.T, file, name, table, made string) {
	t.Helper()
	begin, end := "<!-- "+name+":begin -->\n", "<!-- "+name+":end -->\n"
	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, begins := strings.Cut(string(page), begin)
	had, after, ends := strings.Cut(rest, end)
	if !begins || !ends {
		t.Fatalf("%s has no place for the table %s", file, name)
	}
	switch {
	case had == table:
	case *update:
		if err := os.WriteFile(file, []byte(before+begin+table+end+after), 0o600); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s has another table; run %s, or go test ./docs -update:\n%s", file, made, table)
	}
}
