package show

import (
	"bytes"
	"strings"
	"testing"
)

func TestATableIsAlignedAndPlainWhereThereIsNoTerminal(t *testing.T) {
	var out bytes.Buffer
	b := NewBoard(&out)
	b.Table([]string{"fenced", "baseline"}, []Row{
		{"messages sent", []Cell{Number(1234567), Number(0)}},
		{"doubled", []Cell{None(0), None(12345)}},
	})
	want := strings.Join([]string{
		"                     fenced   baseline",
		"  ------------------------------------",
		"  messages sent   1,234,567          0",
		"  doubled                 0     12,345",
		"",
	}, "\n")
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}

func TestNoLineIsWiderThanATerminal(t *testing.T) {
	line := wrap(strings.Repeat("some words about it ", 20), 22)
	for i, l := range strings.Split(line, "\n") {
		n := len(l)
		if i == 0 {
			n += 22
		}
		if n > columns {
			t.Errorf("%d columns: %q", n, l)
		}
	}
	if got := wrap("as it is", 22); got != "as it is" {
		t.Errorf("a short line became %q", got)
	}
}

func TestThousands(t *testing.T) {
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", -1234567: "-1,234,567", 100: "100"} {
		if got := Thousands(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
}
