package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os/user"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/text/secret"
	"github.com/epochfence/epochfence/operate"
)

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

// deed is a planned action on a partition, as last read.
type deed struct {
	kind        operate.ActKind
	seen        operate.Partition
	to          *epoch.Position
	beginning   bool
	goal        string // the part of to that the plan compares: the offset, or the word that it came from
	log, source string
	effect      string // for operators
	nothing     string // why there is nothing to do
}

func (d deed) act(now epoch.Fence, by doing) (operate.Act, error) {
	if d.kind == operate.ActRun { // at the position, which may have moved
		return operate.NewRun(now, by.by, by.reason)
	}
	a := operate.NewAct(d.kind, now, by.by, by.reason)
	a.To, a.Beginning, a.Log, a.Source = d.to, d.beginning, d.log, d.source
	return a, nil
}

// planOf returns a fingerprint of the planned actions and of their grounds: the claims, the target
// positions, and the directions of the moves. It leaves out current positions, except for a skip: a
// working owner moves them meanwhile.
func planOf(ds []deed) string {
	var all []string
	for _, d := range ds {
		f := d.seen.Fence
		line := fmt.Sprintf("%s %s %d %s to %s, %q, %q, %t", d.kind, f.Partition, f.Epoch, f.Claim, d.goal, d.log, d.source, d.nothing != "")
		if d.numbered() {
			line += text(direction(f.Next, d.to.Offset))
		}
		if d.kind == operate.ActSkip {
			line += " from " + text(f.Next)
		}
		all = append(all, line)
	}
	return fingerprint(all)
}

func fingerprint(lines []string) string {
	sum := sha256.Sum256([]byte(strings.Join(lines, "\n")))
	return hex.EncodeToString(sum[:6])
}

// numbered reports whether the operator named the target by its offset.
func (d deed) numbered() bool { return d.to != nil && d.goal == text(d.to.Offset) }

func direction(from, to epoch.Offset) int {
	switch {
	case to < from:
		return -1
	case to > from:
		return 1
	default:
		return 0
	}
}

type deedView struct {
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

func (d deed) view(seen partitionView) deedView {
	v := deedView{
		partitionView: seen, Act: string(d.kind), From: int64(d.seen.Next), NewLog: d.log, NewSource: d.source,
		Effect: d.effect,
	}
	if d.to != nil {
		v.To = number(int64(d.to.Offset))
	}
	if d.nothing != "" {
		v.Effect = "nothing to do: " + d.nothing
	}
	return v
}

func seenBy(deeds []deed) (ps []operate.Partition) {
	for _, d := range deeds {
		ps = append(ps, d.seen)
	}
	return ps
}

type planned func(ctx context.Context, seen []operate.Partition) ([]deed, error)

// perform plans a command's actions and shows them. With --execute it also carries them out.
func (a *app) perform(c *cobra.Command, which chosen, by doing, names []string, plan planned) error {
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
	deeds, err := plan(ctx, seen)
	if err != nil {
		return err
	}
	partitions, err := viewsOf(ctx, op, seenBy(deeds))
	if err != nil {
		return err
	}
	var views []deedView
	for i, d := range deeds {
		views = append(views, d.view(partitions[i]))
	}
	p := proposal{names: names, deeds: deeds, plan: planOf(deeds), result: map[string]any{"acts": views}, print: func() { a.printDeeds(deeds, views) }}
	if ahead, err := a.goAhead(c, by, p); !ahead {
		return err
	}
	err = carryOutAll(ctx, op, deeds, views, by)
	return errors.Join(err, a.show(p.result, func() { a.printDone(views) }))
}

type proposal struct {
	names  []string // the command's arguments
	deeds  []deed   // those about partitions
	plan   string
	result map[string]any // for programs
	print  func()         // for operators
}

// goAhead reports whether to carry out the proposal. It returns false and shows the proposal
// without --execute, or if the proposal is no longer the one that the operator's --plan names.
func (a *app) goAhead(c *cobra.Command, by doing, p proposal) (ahead bool, err error) {
	p.result["plan"], p.result["executed"] = p.plan, false
	switch {
	case by.plan != "" && by.plan != p.plan:
		return false, errors.Join(fmt.Errorf("plan %s: %w", by.plan, errChanged), a.show(p.result, p.print))
	case !by.execute:
		return false, a.show(p.result, func() {
			p.print()
			a.say("\nNothing was done. To do it:\n  %s", a.commandLine(c, p.names, p.deeds, p.plan))
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

func (a *app) printDeeds(deeds []deed, views []deedView) {
	t := newTable("PARTITION", ">EPOCH", "OWNER", ">FROM", ">TO", "WHAT")
	for i, d := range deeds {
		to := "-"
		if d.to != nil {
			to = positionIn(d.seen.Log, d.to.Offset)
		}
		t.row(d.seen.Fence.Partition, d.seen.Epoch, dash(d.seen.Owner), position(d.seen.Fence), to, views[i].Effect)
	}
	t.print(a.out)
}

func (a *app) printDone(views []deedView) {
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

func (a *app) commandLine(c *cobra.Command, names []string, deeds []deed, number string) string {
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
			if len(deeds) == 1 && strings.ContainsAny(value[:1], "+-@") && deeds[0].to != nil {
				value = text(deeds[0].to.Offset)
			}
		case "through":
			if strings.HasPrefix(value, "@") {
				value = text(deeds[0].to.Offset - 1)
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
