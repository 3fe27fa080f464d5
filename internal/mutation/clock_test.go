package mutation

import (
	"cmp"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// What takes the monotonic reading off a time, or asks for the wall clock.
var wallClock = map[string]*regexp.Regexp{
	".go":  regexp.MustCompile(`\.(Unix|UnixMilli|UnixMicro|UnixNano|UTC|Local|Round\(0\)|GobEncode|MarshalText)\b|time\.(Unix|UnixMilli|Parse|Date)\(|d\.now\(\)|_at (<|>|=|IN)`),
	".sql": regexp.MustCompile(`(?i)\b(clock_timestamp|statement_timestamp|transaction_timestamp|now|current_timestamp|localtimestamp|timeofday|strftime|interval)\b|_at\b\s*[<>]`),
}

// Where wall clocks are written down for people, or a time that a server has
// given something, once, is part of what that is recognised by.
var written = regexp.MustCompile(`(?:_at timestamptz not null default|claimed_at =|advanced_at =|dead_at\)|\?, ` + "`" + ` \+) ?(clock_timestamp\(\)|` + "`" + ` \+ d\.now\(\)|d\.now\(\))|` +
	`_at      timestamptz not null default clock_timestamp\(\)|m\.Time = time\.Now\(\)\.Round\(0\)|m\.Time\.UTC\(\)|_at +TEXT( +NOT NULL DEFAULT \(strftime\('[^']*', 'now'\)\))?|` +
	`stored\.UnixNano\(\)|info\.Created\.UnixNano\(\)`)

// forPeople are the other places where times are written down and shown: in the rows of operators, of which old
// ones are taken away, about operators' acts, and by those who show them.
var forPeople = strings.NewReplacer(slices.Concat(
	// Rows of the ledger.
	gone("changed_at = clock_timestamp()", "l.written_at < clock_timestamp() - interval '90 days'", "l.written_at, l.changed_at, clock_timestamp()",
		"l.written_at <= $11", "`written_at <= ?`", "` + d.now() + `, ` + d.now() + `, ` + d.role()", "changed_at = ` + d.now()", "d.now() + `, revision, body, `"),
	gone("mode_at = case kind when 'pause' then clock_timestamp()", "coalesce(d.letters, 0), clock_timestamp()"),
	gone("Since.UTC().Format(time.RFC3339)", "return time.Now().UTC()", "return t.UTC()", "t, _ := time.Parse(time.RFC3339Nano, s)"),
	gone("t.began.UTC().Format(time.RFC3339)", "t.recorded.UTC().Format(time.RFC3339)"), // ticks of jobs
	gone("item.since.UTC().Format(time.RFC3339)", "since, _ := time.Parse(time.RFC3339, r.Since)"),
	gone("mode_at = ?, claimed_at = ` + d.now()", "COALESCE(advanced_at, ''), ` + d.now()", "`SELECT ` + d.now()"),
	gone(".Truncate(time.Microsecond)", "begin := time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC)"),
	// When a message that was deferred may be replayed, by whoever owns the partition then.
	gone("due_at = ` + d.later()", "due_at <= ` + d.now()"),
	// Counts of writes from outside: when the first and the last one were.
	gone("session_user, 1, clock_timestamp(), clock_timestamp(), current_setting('application_name')", "order by w.last_at desc))[1], clock_timestamp()"), //nolint:dupword // as in the SQL
)...)

// gone has a [strings.Replacer] take texts away.
func gone(texts ...string) (pairs []string) {
	for _, text := range texts {
		pairs = append(pairs, text, "")
	}
	return pairs
}

// R11: the code that decides who owns what never asks what time it is. A time
// that keeps its monotonic reading is all right, and so is one that is written
// down for people.
func TestR11NothingComparesWallClocks(t *testing.T) {
	for _, folder := range []string{"epoch", "consumer", "lease", "sinks"} {
		err := filepath.WalkDir(filepath.Join(module, folder), func(path string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				if err == nil && path == filepath.Join(module, "consumer", "schedule") {
					return filepath.SkipDir // it decides when a job runs, and not who may run it
				}
				if err == nil && (d.Name() == "testdata" || d.Name() == "sinktest" || d.Name() == "sourcetest" || d.Name() == "consumertest") {
					return filepath.SkipDir
				}
				return err
			}
			clock := wallClock[filepath.Ext(path)]
			if clock == nil || strings.HasSuffix(path, "_test.go") {
				return nil
			}
			src, err := source(path)
			if err != nil {
				return err
			}
			for n, line := range strings.Split(string(src), "\n") {
				line, _, _ = strings.Cut(line, "//")
				line, _, _ = strings.Cut(line, "--")
				if clock.MatchString(written.ReplaceAllString(forPeople.Replace(line), "")) {
					t.Errorf("%s:%d looks at a wall clock: %s", path, n+1, strings.TrimSpace(line))
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// source reads a file of the module as it is compiled: [trials] may replace it.
func source(path string) ([]byte, error) {
	var overlay struct{ Replace map[string]string }
	if name := os.Getenv(overlayVar); name != "" {
		data, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		if err := json.Unmarshal(data, &overlay); err != nil {
			return nil, err
		}
	}
	whole, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	return os.ReadFile(cmp.Or(overlay.Replace[whole], path))
}
