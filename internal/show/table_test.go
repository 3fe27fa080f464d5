package show

import (
	"strings"
	"testing"
)

func TestATableIsAligned(t *testing.T) {
	got := table([]*Column{
		{Name: "fenced", Rows: []Row{{"messages sent", "1,234,567"}, {"  doubled", "0"}}},
		{Name: "baseline", Rows: []Row{{"messages sent", "0"}, {"  doubled", "12,345"}}},
	})
	want := strings.Join([]string{
		"                                  fenced   baseline",
		"   ------------------------------------------------",
		"   messages sent               1,234,567          0",
		"     doubled                           0     12,345",
		"",
	}, "\n")
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestThousands(t *testing.T) {
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", -1234567: "-1,234,567", 100: "100"} {
		if got := Thousands(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
}
