package main

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"
)

// cli runs the program as an operator does, in this process.
type cli struct {
	t   *testing.T
	env map[string]string
}

type answer struct {
	code      int
	out, errs string
}

func (c *cli) run(args ...string) answer {
	c.t.Helper()
	var out, errs strings.Builder
	code := run(c.t.Context(), args, func(name string) string { return c.env[name] }, &out, &errs)
	return answer{code, out.String(), errs.String()}
}

// does is run, and wants the exit code.
func (c *cli) does(code int, args ...string) answer {
	c.t.Helper()
	a := c.run(args...)
	if a.code != code {
		c.t.Fatalf("epochfence %s: exit code %d, want %d\n%s%s", strings.Join(args, " "), a.code, code, a.out, a.errs)
	}
	return a
}

// reads is what a command prints as JSON.
func (c *cli) reads(into any, args ...string) {
	c.t.Helper()
	a := c.run(append(args, "--format", "json")...)
	if err := json.Unmarshal([]byte(a.out), into); err != nil {
		c.t.Fatalf("epochfence %s: %v\n%s%s", strings.Join(args, " "), err, a.out, a.errs)
	}
}

// executes carries out what writes.
func (c *cli) executes(args ...string) answer {
	c.t.Helper()
	return c.does(exitOK, append(args, "--execute", "--by", "anna", "--reason", "for the test")...)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// normal is output without what differs from run to run.
func normal(s string) string {
	for _, r := range []struct {
		pattern *regexp.Regexp
		by      string
	}{
		{regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`), "00000000-0000-4000-8000-00000000cafe"},
		{regexp.MustCompile(`\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\.\d{3}Z`), "2026-01-02T03:04:05.678Z"},
		{regexp.MustCompile(`\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d+)?Z`), "2026-01-02T03:04:05Z"},
		{regexp.MustCompile(`--plan=[0-9a-f]{12}`), "--plan=0123456789ab"},
		{regexp.MustCompile(`"plan": "[0-9a-f]{12}"`), `"plan": "0123456789ab"`},
		{regexp.MustCompile(`[ \d]\ds([ \n)])`), " 0s$1"},
		{regexp.MustCompile(`seen \d+s ago`), "seen 0s ago"},
		{regexp.MustCompile(`seen for \d+s`), "seen for 0s"},
		{regexp.MustCompile(`SQLite 3\.[\d.]+`), "SQLite 3.0.0"},
		{regexp.MustCompile(`kafka:golden/[\w-]{22}`), "kafka:golden/AAAAAAAAAAAAAAAAAAAAAA"},
	} {
		s = r.pattern.ReplaceAllString(s, r.by)
	}
	return s
}

func tells(t *testing.T, story string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(story, p) {
			t.Errorf("it does not say %q:\n%s", p, story)
		}
	}
}
