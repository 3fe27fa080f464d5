package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os/user"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/text/secret"
	"github.com/epochfence/epochfence/operate"
)

// This file shows a plan, and carries it out with --execute, unless it has changed since it was shown.
// operate/plan.go decides which action a command becomes, and what it does.

type doing struct {
	execute    bool
	reason, by string
	plan       string
}

func (d *doing) add(f *pflag.FlagSet) {
	f.BoolVar(&d.execute, "execute", false, "do it; without this, show what would be done")
	f.StringVar(&d.reason, "reason", "", "why, for the audit log; required with --execute")
	f.StringVar(&d.by, "by", "", "who does it; the user's name on this machine if empty")
	f.StringVar(&d.plan, "plan", "", "refuse if the plan that was shown with this ID has changed")
}

// check defaults by to the user of this process.
func (d *doing) check() error {
	if d.by == "" {
		if u, err := user.Current(); err == nil {
			d.by = u.Username
		}
	}
	if !d.execute {
		return nil
	}
	if err := operate.CheckWho(d.by, d.reason, ""); err != nil {
		return usage("--execute wants --reason, and --by where this machine does not know you: %w", err)
	}
	return nil
}

func fingerprint(lines []string) string {
	sum := sha256.Sum256([]byte(strings.Join(lines, "\n")))
	return hex.EncodeToString(sum[:6])
}

type actView struct {
	partitionView
	Act       string        `json:"act"`
	From      int64         `json:"from_offset"`
	To        *int64        `json:"to_offset"` // null: the position stays
	NewLog    string        `json:"new_log,omitempty"`
	NewSource string        `json:"new_lease_source,omitempty"`
	Effect    string        `json:"effect"`
	Done      bool          `json:"done"`
	After     *partitionAct `json:"after,omitempty"`
	Error     string        `json:"error,omitempty"`
}

type partitionAct struct {
	Epoch int64  `json:"epoch"`
	Claim string `json:"claim"`
	Next  int64  `json:"next_offset"`
}

func viewOfPlan(p operate.Plan, seen partitionView) actView {
	v := actView{
		partitionView: seen, Act: string(p.Act.Kind), From: int64(p.Act.Seen.Next), NewLog: p.Act.Log, NewSource: p.Act.Source,
		Effect: p.Effect,
	}
	if p.Act.To != nil {
		v.To = number(int64(p.Act.To.Offset))
	}
	if p.Nothing != "" {
		v.Effect = "nothing to do: " + p.Nothing
	}
	return v
}

// requested returns what the command's flags request for a fence.
type requested func(f epoch.Fence) (operate.Request, error)

// perform plans a command's actions and shows them. With --execute it also carries them out.
func (a *app) perform(c *cobra.Command, which chosen, by doing, names []string, request requested) error {
	ctx := c.Context()
	if err := by.check(); err != nil {
		return err
	}
	if len(names) == 0 && which == (chosen{}) {
		return usage("which partitions? Name them, or say --group or --topic for all of it")
	}
	op, err := a.operator(ctx)
	if err != nil {
		return err
	}
	seen, err := a.here(ctx, op, which, names)
	if err != nil {
		return err
	}
	var plans []operate.Plan
	var grounds []string
	for _, s := range seen {
		p, err := a.plan(ctx, s.Fence, by, request)
		if err != nil {
			return err
		}
		plans, grounds = append(plans, p), append(grounds, p.Grounds())
	}
	partitions, err := viewsOf(ctx, op, seen)
	if err != nil {
		return err
	}
	var views []actView
	for i, p := range plans {
		views = append(views, viewOfPlan(p, partitions[i]))
	}
	p := proposal{names: names, plans: plans, plan: fingerprint(grounds), result: map[string]any{"acts": views}, print: func() { a.printPlans(plans, views) }}
	if ahead, err := a.goAhead(c, by, p); !ahead {
		return err
	}
	err = carryOut(ctx, op, plans, views)
	return errors.Join(err, a.show(p.result, func() { a.printDone(views) }))
}

func (a *app) plan(ctx context.Context, f epoch.Fence, by doing, request requested) (operate.Plan, error) {
	r, err := request(f)
	if err != nil {
		return operate.Plan{}, err
	}
	r.By, r.Reason = by.by, by.reason
	planner := operate.Planner{
		Extent: func(ctx context.Context, f epoch.Fence) (operate.Extent, error) {
			e, err := a.extentOf(ctx, f)
			return operate.Extent{Log: e.log, Source: e.source, Begin: e.begin, End: e.end}, err
		},
		At: func(ctx context.Context, f epoch.Fence, at time.Time) (epoch.Offset, error) {
			b, err := a.brokerOf(f)
			if err != nil {
				return 0, err
			}
			return b.at(ctx, f, at)
		},
	}
	p, err := planner.Plan(ctx, f, r)
	if r.Kind == operate.ActRebase && p.Nothing != "" && isNATSLog(f.Log) { // whose name has what only the processes know
		p.Nothing += "; if processes read other filters or another number of partitions, copy --log from the error of the halt"
	}
	return p, err
}

func carryOut(ctx context.Context, op operate.Operator, plans []operate.Plan, views []actView) error {
	var failed []error
	for i, p := range plans {
		if p.Nothing != "" {
			continue
		}
		f, err := p.CarryOut(ctx, op)
		var doubt *operate.DoubtError
		switch {
		case errors.As(err, &doubt):
			err = findOut(doubt.Err, fmt.Sprintf("epochfence history %s --claim %s", shellQuote(views[i].Name), doubt.Act.Claim))
		case errors.Is(err, operate.ErrNothingToDo):
			views[i].Effect = err.Error()
			continue
		}
		if err != nil {
			views[i].Error = err.Error()
			failed = append(failed, fmt.Errorf("%s %s: %w", p.Act.Kind, p.Act.Partition, err))
			continue
		}
		views[i].Done, views[i].After = true, &partitionAct{int64(f.Epoch), f.Claim.String(), int64(f.Next)}
	}
	return errors.Join(failed...)
}

// findOut adds to an in-doubt error how to find out the outcome.
func findOut(err error, how string) error {
	if errors.Is(err, epoch.ErrInDoubt) {
		return fmt.Errorf("%w; find out with: %s", err, how)
	}
	return err
}

type proposal struct {
	names  []string       // the command's arguments
	plans  []operate.Plan // of actions on partitions
	plan   string         // its fingerprint
	result map[string]any // for programs
	print  func()         // for operators
}

// goAhead reports whether to carry out the proposal. It returns false and shows the proposal
// without --execute, or if the proposal is no longer the one that the operator's --plan names.
func (a *app) goAhead(c *cobra.Command, by doing, p proposal) (ahead bool, err error) {
	p.result["plan"], p.result["executed"] = p.plan, false
	switch {
	case by.plan != "" && by.plan != p.plan:
		return false, errors.Join(fmt.Errorf("plan %s: %w", by.plan, operate.ErrChanged), a.show(p.result, p.print))
	case !by.execute:
		return false, a.show(p.result, func() {
			p.print()
			a.say("\nNothing was done. To do it:\n  %s", a.commandLine(c, p.names, p.plans, p.plan))
		})
	}
	p.result["executed"] = true
	return true, nil
}

// here returns the partitions of an action. It skips partitions that another database keeps, and
// refuses them if they are named.
func (a *app) here(ctx context.Context, op operate.Operator, which chosen, names []string) ([]operate.Partition, error) {
	all, err := a.partitions(ctx, op, which, names)
	if err != nil {
		return nil, err
	}
	var found []operate.Partition
	for _, p := range all {
		where, away := strings.CutPrefix(p.Log, operate.RedirectLog)
		if away && len(names) > 0 {
			return nil, fmt.Errorf("%s: another database of this sink keeps it, shard %s: name that one with --database", p.Fence.Partition, where)
		}
		if !away {
			found = append(found, p)
		}
	}
	if len(found) == 0 {
		return nil, errors.New("there is no such partition in this sink")
	}
	return found, nil
}

func (a *app) printPlans(plans []operate.Plan, views []actView) {
	t := newTable("PARTITION", ">EPOCH", "OWNER", ">FROM", ">TO", "WHAT")
	for i, p := range plans {
		f, to := p.Act.Seen, "-"
		if p.Act.To != nil {
			to = positionIn(f.Log, p.Act.To.Offset)
		}
		t.row(f.Partition, f.Epoch, dash(f.Owner), position(f), to, views[i].Effect)
	}
	t.print(a.out)
}

func (a *app) printDone(views []actView) {
	t := newTable("PARTITION", ">EPOCH", ">NEXT", "RESULT")
	for _, v := range views {
		switch {
		case v.Done:
			t.row(v.Name, v.After.Epoch, positionIn(v.Log, epoch.Offset(v.After.Next)), v.Act+": done")
		case v.Error != "":
			t.row(v.Name, v.Epoch, positionIn(v.Log, epoch.Offset(v.Next)), "FAILED: "+v.Error)
		default:
			t.row(v.Name, v.Epoch, positionIn(v.Log, epoch.Offset(v.Next)), v.Effect)
		}
	}
	t.print(a.out)
}

func (a *app) commandLine(c *cobra.Command, names []string, plans []operate.Plan, number string) string {
	line := []string{c.CommandPath()}
	for _, n := range names {
		line = append(line, shellQuote(n))
	}
	c.Flags().Visit(func(f *pflag.Flag) {
		value := f.Value.String()
		switch f.Name {
		case "execute", "reason", "plan", "format":
			return
		case "database", "store", "nats":
			value = secret.Text(value, value)
		case "to":
			if len(plans) == 1 && strings.ContainsAny(value[:1], "+-@") && plans[0].Act.To != nil {
				value = text(plans[0].Act.To.Offset)
			}
		case "through":
			if strings.HasPrefix(value, "@") {
				value = text(plans[0].Act.To.Offset - 1)
			}
		}
		line = append(line, "--"+f.Name+"="+shellQuote(value))
	})
	return strings.Join(append(line, "--plan="+number, "--execute", "--reason='…'"), " ")
}

func shellQuote(s string) string {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:@+=,%"
	if s != "" && strings.Trim(s, plain) == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// forReal is what makes a command that is printed as a remedy more than a dry run.
const forReal = " --reason '…' --execute"

func text(v any) string { return fmt.Sprint(v) }
