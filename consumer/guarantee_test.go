package consumer_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
)

// lesser is a sink that gives less.
type lesser struct {
	epoch.Sink[tx]
	gives epoch.Guarantee
}

func (l lesser) Facts() epoch.Facts {
	facts := l.Sink.Facts()
	facts.Guarantee = l.gives
	return facts
}

// holding is one that commits under a claim alone, too.
type holding struct {
	lesser
	epoch.Holding[tx]
}

func TestMoreThanTheSinkGivesIsRefusedAtTheStart(t *testing.T) {
	giveUp := func(context.Context, tx, consumer.Message, epoch.Epoch, error) error { return nil }
	nothing := func(context.Context, background) {}
	held := func(r *rig, l lesser) epoch.Sink[tx] { return holding{l, r.sink} }
	plain := func(_ *rig, l lesser) epoch.Sink[tx] { return l }
	for _, c := range []struct {
		sink  func(*rig, lesser) epoch.Sink[tx]
		gives epoch.Guarantee
		h     handlers
		o     options
		says  string // empty if it suits
	}{
		{plain, epoch.Transactional, each(record), options{}, ""},
		{held, epoch.Transactional, each(record).OnFailure(giveUp).Background(nothing), options{Guarantee: epoch.PerItem}, ""},
		{plain, epoch.PerItem, each(record), options{}, "Options.Guarantee asks for a transactional sink, and this one is per item"},
		{plain, 0, each(record), options{Guarantee: epoch.PerItem}, "Options.Guarantee asks for a per item sink, and this one is none"},
		{plain, epoch.PerItem, each(record), options{Guarantee: epoch.PerItem}, ""},
		{plain, epoch.PerItem, each(record).Background(nothing), options{Guarantee: epoch.PerItem}, "Handlers.Background needs a sink that commits under a claim without moving a position"},
		{held, epoch.PerItem, each(record).Background(nothing), options{Guarantee: epoch.PerItem}, ""},
		{plain, epoch.PerItem, each(record).OnFailure(giveUp), options{Guarantee: epoch.PerItem}, ""},
	} {
		inBubble(t, 1, func(r *rig) {
			ctx, stop := context.WithCancel(r.Context())
			done := make(chan error, 1)
			go func() {
				done <- consumer.Run(ctx, r.group().Member("a"), c.sink(r, lesser{r.sink, c.gives}), c.h, (&process{rig: r}).watched(c.o))
			}()
			synctest.Wait()
			stop()
			switch err := <-done; {
			case c.says == "" && err != nil:
				t.Errorf("a %v sink for %+v: %v", c.gives, c.o.Guarantee, err)
			case c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)):
				t.Errorf("a %v sink for %+v: %v, want %q", c.gives, c.o.Guarantee, err, c.says)
			}
		})
	}
}

func TestPartitionsShareNoTransactionOfASinkThatIsNotTransactional(t *testing.T) {
	for gives, want := range map[epoch.Guarantee]int{epoch.PerItem: 1, epoch.Transactional: 3} {
		inBubble(t, 4, func(r *rig) {
			p := r.process("a", nil)
			p.run(func(ctx context.Context) error {
				return consumer.Run(ctx, p.member, lesser{p.sink, gives}, consumer.Each(record), p.watched(options{Guarantee: gives}))
			})
			most := 0
			r.together(p, func(_ context.Context, as []epoch.Advance, do func() error) error {
				most = max(most, len(as))
				return do()
			}, func() {
				for n := range int32(3) {
					r.fill(n+1, 2)
				}
			})
			synctest.Wait()
			p.end()
			if most != want {
				t.Errorf("%v: %d partitions in one transaction, want %d", gives, most, want)
			}
		})
	}
}
