package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

// This file has the command drill, which plays two processes on the live sink, in a partition that
// no consumer has. It only uses what a consumer's sink offers.

// drillPartition is the drill's partition in the sink's tables. No consumer has it.
var drillPartition = epoch.Partition{Group: "epochfence-drill", Topic: "drill"}

var errDrill = errors.New("written by epochfence drill")

func (a *app) drill() *cobra.Command {
	var execute bool
	c := &cobra.Command{
		Use:   "drill",
		Short: "Prove on the live sink that a zombie is refused",
		Long: `Prove on the live sink that a zombie is refused. In a partition of its own,
` + drillPartition.String() + `, A claims, B claims, and A tries to commit
a write. The commit must be refused as stale, and the write must not be there. What
B commits must be there. On PostgreSQL and in a store another A is frozen with its
transaction open while B claims.

It needs the privileges of the application and of an operator. It writes claims,
and dead letters of its own partition, which it discards. The fence of that
partition stays.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return a.runDrill(c.Context(), execute) },
	}
	c.Flags().BoolVar(&execute, "execute", false, "do it")
	return c
}

type trial struct {
	What   string `json:"what"`
	Want   string `json:"want"`
	Got    string `json:"got"`
	Passed bool   `json:"passed"`
}

func (a *app) runDrill(ctx context.Context, execute bool) error {
	if !execute {
		return a.show(map[string]any{"executed": false}, func() {
			a.say("It would claim %s, a partition of its own, and commit there. Nothing was done. To do it, add --execute.", drillPartition)
		})
	}
	db, err := a.open(ctx, false)
	if err != nil {
		return err
	}
	trials, err := db.drill(ctx)
	if err != nil {
		return a.flags.secretive(fmt.Errorf("drill: %w", err))
	}
	failed := slices.ContainsFunc(trials, func(t trial) bool { return !t.Passed })
	err = a.show(map[string]any{"executed": true, "passed": !failed, "trials": trials}, func() {
		t := newTable("RESULT", "WHAT", "GOT")
		for _, one := range trials {
			result := "ok"
			if !one.Passed {
				result = "FAILED"
			}
			t.row(result, one.What, one.Got)
		}
		t.print(a.out)
		if failed {
			a.say("\nThis sink does not hold what it promises. Stop what depends on it, and report this.")
		}
	})
	if failed {
		err = errors.Join(errTrouble, err)
	}
	return err
}

// drill makes two processes claim a partition in turn.
type drill[TX any] struct {
	sink epoch.Sink[TX]
	op   operate.Operator
	put  func(ctx context.Context, tx TX, m epoch.Message, e epoch.Epoch, cause error) error // writes a dead letter
	open bool                                                                                // a claim does not wait for another claim's open transaction

	trials []trial
	wrote  []epoch.Offset // the dead letters that must exist
}

func (d *drill[TX]) run(ctx context.Context) ([]trial, error) {
	origin := epoch.Origin{Partition: drillPartition, Log: "epochfence/drill", Source: "epochfence/drill"}
	if err := d.sink.Seed(ctx, []epoch.Start{{Origin: origin}}); err != nil {
		return nil, err
	}
	if err := d.clean(ctx); err != nil { // from an interrupted drill
		return nil, err
	}
	for _, step := range []func(context.Context, epoch.Origin) error{d.late, d.held, d.frozen} {
		if err := step(ctx, origin); err != nil {
			return nil, errors.Join(err, d.clean(ctx))
		}
	}
	if err := d.count(ctx); err != nil {
		return nil, err
	}
	return d.trials, d.clean(ctx)
}

func (d *drill[TX]) note(what, want string, err error, passed bool) {
	got := "committed"
	if err != nil {
		got = err.Error()
	}
	d.trials = append(d.trials, trial{what, want, got, passed})
}

func (d *drill[TX]) claim(ctx context.Context, o epoch.Origin, owner string) (epoch.Fence, error) {
	seen, err := epoch.FenceOf(ctx, d.sink, o.Partition)
	if err != nil {
		return seen, err
	}
	f, err := d.sink.Claim(ctx, seen, epoch.NewClaim(epoch.Lease{Origin: o, Generation: 1, Owner: "epochfence drill, " + owner}))
	if errors.Is(err, epoch.ErrStale) {
		err = fmt.Errorf("somebody else claims the drill's partition; is there another drill? %w", err)
	}
	return f, err
}

func (d *drill[TX]) replaced(ctx context.Context, o epoch.Origin) (a, b epoch.Fence, err error) {
	if a, err = d.claim(ctx, o, "A"); err == nil {
		b, err = d.claim(ctx, o, "B")
	}
	return a, b, err
}

func (d *drill[TX]) commit(ctx context.Context, f epoch.Fence, meanwhile func() error) error {
	as := []epoch.Advance{{Partition: f.Partition, Claim: f.Claim, From: f.Next, To: f.Next + 1, Mark: epoch.NoMark}}
	return d.sink.Commit(ctx, as, epoch.TxOptions{}, func(ctx context.Context, tx TX) error {
		if err := d.put(ctx, tx, epoch.Message{Partition: f.Partition, Offset: f.Next}, f.Epoch, errDrill); err != nil {
			return err
		}
		return meanwhile()
	})
}

func nothing() error { return nil }

// late makes A commit after B has claimed, and then B.
func (d *drill[TX]) late(ctx context.Context, o epoch.Origin) error {
	a, b, err := d.replaced(ctx, o)
	if err != nil {
		return err
	}
	err = d.commit(ctx, a, nothing)
	d.note(fmt.Sprintf("A claims under epoch %d, B under %d, A commits", a.Epoch, b.Epoch), "stale", err, errors.Is(err, epoch.ErrStale))
	err = d.commit(ctx, b, nothing)
	d.note(fmt.Sprintf("B commits under epoch %d", b.Epoch), "committed", err, err == nil)
	if err == nil {
		d.wrote = append(d.wrote, b.Next)
	}
	return nil
}

// held makes a zombie commit a claim-only transaction, if the sink has such transactions.
func (d *drill[TX]) held(ctx context.Context, o epoch.Origin) error {
	if _, holds := epoch.As[epoch.Holding[TX]](d.sink); !holds {
		return nil
	}
	a, b, err := d.replaced(ctx, o)
	if err != nil {
		return err
	}
	try := func(f epoch.Fence) error {
		return epoch.CommitHeld(ctx, d.sink, epoch.Hold{Partition: f.Partition, Claim: f.Claim}, epoch.TxOptions{}, func(context.Context, TX) error { return nil })
	}
	err = try(a)
	d.note("A commits background work after B has claimed", "stale", err, errors.Is(err, epoch.ErrStale))
	err = try(b)
	d.note("B commits background work", "committed", err, err == nil)
	return nil
}

// frozen makes B claim while A has a transaction open.
func (d *drill[TX]) frozen(ctx context.Context, o epoch.Origin) error {
	if !d.open {
		return nil
	}
	a, err := d.claim(ctx, o, "A")
	if err != nil {
		return err
	}
	var b epoch.Fence
	var claiming error
	err = d.commit(ctx, a, func() error {
		b, claiming = d.claim(ctx, o, "B")
		return claiming
	})
	if claiming != nil {
		return claiming
	}
	// PostgreSQL may have terminated A's connection; A then cannot know the outcome.
	refused := errors.Is(err, epoch.ErrStale) || errors.Is(err, epoch.ErrInDoubt)
	d.note("A has its transaction open and has written, B claims, A commits", "stale, or its transaction is ended", err, refused)
	err = d.commit(ctx, b, nothing)
	d.note("B commits after that", "committed", err, err == nil)
	if err == nil {
		d.wrote = append(d.wrote, b.Next)
	}
	return nil
}

func (d *drill[TX]) letters(ctx context.Context) ([]operate.DeadLetter, error) {
	return d.op.DeadLetters(ctx, operate.DeadLetterQuery{Filter: operate.Filter{Group: drillPartition.Group, Topic: drillPartition.Topic}, Limit: 1000})
}

func (d *drill[TX]) count(ctx context.Context) error {
	ls, err := d.letters(ctx)
	if err != nil {
		return err
	}
	var found []epoch.Offset
	for _, l := range ls {
		found = append(found, l.Message.Offset)
	}
	passed := slices.Equal(found, d.wrote)
	got := fmt.Sprintf("%d writes, at %v", len(found), found)
	d.trials = append(d.trials, trial{"what was committed is there, once, and nothing of A", fmt.Sprintf("%d writes, at %v", len(d.wrote), d.wrote), got, passed})
	return nil
}

func (d *drill[TX]) clean(ctx context.Context) error {
	ls, err := d.letters(ctx)
	if err != nil {
		return err
	}
	for _, l := range ls {
		_, err := d.op.DoDeadLetter(ctx, operate.DeadLetterAct{Kind: operate.Discard, Seen: l, By: "epochfence drill", Reason: "the drill is over"})
		if err != nil && !errors.Is(err, operate.ErrNoDeadLetter) {
			return fmt.Errorf("clean up: %w", err)
		}
	}
	return nil
}
