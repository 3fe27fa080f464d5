package natssource

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/internal/jsapi"
)

// This file decides which partitions a subject transform makes, whether a stream has that transform,
// and which filters overlap or cover a stream.

// TransformError is returned when a stream's subject transform is not the one that the partitions
// come from.
type TransformError struct {
	Stream string
	Want   Transform
	Have   *Transform // nil if the stream has none
	Held   uint64     // the last sequence of the stream; see [EnsureTransform]
}

// Unwrap returns [consumer.ErrBlocked].
func (e *TransformError) Unwrap() error { return consumer.ErrBlocked }

func (e *TransformError) Error() string {
	have := "has no subject transform"
	if e.Have != nil {
		have = fmt.Sprintf("has a subject transform from %q to %q", e.Have.Source, e.Have.Destination)
	}
	advice := "set it with natssource.EnsureTransform before anything is published"
	if e.Held > 0 {
		instead := "name the transform that it has"
		if e.Have == nil {
			instead = "list Filters, name neither, or read a mirror that has the transform (docs/move-over.md says how positions carry over)"
		}
		advice = fmt.Sprintf("it has taken %d messages, which keep the subjects they have, so %s, or publish to a new stream", e.Held, instead)
	}
	return fmt.Sprintf("stream %q %s, want one from %q to %q: %s", e.Stream, have, e.Want.Source, e.Want.Destination, advice)
}

// EnsureTransform sets the subject transform of a stream that has never held a message, or checks
// that the stream has the transform t. It returns a [*TransformError] if the stream has another
// transform, or none, and has taken messages: they keep the subjects that they have. Call it where
// streams are created; a [Source] only checks.
func EnsureTransform(ctx context.Context, js jetstream.JetStream, stream string, t Transform) error {
	if _, err := t.filters(); err != nil {
		return fmt.Errorf("natssource: transform of stream %q: %w", stream, err)
	}
	s, err := js.Stream(ctx, stream)
	if err != nil {
		return fmt.Errorf("natssource: transform of stream %q: %w", stream, jsapi.Denied(js.Conn(), jsapi.Prefix(js), err))
	}
	info := s.CachedInfo()
	differs := t.differs(info)
	if differs == nil {
		return nil
	}
	if differs.Held > 0 {
		return fmt.Errorf("natssource: %w", differs)
	}
	config := info.Config
	config.SubjectTransform = &jetstream.SubjectTransformConfig{Source: t.Source, Destination: t.Destination}
	if _, err := js.UpdateStream(ctx, config); err != nil {
		return fmt.Errorf("natssource: set the subject transform of stream %q: %w", stream, jsapi.Denied(js.Conn(), jsapi.Prefix(js), err))
	}
	// A message that came between the two requests keeps its subject.
	s, err = js.Stream(ctx, stream)
	if err != nil {
		return fmt.Errorf("natssource: transform of stream %q, once it is set: %w", stream, jsapi.Denied(js.Conn(), jsapi.Prefix(js), err))
	}
	if last := s.CachedInfo().State.LastSeq; last > 0 {
		return fmt.Errorf("natssource: stream %q took %d messages while its subject transform was set, and some may have kept their subjects: purge it, or publish to a new one", stream, last)
	}
	return nil
}

// differs returns nil if the stream has this transform.
func (t Transform) differs(info *jetstream.StreamInfo) *TransformError {
	e := &TransformError{Stream: info.Config.Name, Want: t, Held: info.State.LastSeq}
	if c := info.Config.SubjectTransform; c != nil {
		e.Have = &Transform{Source: c.Source, Destination: c.Destination}
	}
	if e.Have != nil && e.Have.canonical() == t.canonical() {
		return nil
	}
	return e
}

var (
	// The server accepts the first letter of a function in either case.
	partitionFunction = regexp.MustCompile(`^{{\s*[pP]artition\s*\((.*)\)\s*}}$`)
	wildcardFunction  = regexp.MustCompile(`^{{\s*[wW]ildcard\s*\((.*)\)\s*}}$`)
	oldWildcard       = regexp.MustCompile(`^\$[0-9]+$`)
	spaces            = regexp.MustCompile(`\s+`)
)

// canonical returns a form for comparison: functions in lower case, without white space.
func (t Transform) canonical() Transform {
	if t.Source == "" {
		t.Source = everything
	}
	tokens := strings.Split(t.Destination, ".")
	for i, token := range tokens {
		if strings.HasPrefix(token, "{{") {
			tokens[i] = strings.ToLower(spaces.ReplaceAllString(token, ""))
		}
	}
	t.Destination = strings.Join(tokens, ".")
	return t
}

// maxPartitions limits the partitions of a destination, each of which has a lease and a reader.
const maxPartitions = 10_000

// filters returns the destination for each partition, with the partition's number in it.
func (t Transform) filters() ([]string, error) {
	if t.Source != "" {
		if err := checkSubject(t.Source); err != nil {
			return nil, fmt.Errorf("the source: %w", err)
		}
	}
	tokens := strings.Split(t.Destination, ".")
	index, count := -1, 0
	for i, token := range tokens {
		if call := partitionFunction.FindStringSubmatch(token); call != nil {
			if index >= 0 {
				return nil, fmt.Errorf("the destination %q has two partition functions", t.Destination)
			}
			n, _, _ := strings.Cut(call[1], ",")
			var err error
			if count, err = strconv.Atoi(strings.TrimSpace(n)); err != nil || count < 1 || count > maxPartitions {
				return nil, fmt.Errorf("the destination's %s makes %q partitions; want 1 to %d", token, n, maxPartitions)
			}
			index = i
			continue
		}
		open, err := placeholder(token)
		if err != nil {
			return nil, fmt.Errorf("the destination %q: %w", t.Destination, err)
		}
		if open {
			tokens[i] = "*"
		}
	}
	if index < 0 {
		return nil, fmt.Errorf("the destination %q has no {{partition(N, ...)}}", t.Destination)
	}
	filters := make([]string, count)
	for n := range filters {
		tokens[index] = strconv.Itoa(n)
		filters[n] = strings.Join(tokens, ".")
		if err := checkSubject(filters[n]); err != nil {
			return nil, fmt.Errorf("the destination: %w", err)
		}
	}
	return filters, nil
}

// placeholder reports whether a token stands for one that the source's subject decides.
func placeholder(token string) (bool, error) {
	switch {
	case oldWildcard.MatchString(token), wildcardFunction.MatchString(token):
		return true, nil
	case token == "*":
		return false, errors.New("a wildcard of the source is written {{wildcard(1)}}, not '*'")
	case strings.HasPrefix(token, "{{"), strings.Contains(token, "{{"):
		return false, fmt.Errorf("what %s makes of a subject is not known here: use partition and wildcard only, or name the filters", token)
	}
	return false, nil
}

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
