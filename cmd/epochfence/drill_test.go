package main

import (
	"context"
	"testing"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/memsink"
)

// leaky commits what a zombie wrote, and says that it was refused.
type leaky struct {
	epoch.Sink[*memsink.Tx]
}

func (l leaky) Commit(ctx context.Context, as []epoch.Advance, o epoch.TxOptions, calls ...func(context.Context, *memsink.Tx) error) error {
	err := l.Sink.Commit(ctx, as, o, calls...)
	if err == nil {
		return nil
	}
	f, now := epoch.FenceOf(ctx, l, as[0].Partition)
	if now != nil {
		return now
	}
	if leak := l.Sink.Commit(ctx, []epoch.Advance{{Partition: f.Partition, Claim: f.Claim, From: f.Next, To: f.Next, Mark: f.Mark}}, o, calls...); leak != nil {
		return leak
	}
	return err
}

// credulous takes whoever comes for the owner.
type credulous struct {
	epoch.Sink[*memsink.Tx]
}

func (c credulous) Commit(ctx context.Context, as []epoch.Advance, o epoch.TxOptions, calls ...func(context.Context, *memsink.Tx) error) error {
	f, err := epoch.FenceOf(ctx, c, as[0].Partition)
	if err != nil {
		return err
	}
	as[0].Claim, as[0].From, as[0].To = f.Claim, f.Next, f.Next+1
	return c.Sink.Commit(ctx, as, o, calls...)
}

// A drill finds a sink that lets a zombie in.
func TestDrillFindsASinkThatDoesNotFence(t *testing.T) {
	for name, c := range map[string]struct {
		of     func(epoch.Sink[*memsink.Tx]) epoch.Sink[*memsink.Tx]
		passed bool
	}{
		"as it is":  {func(s epoch.Sink[*memsink.Tx]) epoch.Sink[*memsink.Tx] { return s }, true},
		"leaky":     {func(s epoch.Sink[*memsink.Tx]) epoch.Sink[*memsink.Tx] { return leaky{s} }, false},
		"credulous": {func(s epoch.Sink[*memsink.Tx]) epoch.Sink[*memsink.Tx] { return credulous{s} }, false},
	} {
		t.Run(name, func(t *testing.T) {
			sink := memsink.New()
			d := &drill[*memsink.Tx]{sink: c.of(sink), op: sink.Operator(), put: sink.DeadLetter}
			trials, err := d.run(t.Context())
			must(t, err)
			passed := true
			for _, one := range trials {
				passed = passed && one.Passed
			}
			if passed != c.passed {
				t.Errorf("%+v", trials)
			}
		})
	}
}
