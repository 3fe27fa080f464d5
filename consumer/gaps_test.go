package consumer_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/epochfence/epochfence/consumer"
)

// A process that was refused as stale goes on asking the source, and as long as
// that says no it makes no claim.
func TestR6AfterStaleNothingIsTakenBackWithoutAConfirmation(t *testing.T) {
	inBubble(t, 2, func(r *rig) {
		g := r.group()
		g.Script()
		g.SetNumber(4)
		a := r.start("a", record, options{})
		b := r.start("b", record, options{})
		synctest.Wait()
		g.Grant(a.member, r.log.Name(), 0)
		g.Grant(a.member, r.log.Name(), 1)
		synctest.Wait()
		g.Grant(b.member, r.log.Name(), 0) // and a is not told
		synctest.Wait()
		r.fill(0, 8)
		r.fill(1, 8)
		<-g.UntilApplied(r.Context()).Done()
		r.pass(time.Minute)
		if claims := seen[consumer.Claimed](a); len(claims) != 2 {
			t.Errorf("a claimed %d times", len(claims))
		}
		if n := len(seen[consumer.Stale](b)); n != 0 {
			t.Errorf("the rightful owner was thrown out %d times", n)
		}
		a.end()
		b.end()
	})
}

func TestR10AGapThatTheSourceExplainsIsPassedOver(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		want := r.fill(0, 9)
		r.log.Delete(0, 0, 3, 4)
		p := r.start("a", record, options{MaxBatch: 2})
		r.pass(time.Minute)
		p.end()
		r.wantEffects(0, want[1], want[2], want[5], want[6], want[7], want[8])
		r.wantNext(0, 9)
		if h, d := seen[consumer.Halted](p), seen[consumer.InDoubt](p); len(h)+len(d) > 0 {
			t.Errorf("%v %v", h, d)
		}
	})
}
