package main

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/epochfence/epochfence/epoch"
)

// What the program prints for a partition it also reads.
func TestNamesAreReadAsTheyArePrinted(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := epoch.Partition{Group: rapid.String().Draw(t, "group"), Topic: rapid.String().Draw(t, "topic"), Number: rapid.Int32Min(0).Draw(t, "number")}
		n, err := parseName(p.String())
		if err != nil || n != (name{p.Group, p.Topic, p.Number}) {
			t.Fatalf("%s is read as %+v, %v", p, n, err)
		}
	})
}

func TestParseName(t *testing.T) {
	for s, want := range map[string]name{
		"orders/3":           {"", "orders", 3},
		"billing/orders/3":   {"billing", "orders", 3},
		`"a/b"/orders/3`:     {"a/b", "orders", 3},
		`"a \"b\""/orders/0`: {`a "b"`, "orders", 0},
	} {
		if got, err := parseName(s); err != nil || got != want {
			t.Errorf("%s: %+v, %v", s, got, err)
		}
	}
	for _, s := range []string{"", "orders", "orders/", "orders/x", "orders/-1", "a/b/c/3", `"a/3`, `"a"b/3`, "orders/99999999999"} {
		if got, err := parseName(s); err == nil {
			t.Errorf("%q: %+v", s, got)
		}
	}
}

func TestParseTime(t *testing.T) {
	now := time.Date(2026, 11, 23, 13, 30, 0, 0, time.UTC)
	for s, want := range map[string]string{
		"2026-11-22T08:00:00Z":      "2026-11-22T08:00:00Z",
		"2026-11-22T08:00:00+01:00": "2026-11-22T07:00:00Z",
		"2026-11-22T08:00:00":       "2026-11-22T08:00:00Z",
		"2026-11-22 08:00":          "2026-11-22T08:00:00Z",
		"2026-11-22":                "2026-11-22T00:00:00Z",
		"12:03":                     "2026-11-23T12:03:00Z",
		"12:03:04.5":                "2026-11-23T12:03:04.5Z",
		"13:31":                     "2026-11-22T13:31:00Z", // the last time it was that
		"-15m":                      "2026-11-23T13:15:00Z",
	} {
		if got, err := parseTime(s, now); err != nil || got.Format(time.RFC3339Nano) != want {
			t.Errorf("%s: %v, %v; want %s", s, got.Format(time.RFC3339Nano), err, want)
		}
	}
	for _, s := range []string{"", "15m", "--15m", "yesterday", "25:00", "-1h-"} {
		if got, err := parseTime(s, now); err == nil {
			t.Errorf("%q: %v", s, got)
		}
	}
}

func TestHostileTextDoesNotReachATerminal(t *testing.T) {
	for s, want := range map[string]string{
		"worker-a":           "worker-a",
		"Jürgen, 世界":         "Jürgen, 世界",
		"\x1b[31mred\x07":    `\x1b[31mred\a`,
		"two\nlines":         `two\nlines`,
		"right\u202eto left": `right\u202eto left`,
		"\xff":               "\ufffd",
	} {
		if got := printable(s); got != want {
			t.Errorf("%q is printed as %q, want %q", s, got, want)
		}
	}
	for s, want := range map[string]string{"orders/3": "orders/3", "a b": "'a b'", "it's": `'it'\''s'`, "": "''", "$(rm)": "'$(rm)'"} {
		if got := shellQuote(s); got != want {
			t.Errorf("%q is quoted as %s", s, got)
		}
	}
}

// What was asked for is shown whatever the width is, and columns stay under their titles.
func TestATableShowsAllOnATerminalOfAnyWidth(t *testing.T) {
	tab := newTable("OWNER", ">N", "ALIVE", "WHAT")
	words := func(n int) string { return strings.TrimSpace(strings.Repeat("long ", n)) }
	long := words(12)
	tab.row("worker-a", 12345, "yes", "short")
	tab.row("倉庫-1", 7, "no", long)
	var out strings.Builder
	for width, want := range map[int]string{
		0:  "OWNER         N  ALIVE  WHAT\nworker-a  12345  yes    short\n倉庫-1        7  no     " + long + "\n",
		60: "OWNER         N  ALIVE  WHAT\nworker-a  12345  yes    short\n倉庫-1        7  no\n    " + words(11) + "\n    long\n",
		40: "OWNER         N  ALIVE\n    WHAT\nworker-a  12345  yes\n    short\n倉庫-1        7  no\n    " + words(7) + "\n    " + words(5) + "\n",
		16: "OWNER         N\n    ALIVE\n    WHAT\nworker-a  12345\n    yes\n    short\n倉庫-1        7\n    no\n    " + words(2) + "\n    " + words(2) + "\n    " + words(2) + "\n    " + words(2) + "\n    " + words(2) + "\n    " + words(2) + "\n",
	} {
		out.Reset()
		tab.printTo(&out, width)
		if out.String() != want {
			t.Errorf("at %d columns it is\n%s\nwant\n%s", width, out.String(), want)
		}
	}
}
