// Package epochfence_test is about the repository. It comes first in go test ./... and needs next
// to nothing, so that a line is there within seconds, while the rest compiles.
package epochfence_test

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"testing"
)

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// A step without a budget would only be found out at its turn, and a budget
// without a step would count in the sum.
func TestEveryStepOfCIHasABudgetAndTheSumIsWithinItsTime(t *testing.T) {
	var steps []string
	for _, m := range regexp.MustCompile(`(?m)^step (\S+) '`).FindAllStringSubmatch(read(t, ".ci/run"), -1) {
		steps = append(steps, m[1])
	}
	budget, sum := map[string]int{}, 0
	for _, m := range regexp.MustCompile(`(?m)^(\S+) (\d+)$`).FindAllStringSubmatch(read(t, ".ci/budget"), -1) {
		seconds, err := strconv.Atoi(m[2])
		if err != nil || budget[m[1]] > 0 {
			t.Errorf("%s: %v, or it is there twice", m[0], err)
		}
		budget[m[1]] = seconds
		sum += seconds
	}
	slices.Sort(steps)
	if budgets := slices.Sorted(maps.Keys(budget)); len(steps) > 12 || !slices.Equal(steps, budgets) {
		t.Errorf("steps %q, budgets %q", steps, budgets)
	}
	if sum > 75*60 { // CI ends after 90 minutes
		t.Errorf("the budgets are %d s; want 75 minutes at most", sum)
	}
}
