package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

// This file reads the names of partitions and the times that operators write, and finds the
// partitions that a command is about.

// name is a partition as operators write it: [GROUP/]TOPIC/NUMBER. Group and topic may be quoted,
// as [epoch.Partition.String] does.
type name struct {
	group, topic string // group may be empty
	number       int32
}

func parseName(s string) (name, error) {
	wrong := func() (name, error) {
		return name{}, usage("partition %q: want TOPIC/NUMBER or GROUP/TOPIC/NUMBER", s)
	}
	parts, err := splitName(s)
	if err != nil || len(parts) < 2 || len(parts) > 3 {
		return wrong()
	}
	number, err := strconv.ParseInt(parts[len(parts)-1], 10, 32)
	if err != nil || number < 0 {
		return wrong()
	}
	n := name{topic: parts[len(parts)-2], number: int32(number)}
	if len(parts) == 3 {
		n.group = parts[0]
	}
	return n, nil
}

// splitName splits at slashes outside quotes.
func splitName(s string) (parts []string, err error) {
	for {
		var part string
		if strings.HasPrefix(s, `"`) {
			quoted, err := strconv.QuotedPrefix(s)
			if err != nil {
				return nil, err
			}
			if part, err = strconv.Unquote(quoted); err != nil {
				return nil, err
			}
			s = s[len(quoted):]
		} else {
			end := strings.IndexByte(s, '/')
			if end < 0 {
				end = len(s)
			}
			part, s = s[:end], s[end:]
		}
		parts = append(parts, part)
		if s == "" {
			return parts, nil
		}
		if s[0] != '/' {
			return nil, errors.New("text after a quote")
		}
		s = s[1:]
	}
}

type chosen struct{ group, topic string }

func (c *chosen) add(f *pflag.FlagSet) {
	f.StringVar(&c.group, "group", "", "of this group only")
	f.StringVar(&c.topic, "topic", "", "of this topic only")
}

func (c chosen) filter() operate.Filter { return operate.Filter{Group: c.group, Topic: c.topic} }

// partitions returns the named partitions. Without names, it returns all that the flags select.
func (a *app) partitions(ctx context.Context, op operate.Operator, c chosen, names []string) ([]operate.Partition, error) {
	if len(names) == 0 {
		ps, err := op.Partitions(ctx, c.filter())
		if err == nil && len(ps) == 0 {
			err = c.missing(ctx, op)
		}
		return ps, err
	}
	var found []operate.Partition
	for _, n := range names {
		p, err := a.partition(ctx, op, c, n)
		if err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(found, func(o operate.Partition) bool { return o.Fence.Partition == p.Fence.Partition }) {
			found = append(found, p)
		}
	}
	return found, nil
}

// missing returns an error if the sink knows nothing of the group and the topic.
func (c chosen) missing(ctx context.Context, op operate.Operator) error {
	if c == (chosen{}) {
		return nil
	}
	lives, err := op.Processes(ctx, c.group)
	if err != nil || c.topic == "" && len(lives) > 0 { // a process without a partition
		return err
	}
	var which []string
	if c.group != "" {
		which = append(which, "group "+shellQuote(c.group))
	}
	if c.topic != "" {
		which = append(which, "topic "+shellQuote(c.topic))
	}
	return fmt.Errorf("%w of %s in this sink; epochfence list shows what there is", errNoPartition, strings.Join(which, " and "))
}

var errNoPartition = errors.New("there is no partition")

func (a *app) partition(ctx context.Context, op operate.Operator, c chosen, called string) (operate.Partition, error) {
	n, err := parseName(called)
	if err != nil {
		return operate.Partition{}, err
	}
	if n.group == "" {
		n.group = c.group
	}
	if n.group != "" {
		p, err := op.Partition(ctx, epoch.Partition{Group: n.group, Topic: n.topic, Number: n.number})
		if errors.Is(err, epoch.ErrMissing) {
			err = fmt.Errorf("%w; if a consumer has halted with missing_fence, see docs/halts.md and epochfence history --group %s", err, shellQuote(n.group))
		}
		return p, err
	}
	all, err := op.Partitions(ctx, operate.Filter{Topic: n.topic})
	if err != nil {
		return operate.Partition{}, err
	}
	found := slices.DeleteFunc(all, func(p operate.Partition) bool { return p.Fence.Partition.Number != n.number })
	switch len(found) {
	case 0:
		return operate.Partition{}, fmt.Errorf("no group has a fence of %s in this sink: %w", called, epoch.ErrMissing)
	case 1:
		return found[0], nil
	default:
		var names []string
		for _, p := range found {
			names = append(names, p.Fence.Partition.String())
		}
		return operate.Partition{}, usage("several groups have a fence of %s: say which: %s", called, strings.Join(names, ", "))
	}
}

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
