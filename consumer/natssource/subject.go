package natssource

import (
	"fmt"
	"slices"
	"strings"
)

// This file compares subjects with wildcards: which filters overlap, and whether they cover a
// stream.

const everything = ">"

func checkSubject(s string) error {
	tokens := strings.Split(s, ".")
	for i, token := range tokens {
		switch {
		case token == "":
			return fmt.Errorf("subject %q has an empty token", s)
		case strings.ContainsAny(token, " \t\r\n\f\x00"):
			return fmt.Errorf("subject %q holds white space", s)
		case token == everything && i < len(tokens)-1:
			return fmt.Errorf("subject %q continues after '>'", s)
		}
	}
	return nil
}

// overlap reports whether some subject matches both. '>' matches one or more tokens.
func overlap(a, b string) bool { return overlapping(strings.Split(a, "."), strings.Split(b, ".")) }

func overlapping(as, bs []string) bool {
	for i := range min(len(as), len(bs)) {
		switch {
		case as[i] == everything || bs[i] == everything:
			return true
		case as[i] != "*" && bs[i] != "*" && as[i] != bs[i]:
			return false
		}
	}
	return len(as) == len(bs)
}

// contains reports whether a matches every subject that b matches.
func contains(a, b string) bool {
	as, bs := strings.Split(a, "."), strings.Split(b, ".")
	for i, token := range as {
		switch {
		case token == everything:
			return i < len(bs)
		case i >= len(bs), bs[i] == everything, token != "*" && token != bs[i]:
			return false
		}
	}
	return len(as) == len(bs)
}

// checkFilters checks a stream's filters. stored are patterns of its subjects; nil: not known.
func checkFilters(filters, stored []string) error {
	tokens := make([][]string, len(filters))
	for i, f := range filters {
		tokens[i] = strings.Split(f, ".")
		if err := checkSubject(f); err != nil {
			return fmt.Errorf("filter %d: %w", i, err)
		}
		for j, g := range filters[:i] {
			if overlapping(tokens[i], tokens[j]) {
				return fmt.Errorf("filters %d and %d, %q and %q, match the same subjects: a message would be in two partitions", j, i, g, f)
			}
		}
		if stored != nil && !slices.ContainsFunc(stored, func(s string) bool { return overlap(f, s) }) {
			return fmt.Errorf("filter %d, %q, matches nothing the stream can hold, which is %q", i, f, stored)
		}
	}
	return nil
}
