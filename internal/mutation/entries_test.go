package mutation

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const module = "../.."

// rulesPage defines the rules of the protocol, each in a row of a table.
const rulesPage = "docs/guarantees.md"

var ruleRow = regexp.MustCompile(`(?m)^\| ([RL]\d+)\. (.+?) \| .+ \|$`)

type rule struct{ name, text string }

func rulesOf(module fs.FS) (rules []rule, err error) {
	text, err := fs.ReadFile(module, rulesPage)
	for _, m := range ruleRow.FindAllSubmatch(text, -1) {
		rules = append(rules, rule{string(m[1]), string(m[2])})
	}
	return rules, err
}

func TestEveryRuleHasAGuard(t *testing.T) {
	rules, err := rulesOf(os.DirFS(module))
	if err != nil || len(rules) < 20 {
		t.Fatalf("%s has %d rules: %v", rulesPage, len(rules), err)
	}
	guarded := map[string]bool{}
	for _, g := range guards {
		guarded[g.rule] = true
	}
	for _, r := range rules {
		if !guarded[r.name] {
			t.Errorf("%s has no guard", r.name)
		}
		delete(guarded, r.name)
	}
	for name := range guarded {
		t.Errorf("%s is not in %s", name, rulesPage)
	}
}

// Each guard costs every change to the code near it, so the suites alone must notice the rest.
func TestTheGuardsAreFew(t *testing.T) {
	if len(guards) > 200 {
		t.Errorf("there are %d guards, want 200 at most: keep the strongest of each place", len(guards))
	}
}

func TestEveryGuardIsInItsPlace(t *testing.T) {
	if _, err := newPlan(os.DirFS(module), guards, all); err != nil {
		t.Error(err)
	}
}

// make mutation finds this out as well, after many minutes.
func TestEveryGuardNamesATestThereIs(t *testing.T) {
	named := map[string]string{} // by package: the text of its tests
	for _, g := range guards {
		if _, read := named[g.pkg]; !read {
			files, err := filepath.Glob(filepath.Join(module, g.pkg, "*_test.go"))
			if err != nil || len(files) == 0 {
				t.Fatalf("%s has no tests: %v", g.pkg, err)
			}
			var all strings.Builder
			for _, path := range files {
				src, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				all.Write(src)
			}
			named[g.pkg] = all.String()
		}
		name, _, _ := strings.Cut(g.test, "/")
		if !strings.Contains(named[g.pkg], "\nfunc "+name+"(") {
			t.Errorf("%s %s: no test %s in %s", g.rule, g.taken, name, g.pkg)
		}
	}
}
