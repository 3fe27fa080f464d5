package memsource_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/memsource"
	"github.com/epochfence/epochfence/internal/suites/bubble"
)

func TestScriptedDrainLeavesThePartitionWithItsHolderUntilOwnReturns(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		log := memsource.New("orders", 2)
		g := log.Group(memsource.DefaultGroup)
		g.Script()
		m := log.Member("a")
		g.Grant(m, "orders", 1) // before it runs
		a := start(t, m)
		h := <-a.granted
		g.Drain(m, "orders", 1)
		g.Drain(m, "orders", 1)
		<-h.Draining()
		mustConfirm(t, h, 1)
		if g.Owner("orders", 1) != "a" {
			t.Error("the partition is free before own has returned")
		}
		h.give()
		synctest.Wait()
		if owner := g.Owner("orders", 1); owner != "" {
			t.Errorf("owned by %q after the drain", owner)
		}
		a.end(t)
	})
}

func TestDrainReachesAHolderThatTheGroupHasForgotten(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		log := memsource.New("orders", 1)
		g := log.Group(memsource.DefaultGroup)
		g.Script()
		a, b := start(t, log.Member("a")), start(t, log.Member("b"))
		g.Grant(a.Member, "orders", 0)
		old := <-a.granted
		g.Grant(b.Member, "orders", 0)
		g.Drain(a.Member, "orders", 0)
		<-old.Draining()
		old.give()
		synctest.Wait()
		if g.Owner("orders", 0) != "b" {
			t.Error("the return of a gave away what is leased to b")
		}
		a.end(t)
		b.end(t)
	})
}

func TestGrantToTheHolderItselfIsALossAndAnotherTenure(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		log := memsource.New("orders", 1)
		g := log.Group(memsource.DefaultGroup)
		g.Script()
		a := start(t, log.Member("a"))
		g.Grant(a.Member, "orders", 0)
		old := <-a.granted
		g.Grant(a.Member, "orders", 0)
		mustBeLost(t, old)
		old.give()
		mustConfirm(t, <-keep(a), 1)
		a.end(t)
	})
}

func TestExpiredMemberThatHearsOfItJoinsAgain(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		log := memsource.New("orders", 1)
		a := start(t, log.Member("a"))
		old := <-a.granted
		log.Group(memsource.DefaultGroup).Expire(a.Member)
		mustBeLost(t, old)
		old.give()
		mustConfirm(t, <-keep(a), 2)
		a.end(t)
	})
}

func TestMemberThatThawsAfterAnotherTookItsNameIsFenced(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		log := memsource.New("orders", 1)
		old := start(t, log.Member("a"))
		h := <-old.granted
		old.Freeze()
		log.Group(memsource.DefaultGroup).Expire(old.Member)
		fresh := start(t, log.Member("a"))
		kept := <-keep(fresh)
		old.Thaw()
		mustBeLost(t, h)
		h.give()
		if err := <-old.ended; !errors.Is(err, memsource.ErrFenced) {
			t.Errorf("Run = %v; want ErrFenced", err)
		}
		if kept.ctx.Err() != nil {
			t.Error("the later member lost its partition to the earlier one")
		}
		fresh.end(t)
	})
}

func TestScriptedNumberMayBeNoLease(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		log := memsource.New("orders", 1)
		g := log.Group(memsource.DefaultGroup)
		g.Script()
		g.SetGeneration(0)
		a := start(t, log.Member("a"))
		g.Grant(a.Member, "orders", 0)
		mustConfirm(t, <-keep(a), 0)
		a.end(t)
	})
}

func TestConfirmHookMayRefuse(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		log := memsource.New("orders", 1)
		g := log.Group(memsource.DefaultGroup)
		a := start(t, log.Member("a"))
		h := <-a.granted
		busy := errors.New("rebalance in progress")
		answers := []error{busy, nil, consumer.ErrLost}
		g.OnConfirm(func(context.Context, memsource.Confirmation) error {
			err := answers[0]
			answers = answers[1:]
			return err
		})
		if _, err := confirm(t, h); !errors.Is(err, busy) || errors.Is(err, consumer.ErrLost) {
			t.Errorf("Confirm = %v; want the hook's error", err)
		}
		mustConfirm(t, h, 1)
		mustBeLost(t, h)
		h.give()
		a.end(t)
	})
}

func TestMistakesOfATestPanic(t *testing.T) {
	broker := memsource.NewBroker()
	log := broker.Create("orders", 2)
	for name, mistake := range map[string]func(){
		"no such partition":      func() { log.Append(2, "x") },
		"negative partition":     func() { log.Trim(-1, 0) },
		"topic exists":           func() { broker.Create("orders", 1) },
		"no partitions":          func() { memsource.New("orders", 0) },
		"fewer partitions":       func() { log.AddPartitions(2) },
		"group without topics":   func() { broker.Group("new") },
		"group with other topic": func() { log.Group("g"); broker.Group("g", "other") },
		"topic of another group": func() { log.Group("g").Owner("other", 0) },
		"no term":                func() { log.Group("g").SetTerm(0) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			mistake()
		}()
	}
	log.Append(1, "x") // the broker is not left locked
}
