package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/epochfence/epochfence/consumer/kafkasource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

// This file has the command moveover: whether every position has passed where old consumers may
// have worked. It cannot see a process that is not in the group.

type moveOverFlags struct {
	chosen
	ended bool
	wait  time.Duration
}

func (a *app) moveOver() *cobra.Command {
	var f moveOverFlags
	c := &cobra.Command{
		Use:   "moveover",
		Short: "Report whether the old consumers' dedupe table may go",
		Long: `Report whether the dedupe table of the consumers that epochfence has replaced may
go: exit code 0 if it may, 3 if not.

An old process may have applied more than the group had committed when it
ended. What lies beyond is delivered again, and the table is all that catches
it. So the command reads where each log ends, and waits until each position has
passed that end: an old process that has ended has applied nothing after it.

The command cannot see a process that is not in the group, such as one that is
frozen. Say --old-ended once every old process has ended. The command finds old
processes that have partitions in a Kafka group, but none of a durable consumer
on JetStream.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return a.runMoveOver(c.Context(), f) },
	}
	f.chosen.add(c.Flags())
	c.Flags().BoolVar(&f.ended, "old-ended", false, "every process of the old consumers has ended")
	c.Flags().DurationVar(&f.wait, "wait", time.Minute, "how long positions may take to pass the ends; 0: look once")
	return c
}

type moveOverView struct {
	MayGo      bool         `json:"may_go"`
	Reasons    []string     `json:"reasons"` // of a no, except those about positions
	Partitions []passedView `json:"partitions"`
}

type passedView struct {
	partitionView
	Until  *int64 `json:"until"` // the position to reach
	Passed bool   `json:"passed"`
	Why    string `json:"why"` // why it has not passed

	stays bool // it needs an operator action
}

func (a *app) runMoveOver(ctx context.Context, f moveOverFlags) error {
	m := move{app: a, flags: f}
	late := time.After(f.wait)
	again := time.NewTicker(time.Second)
	defer again.Stop()
	for {
		v, err := m.look(ctx)
		if err != nil {
			return err
		}
		wait := f.wait > 0 && f.ended && !v.MayGo && !slices.ContainsFunc(v.Partitions, func(p passedView) bool { return p.stays })
		if wait {
			select {
			case <-again.C:
				continue
			case <-late:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		err = a.show(v, func() { a.printMoveOver(v) })
		if !v.MayGo {
			err = errors.Join(errTrouble, err)
		}
		return err
	}
}

// move is the state of a move-over between two looks.
type move struct {
	*app
	flags moveOverFlags
	alone bool // the last look found no old consumer in the group
	until map[epoch.Partition]epoch.Offset
}

// look compares positions with the ends of the logs. It reads the group's members before the ends:
// if an old process leaves the group in between, the messages it has applied are below the ends.
func (m *move) look(ctx context.Context) (moveOverView, error) {
	v := moveOverView{Reasons: []string{}, Partitions: []passedView{}}
	ps, vs, err := m.views(ctx, chosen{group: m.flags.group}, nil)
	if err != nil {
		return v, err
	}
	if !m.flags.ended {
		v.Reasons = append(v.Reasons, "an old process that runs may apply more: say --old-ended once every one has ended")
	}
	var here []operate.Partition
	var seen []partitionView
	var owned []epoch.Fence            // of other topics too: their owners identify epochfence's members
	kept := map[epoch.Partition]bool{} // partitions that another database keeps
	for i, p := range ps {
		switch {
		case p.Fence.Partition == drillPartition, !hasLog(p.Fence):
		case vs[i].State == elsewhere:
			kept[p.Fence.Partition] = true
		default:
			owned = append(owned, p.Fence)
			if m.wants(p.Fence.Partition.Topic) {
				here, seen = append(here, p), append(seen, vs[i])
			}
		}
	}
	if len(here) == 0 {
		v.Reasons = append(v.Reasons, "there is no such partition in this sink: no epochfence process has begun")
	}
	strangers, unfenced, err := m.others(ctx, operate.Fences(here), owned, kept)
	if err != nil {
		return v, err
	}
	v.Reasons = append(append(v.Reasons, strangers...), unfenced...)
	if !m.alone {
		m.until = map[epoch.Partition]epoch.Offset{}
	}
	m.alone = len(strangers) == 0
	v.MayGo = len(v.Reasons) == 0
	for i, e := range m.extents(ctx, operate.Fences(here)) {
		p := m.judge(here[i], seen[i], e)
		v.MayGo = v.MayGo && p.Passed
		v.Partitions = append(v.Partitions, p)
	}
	return v, nil
}

func (m *move) wants(topic string) bool { return m.flags.topic == "" || m.flags.topic == topic }

func (m *move) judge(p operate.Partition, v partitionView, e extent) passedView {
	j := passedView{partitionView: v}
	switch {
	case e.err != nil:
		j.Why = e.err.Error()
		return j
	case e.differs(p.Fence):
		j.Why, j.stays = "the fence is of another log or lease issuer than there is now: see epochfence rebase", true
		return j
	}
	until, known := m.until[p.Fence.Partition]
	if !known {
		until = e.written
		m.until[p.Fence.Partition] = until
	}
	j.Until = number(int64(until))
	switch {
	case p.Next >= until: // sources move the position past compacted messages, transaction markers and other partitions' messages
		j.Passed = true
	case v.State == unclaimed:
		j.Why = "no epochfence process has claimed it"
	case v.State == paused:
		j.Why, j.stays = fmt.Sprintf("paused by %s: %s; epochfence resume %s", v.By, v.Reason, shellQuote(v.Name)), true
	case v.State == halted:
		j.Why = "halted: " + v.Reason
	case v.State == orphaned:
		j.Why = "its owner is not alive (" + v.sign + "), and no process has claimed it since"
	case v.State == hanging:
		j.Why = "given up: " + v.Reason
	default:
		j.Why = "it is on its way"
	}
	return j
}

// others returns members of the fences' groups that may be old consumers, and partitions of these
// groups without a fence. It ignores partitions that another database keeps.
func (m *move) others(ctx context.Context, fences, owned []epoch.Fence, kept map[epoch.Partition]bool) (strangers, unfenced []string, err error) {
	of := map[string][]epoch.Fence{}
	var groups []string
	for _, f := range fences {
		if g := f.Partition.Group; of[g] == nil {
			groups = append(groups, g)
		}
		of[f.Partition.Group] = append(of[f.Partition.Group], f)
	}
	for _, g := range groups {
		b, err := m.brokerOf(of[g][0])
		if err != nil {
			return nil, nil, err
		}
		known, err := b.groupOf(ctx, g)
		if err != nil {
			return nil, nil, err
		}
		if known.rebalancing {
			strangers = append(strangers, fmt.Sprintf("group %s is rebalancing: who has its partitions is not known", g))
		}
		for _, one := range known.members {
			others := slices.ContainsFunc(one.Partitions, func(p epoch.Partition) bool { return !kept[p] })
			if others && !slices.ContainsFunc(owned, one.Owns) {
				strangers = append(strangers, fmt.Sprintf("member %s of group %s, at %s, has partitions and owns no fence: an old consumer, or one that has claimed nothing yet", one.ID, g, one.Host))
			}
		}
		missing, err := m.unfencedOf(ctx, b, g, of[g], known.committed)
		if err != nil {
			return nil, nil, err
		}
		for _, p := range missing {
			if !kept[p] {
				unfenced = append(unfenced, p.String()+": the group has it, and the sink has no fence of it")
			}
		}
	}
	return strangers, unfenced, nil
}

// unfencedOf returns the partitions without a fence, of topics that have fences and of those that
// the group has committed.
func (m *move) unfencedOf(ctx context.Context, b broker, group string, fences []epoch.Fence, committed []epoch.Partition) ([]epoch.Partition, error) {
	var missing []epoch.Partition
	for _, topic := range topicsOf(fences) {
		of := slices.DeleteFunc(slices.Clone(fences), func(f epoch.Fence) bool { return f.Partition.Topic != topic })
		these, err := b.unfenced(ctx, group, topic, of)
		if err != nil {
			return nil, err
		}
		missing = append(missing, these...)
	}
	for _, p := range committed {
		if m.wants(p.Topic) && !slices.ContainsFunc(fences, func(f epoch.Fence) bool { return f.Partition == p }) {
			missing = append(missing, p)
		}
	}
	slices.SortFunc(missing, epoch.Partition.Compare)
	return slices.Compact(missing), nil
}

type membership struct {
	members     []kafkasource.Member // members with partitions
	rebalancing bool                 // then the members are unknown
	committed   []epoch.Partition
}

func (a *app) printMoveOver(v moveOverView) {
	behind := 0
	for _, p := range v.Partitions {
		if !p.Passed {
			behind++
		}
	}
	switch all := count(int64(len(v.Partitions)), "partition"); {
	case v.MayGo:
		a.say("YES: the dedupe table may go. All of %s have passed what the old consumers can have applied.", all)
	case behind > 0:
		a.say("NO: keep the dedupe table. %d of %s have not passed what the old consumers can have applied.", behind, all)
	default:
		a.say("NO: keep the dedupe table.")
	}
	for _, r := range v.Reasons {
		a.say("%s", printable(r))
	}
	if behind > 0 {
		a.say("")
		t := newTable("PARTITION", "STATE", ">NEXT", ">UNTIL", "WHY")
		for _, p := range v.Partitions {
			if p.Passed {
				continue
			}
			next, until := text(p.Next), "-"
			if p.State == unclaimed {
				next = "-"
			}
			if p.Until != nil {
				until = text(*p.Until)
			}
			t.row(p.Name, p.State, next, until, p.Why)
		}
		t.print(a.out)
	}
}
