package memsource_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/memsource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/suites/bubble"
)

// process is a member whose own is written by the test.
type process struct {
	*memsource.Member
	granted chan held
	stop    context.CancelFunc
	ended   chan error
}

// held is one call of own. It continues until give is called.
type held struct {
	consumer.Tenure
	ctx  context.Context
	give func()
}

func start(t *testing.T, m *memsource.Member) *process {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	p := &process{Member: m, granted: make(chan held, 100), stop: stop, ended: make(chan error, 1)}
	go func() {
		p.ended <- m.Run(ctx, func(error) {}, func(ctx context.Context, tn consumer.Tenure) {
			returned := make(chan struct{})
			p.granted <- held{tn, ctx, func() { close(returned) }}
			<-returned
		})
	}()
	return p
}

// end stops the process and gives back what nobody has taken from granted.
func (p *process) end(t *testing.T) {
	t.Helper()
	p.stop()
	for {
		select {
		case h := <-p.granted:
			h.give()
		case err := <-p.ended:
			if err != nil {
				t.Errorf("member %s: Run: %v", p.Name(), err)
			}
			return
		}
	}
}

func seen(h held) epoch.Fence {
	return epoch.Fence{Origin: h.Origin(), Mark: epoch.NoMark}
}

func confirm(t *testing.T, h held) (epoch.Lease, error) {
	t.Helper()
	return h.Confirm(t.Context(), seen(h))
}

func mustConfirm(t *testing.T, h held, generation int64) {
	t.Helper()
	lease, err := confirm(t, h)
	if err != nil || lease.Generation != generation {
		t.Fatalf("Confirm = %+v, %v; want generation %d", lease, err, generation)
	}
}

func mustBeLost(t *testing.T, h held) {
	t.Helper()
	if _, err := confirm(t, h); !errors.Is(err, consumer.ErrLost) {
		t.Fatalf("Confirm = %v; want ErrLost", err)
	}
	if cause := context.Cause(h.ctx); !errors.Is(cause, consumer.ErrLost) {
		t.Fatalf("cause = %v; want ErrLost", cause)
	}
}

func TestPartitionMovesToANewMemberOnlyAfterItWasDrained(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		log := memsource.New("orders", 2)
		g := log.Group(memsource.DefaultGroup)
		a := start(t, log.Member("a"))
		h0, h1 := <-a.granted, <-a.granted
		if h0.Origin().Partition.Number == 1 {
			h0, h1 = h1, h0
		}
		mustConfirm(t, h0, 1)

		b := start(t, log.Member("b"))
		<-h1.Draining()
		synctest.Wait()
		if len(b.granted) != 0 || g.Owner("orders", 1) != "a" {
			t.Fatal("b was granted a partition that a has not given back")
		}
		h1.give()
		moved := <-b.granted
		if moved.Origin() != h1.Origin() {
			t.Fatalf("b was granted %v", moved.Origin())
		}
		mustConfirm(t, moved, 2)
		mustConfirm(t, h0, 2) // kept, and confirmed under the membership as it is now

		h0.give()
		moved.give()
		a.end(t)
		b.end(t)
	})
}

func TestDrainThatTakesLongerThanTheTermIsALoss(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		log := memsource.New("orders", 1)
		a := start(t, log.Member("a"))
		h := <-a.granted
		begin := time.Now()
		a.stop()
		<-h.ctx.Done()
		if took := time.Since(begin); took != h.Term() {
			t.Errorf("lost after %v; want the term, %v", took, h.Term())
		}
		mustBeLost(t, h)
		h.give()
		a.end(t)
	})
}

func TestRunSaysSoIfOwnNeverReturns(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		log := memsource.New("orders", 1)
		a := start(t, log.Member("a"))
		h := <-a.granted
		a.stop()
		if err := <-a.ended; err == nil {
			t.Error("Run = nil while own runs")
		}
		h.give()
	})
}

func TestScriptedGrantTakesAPartitionFromAHolderThatIsNotTold(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		log := memsource.New("orders", 1)
		g := log.Group(memsource.DefaultGroup)
		g.Script()
		g.SetGeneration(7)
		a, b := start(t, log.Member("a")), start(t, log.Member("b"))
		g.Grant(a.Member, "orders", 0)
		old := <-a.granted
		mustConfirm(t, old, 7)
		g.Grant(b.Member, "orders", 0)
		mustConfirm(t, <-keep(b), 7)
		if old.ctx.Err() != nil {
			t.Error("the old holder was told")
		}
		mustBeLost(t, old)

		g.SetGeneration(1)
		g.Grant(a.Member, "orders", 0)
		synctest.Wait()
		if len(a.granted) != 0 {
			t.Fatal("own was called a second time before it returned from the first")
		}
		old.give()
		h := <-a.granted
		mustConfirm(t, h, 1)
		g.Lose(a.Member, "orders", 0, errors.New("because"))
		mustBeLost(t, h)
		h.give()
		a.end(t)
		b.end(t)
	})
}

// keep returns a channel with the next tenure, which is given back when it is
// drained or lost.
func keep(p *process) <-chan held {
	h := <-p.granted
	go giveWhenAsked(h)
	c := make(chan held, 1)
	c <- h
	return c
}

func giveWhenAsked(h held) {
	select {
	case <-h.Draining():
	case <-h.ctx.Done():
	}
	h.give()
}

func TestFrozenMemberExpiresAfterTheTermAndHearsOfItWhenItThaws(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		log := memsource.New("orders", 1)
		a := start(t, log.Member("a"))
		h := <-a.granted
		a.Freeze()
		answered := make(chan error, 1)
		go func() {
			_, err := h.Confirm(t.Context(), seen(h))
			answered <- err
		}()
		b := start(t, log.Member("b"))
		begin := time.Now()
		hb := <-keep(b)
		if took := time.Since(begin); took != memsource.DefaultTerm {
			t.Errorf("expired after %v", took)
		}
		mustConfirm(t, hb, 2)
		if h.ctx.Err() != nil || len(answered) != 0 {
			t.Fatal("the frozen member heard of it")
		}
		a.Thaw()
		if err := <-answered; !errors.Is(err, consumer.ErrLost) {
			t.Errorf("Confirm = %v; want ErrLost", err)
		}
		mustBeLost(t, h)
		h.give()
		a.end(t)
		b.end(t)
	})
}

func TestMemberOfTheSameNameSwapsInAtTheSameNumber(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		log := memsource.New("orders", 1)
		old := start(t, log.Member("a"))
		h := <-old.granted
		old.Freeze()
		fresh := start(t, log.Member("a"))
		mustConfirm(t, <-keep(fresh), 1)
		old.Thaw()
		mustBeLost(t, h)
		h.give()
		if err := <-old.ended; !errors.Is(err, memsource.ErrFenced) {
			t.Errorf("Run = %v; want ErrFenced", err)
		}
		fresh.end(t)
	})
}

func TestConfirmThatIsAnsweredAfterTheLossDoesNotCount(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		log := memsource.New("orders", 1)
		g := log.Group(memsource.DefaultGroup)
		asked, let := make(chan memsource.Confirmation), make(chan struct{})
		g.OnConfirm(func(_ context.Context, c memsource.Confirmation) error {
			asked <- c
			<-let
			return nil
		})
		a := start(t, log.Member("a"))
		h := <-a.granted
		answered := make(chan error, 1)
		go func() {
			_, err := h.Confirm(t.Context(), seen(h))
			answered <- err
		}()
		if c := <-asked; c.Err != nil || c.Lease.Generation != 1 {
			t.Errorf("the group's answer was %+v", c)
		}
		g.Lose(a.Member, "orders", 0, nil)
		close(let)
		if err := <-answered; !errors.Is(err, consumer.ErrLost) {
			t.Errorf("Confirm = %v; want ErrLost", err)
		}
		h.give()
		a.end(t)
	})
}

func TestPartitionThatWasGivenUpStaysIdleUntilTheMembersChange(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		log := memsource.New("orders", 1)
		g := log.Group(memsource.DefaultGroup)
		a := start(t, log.Member("a"))
		(<-a.granted).give()
		synctest.Wait()
		if owner := g.Owner("orders", 0); owner != "" || len(a.granted) != 0 {
			t.Fatalf("granted again to %q", owner)
		}
		b := start(t, log.Member("b"))
		synctest.Wait()
		if g.Owner("orders", 0) == "" {
			t.Error("nobody has it after a join")
		}
		a.end(t)
		b.end(t)
	})
}

func TestWhatAMemberGaveUpIsTakenByAnotherThatHasItsShareAlready(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		log := memsource.New("orders", 4)
		g := log.Group(memsource.DefaultGroup)
		a, b := start(t, log.Member("a")), start(t, log.Member("b"))
		go func() {
			for h := range a.granted {
				go giveWhenAsked(h)
			}
		}()
		synctest.Wait()
		x, y := <-b.granted, <-b.granted
		if x.Origin().Partition.Number > y.Origin().Partition.Number {
			x, y = y, x
		}
		go giveWhenAsked(y)
		n := x.Origin().Partition.Number
		x.give() // unasked
		synctest.Wait()
		if owner := g.Owner("orders", n); owner != "a" {
			t.Errorf("it is %q who has what b gave up, want a", owner)
		}
		if other := <-b.granted; other.Origin().Partition.Number == n { // from a, which would have three
			t.Errorf("b was granted %d again", n)
		} else {
			other.give()
		}
		a.end(t)
		b.end(t)
		close(a.granted)
	})
}

func TestKilledMemberLosesEverythingAndRunSaysSo(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		log := memsource.New("orders", 1)
		a := start(t, log.Member("a"))
		h := <-a.granted
		a.Kill()
		mustBeLost(t, h)
		h.Mirror(epoch.Fence{Origin: h.Origin(), Next: 5})
		if _, ok := log.Group(memsource.DefaultGroup).Position("orders", 0); ok {
			t.Error("a dead process published a position")
		}
		h.give()
		if err := <-a.ended; !errors.Is(err, memsource.ErrKilled) {
			t.Errorf("Run = %v; want ErrKilled", err)
		}
	})
}

func TestDeletedGroupStartsOverAtOne(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		log := memsource.New("orders", 1)
		g := log.Group(memsource.DefaultGroup)
		for range 3 {
			a := start(t, log.Member("a"))
			(<-keep(a)).Mirror(epoch.Fence{})
			a.end(t)
		}
		if n := g.Generation(); n != 3 {
			t.Fatalf("generation %d after three grants", n)
		}
		g.Delete()
		a := start(t, log.Member("a"))
		mustConfirm(t, <-keep(a), 1)
		a.end(t)
	})
}

func TestRunOfAMissingTopicOrASecondRunIsAnError(t *testing.T) {
	m := memsource.NewBroker().Group("g", "orders").Member("a")
	if err := m.Run(t.Context(), func(error) {}, nil); err == nil {
		t.Error("Run of a topic that does not exist returned nil")
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	m = memsource.New("orders", 1).Member("a")
	own := func(context.Context, consumer.Tenure) {}
	if err := m.Run(ctx, func(error) {}, own); err != nil {
		t.Errorf("Run with a context that has ended = %v", err)
	}
	if err := m.Run(ctx, func(error) {}, own); err == nil {
		t.Error("a second Run returned nil")
	}
}

func TestUntilAppliedEndsWhenThePositionsHavePassedEveryMessage(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		log := memsource.New("orders", 2)
		if ctx := log.UntilApplied(t.Context()); ctx.Err() == nil {
			t.Error("continues although there is nothing to apply")
		}
		log.Append(1, "x", "y", "z")
		log.Delete(1, 2)
		ctx := log.UntilApplied(t.Context())
		a := start(t, log.Member("a"))
		for range 2 {
			h := <-keep(a)
			if h.Origin().Partition.Number == 1 {
				h.Mirror(epoch.Fence{Origin: h.Origin(), Next: 1})
				synctest.Wait()
				if ctx.Err() != nil {
					t.Error("ended at offset 1 of 3")
				}
				h.Mirror(epoch.Fence{Origin: h.Origin(), Next: 2})
			}
		}
		<-ctx.Done()
		a.end(t)
	})
}

func TestMembersComeAndGoAndEveryPartitionIsAlwaysSomebodys(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		log := memsource.New("orders", 7)
		g := log.Group(memsource.DefaultGroup)
		var live []*process
		settle := func() {
			synctest.Wait()
			count := map[string]int{}
			for n := range int32(7) {
				count[g.Owner("orders", n)]++
			}
			for _, p := range live {
				if c := count[p.Name()]; c < 7/len(live) || c > 7/len(live)+1 {
					t.Fatalf("%d members: %v", len(live), count)
				}
			}
		}
		for i := range 5 {
			p := start(t, log.Member(fmt.Sprint("m", i)))
			go func() {
				for {
					select {
					case <-t.Context().Done():
						return
					case h := <-p.granted:
						go giveWhenAsked(h)
					}
				}
			}()
			live = append(live, p)
			settle()
		}
		for len(live) > 1 {
			live[0].end(t)
			live = live[1:]
			settle()
		}
		live[0].end(t)
	})
}
