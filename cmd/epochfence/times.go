package main

import (
	"strings"
	"time"
)

// This file reads the times that operators write.

// parseTime reads a time in full, without the zone (then UTC), without the day (then today), or as
// a duration before now.
func parseTime(s string, now time.Time) (time.Time, error) {
	now = now.UTC()
	if back, ok := strings.CutPrefix(s, "-"); ok {
		d, err := time.ParseDuration(back)
		if err != nil || d < 0 {
			return time.Time{}, usage("time %q: want -15m for a quarter of an hour ago", s)
		}
		return now.Add(-d), nil
	}
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05.999999999", "2006-01-02T15:04", "2006-01-02 15:04:05.999999999", "2006-01-02 15:04", "2006-01-02"} {
		if t, err := time.Parse(layout, s); err == nil {
			return t.UTC(), nil
		}
	}
	for _, layout := range []string{"15:04:05.999999999", "15:04"} {
		if t, err := time.Parse(layout, s); err == nil {
			t = time.Date(now.Year(), now.Month(), now.Day(), t.Hour(), t.Minute(), t.Second(), t.Nanosecond(), time.UTC)
			if t.After(now) {
				t = t.AddDate(0, 0, -1)
			}
			return t, nil
		}
	}
	return time.Time{}, usage("time %q: want 2006-01-02T15:04:05Z, 15:04 in UTC, or -15m", s)
}
