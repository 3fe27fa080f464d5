package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

func (a *app) rewind() *cobra.Command {
	var which chosen
	var by doing
	var to string
	c := &cobra.Command{
		Use:   "rewind [PARTITION...] --to start|end|N|+N|-N|@TIME",
		Short: "Set the position of partitions, back or forward",
		Long: `Set the position of partitions. Back: messages are applied again, and a
handler that adds up adds twice. Forward: messages are never applied. A live
owner loses its claim, claims again, and continues from there: nobody has to
stop the group.

  --to start    where the log begins, also if retention moves that meanwhile
  --to end      what comes from now on
  --to 4711     the message at that offset is the next one
  --to -100     so many offsets back, --to +100 forward
  --to @12:03   the first message written then or later, in UTC; also
                @2006-01-02T15:04:05Z, and @-15m for a quarter of an hour ago.
                For a job: its ticks from then on

start, end and @TIME ask Kafka or NATS. For a job, nothing is asked: end is the
present time, and start is refused. A number is compared with where the log begins
and ends if --kafka or --nats is given.`,
		RunE: func(c *cobra.Command, names []string) error {
			goal, err := parseGoal(to, time.Now())
			if err != nil {
				return err
			}
			return a.perform(c, which, by, names, func(ctx context.Context, seen []operate.Partition) ([]deed, error) {
				return a.planMoves(ctx, operate.ActRewind, goal, seen)
			})
		},
	}
	which.add(c.Flags())
	c.Flags().StringVar(&to, "to", "", "where to")
	_ = c.MarkFlagRequired("to")
	by.add(c.Flags())
	return c
}

type goal struct {
	word     string // start, end, or as typed
	offset   epoch.Offset
	relative bool
	at       time.Time
}

func parseGoal(s string, now time.Time) (goal, error) {
	g := goal{word: s}
	switch {
	case s == "start" || s == "end":
		return g, nil
	case strings.HasPrefix(s, "@"):
		var err error
		g.at, err = parseTime(s[1:], now)
		return g, err
	}
	n, err := strconv.ParseInt(s, 10, 64)
	g.offset, g.relative = epoch.Offset(n), strings.ContainsAny(s[:min(1, len(s))], "+-")
	if err != nil {
		return g, usage("--to is %q; want start, end, an offset, +N, -N or @TIME", s)
	}
	return g, nil
}

func (a *app) planMoves(ctx context.Context, kind operate.ActKind, g goal, seen []operate.Partition) (ds []deed, err error) {
	for _, p := range seen {
		d := deed{kind: kind, seen: p}
		if err := a.aim(ctx, &d, g, p.Fence); err != nil {
			return nil, err
		}
		if d.to.Offset == p.Next && p.Epoch > 0 && !d.beginning {
			d.nothing = "it is there"
		}
		ds = append(ds, d)
	}
	return ds, nil
}

func (a *app) aim(ctx context.Context, d *deed, g goal, f epoch.Fence) error {
	if isJob(f) {
		return d.aimAtTime(g, f)
	}
	e, err := a.extentOf(ctx, f)
	if err == nil && e.log != f.Log {
		return fmt.Errorf("%s: the fence counts the offsets of log %s, and now there is log %s: see epochfence rebase", f.Partition, f.Log, e.log)
	}
	known := err == nil
	to := g.offset
	switch {
	case g.word == "start" || g.word == "end" || !g.at.IsZero():
		if err != nil {
			return err
		}
		if to = e.begin; g.word == "end" {
			to = e.end
		}
		if !g.at.IsZero() {
			b, err := a.brokerOf(f)
			if err != nil {
				return err
			}
			if to, err = b.at(ctx, f, g.at); err != nil {
				return err
			}
		}
	case g.relative:
		to += f.Next
	}
	if to < 0 && !known {
		return usage("%s: offset %d is below 0; say where to continue as an offset, or which broker has the log, with --kafka or --nats", f.Partition, to)
	}
	if to < 0 || known && (to < e.begin || to > e.end) {
		return usage("%s: offset %d is not in the log, which has [%d, %d)", f.Partition, to, e.begin, e.end)
	}
	d.to, d.beginning = &epoch.Position{Offset: to, Mark: epoch.NoMark}, g.word == "start"
	d.goal = text(to)
	if g.word == "start" || g.word == "end" {
		d.goal = g.word
	}
	d.effect = moves(f.Next, to)
	if !known {
		d.effect += " (not compared with the log)"
	}
	return nil
}

// aimAtTime aims at a position of a job, which is a time.
func (d *deed) aimAtTime(g goal, f epoch.Fence) error {
	to := g.offset
	switch {
	case g.word == "start":
		return usage("%s: a job has no beginning; say from which time on, with --to @TIME", f.Partition)
	case g.word == "end":
		to = operate.JobOffset(time.Now())
	case !g.at.IsZero():
		to = operate.JobOffset(g.at)
	case g.relative:
		to += f.Next
	}
	if to < 0 {
		return usage("%s: offset %d is below 0", f.Partition, to)
	}
	at, _ := operate.JobTime(to)
	d.to, d.goal = &epoch.Position{Offset: to, Mark: epoch.NoMark}, text(to)
	if g.word == "end" { // which is another time each second
		d.goal = g.word
	}
	d.effect = "continues with its ticks from " + stamp(at) + " on; its CatchUp says which of them are run"
	if to > f.Next {
		d.effect = "the ticks before " + stamp(at) + " are left out"
	}
	return nil
}

func moves(from, to epoch.Offset) string {
	switch {
	case to < from:
		return offsets(to, from-1, "applied again")
	case to > from:
		return offsets(from, to-1, "never applied")
	default:
		return "the position stays"
	}
}

func offsets(first, last epoch.Offset, what string) string {
	if first == last {
		return fmt.Sprintf("offset %d is %s", first, what)
	}
	return fmt.Sprintf("offsets %d to %d are %s", first, last, what)
}
