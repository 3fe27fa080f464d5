package main

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

// forPeople are the other places where times are written down and shown: in the decision
// log, whose old entries are taken away, about operators' acts, and of processes.
var forPeople = strings.NewReplacer(slices.Concat(
	gone("decided_at  timestamptz not null default clock_timestamp()", "d.decided_at < clock_timestamp() - interval '90 days'",
		"d.decided_at <= until", "mode_at = case kind when 'pause' then clock_timestamp()", "coalesce(d.letters, 0), clock_timestamp()",
		"replay_failed_at = clock_timestamp()", "requested_at = case when kind = 'replay' then clock_timestamp()"),
	gone("Since.UTC().Format(time.RFC3339)", "at := time.Now().UTC()", "return t.UTC()", "t, _ := time.Parse(time.RFC3339Nano, s)"),
	gone("t.began.UTC().Format(time.RFC3339)", "t.recorded.UTC().Format(time.RFC3339)"), // ticks of jobs
	gone("item.since.UTC().Format(time.RFC3339)", "since, _ := time.Parse(time.RFC3339, r.Since)"),
	gone("VALUES (` + d.now() + `, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`", "replay_failed_at = ` + d.now()", "mode_at = ?, claimed_at = ` + d.now()",
		"COALESCE(advanced_at, ''), ` + d.now()", "`SELECT ` + d.now()", "requested_at = CASE WHEN ? THEN ` + d.now()"),
	gone("return time.Now().UTC().Truncate(time.Microsecond)", "begin := time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC)"),
	// Ticks of jobs in the audit log, and the times of messages in dead letters.
	gone("t.began.UTC().Format(time.RFC3339)", "t.recorded.UTC().Format(time.RFC3339)", "s, n := m.Time.Unix(), int32(m.Time.Nanosecond())",
		"m.Time = time.Unix(*r.seconds, int64(*r.nanos)).UTC()"),
	// Signs of life, and those that are out of date.
	gone("in_every_ms, clock_timestamp(), clock_timestamp())", "excluded.every_ms, seen_at = clock_timestamp()", "p.seen_at < clock_timestamp() - interval '7 days'",
		"p.seen_at < clock_timestamp() - 3 * p.every_ms * interval '1 millisecond'", "p.seen_at, clock_timestamp()",
		"p.Since, p.Seen, p.Now = p.Since.UTC(), p.Seen.UTC(), p.Now.UTC()"),
	gone("?, ?, ?, ?, ?, ?, ?, ` + d.now() + `, ` + d.now() + `)`", "seen_at = excluded.seen_at", "julianday(` + d.now() + `) - julianday(seen_at)",
		"since, seen_at, ` + d.now()"),
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
				if err == nil && (d.Name() == "testdata" || d.Name() == "sinktest" || d.Name() == "sourcetest") {
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
