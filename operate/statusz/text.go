package statusz

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/dustin/go-humanize"
)

// This file formats numbers, times and foreign texts for the page: invisible characters are
// escaped, and long texts are cut.

const most = 200

// show prepares an untrusted text for a table. It escapes invisible characters and those that
// change the direction of the text, and cuts a long text to 200 characters. The templates escape it
// for HTML.
func show(s string) string {
	n := utf8.RuneCountInString(s)
	if n <= most {
		return visible(s)
	}
	cut := 0
	for range most {
		_, size := utf8.DecodeRuneInString(s[cut:])
		cut += size
	}
	return visible(s[:cut]) + "… (" + thousands(int64(n)) + " characters)"
}

// lines prepares a text of several lines, up to 16 KiB.
func lines(s string) string {
	all := strings.Split(s[:min(len(s), 16<<10)], "\n")
	for i, line := range all {
		all[i] = visible(strings.ReplaceAll(line, "\t", "    "))
	}
	return strings.Join(all, "\n")
}

// visible escapes invisible characters as Go does: control characters, and format characters such
// as right-to-left overrides.
func visible(s string) string {
	odd := func(r rune) bool {
		return r == utf8.RuneError || r != ' ' && !unicode.IsGraphic(r) || unicode.Is(unicode.Zl, r) || unicode.Is(unicode.Zp, r)
	}
	if !strings.ContainsFunc(s, odd) {
		return s
	}
	var b strings.Builder
	for len(s) > 0 {
		r, size := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && size == 1: // not UTF-8
			fmt.Fprintf(&b, `\x%02x`, s[0])
		case r == '\n':
			b.WriteString("; ") // joined errors
		case odd(r) && r != utf8.RuneError:
			quoted := strconv.QuoteRuneToASCII(r)
			b.WriteString(quoted[1 : len(quoted)-1])
		default:
			b.WriteRune(r)
		}
		s = s[size:]
	}
	return b.String()
}

func thousands(n int64) string { return humanize.Comma(n) }

func perSecond(x float64) string {
	switch {
	case x < 0.05:
		return "0"
	case x < 10:
		return strconv.FormatFloat(x, 'f', 1, 64)
	default:
		return thousands(int64(x + 0.5))
	}
}

// bytesPerSecond uses units of 1024.
func bytesPerSecond(x float64) string {
	for _, unit := range []string{"B", "KiB", "MiB"} {
		if x < 1000 {
			return perSecond(x) + " " + unit
		}
		x /= 1024
	}
	return perSecond(x) + " GiB"
}

// clock formats a time of day in UTC, with the date if it is not today's.
func clock(at, now time.Time) string {
	if at.IsZero() {
		return "–"
	}
	at, now = at.UTC(), now.UTC()
	if at.Format(time.DateOnly) == now.Format(time.DateOnly) {
		return at.Format(time.TimeOnly)
	}
	return at.Format(time.DateTime)
}

func age(d time.Duration) string {
	switch {
	case d < time.Second:
		return "less than 1 s"
	case d < 2*time.Minute:
		return strconv.Itoa(int(d.Seconds())) + " s"
	case d < 2*time.Hour:
		return strconv.Itoa(int(d.Minutes())) + " min"
	case d < 48*time.Hour:
		return strconv.Itoa(int(d.Hours())) + " h"
	default:
		return strconv.Itoa(int(d.Hours()/24)) + " days"
	}
}

func plural[N int | int64](n N, one, more string) string {
	if n == 1 {
		return "1 " + one
	}
	return thousands(int64(n)) + " " + more
}
