package guard_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/guard"
	"github.com/epochfence/epochfence/cas/memstore"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/suites/explore"
)

var explored = flag.Int("explore", 300, "how many runs of random faults")

// Owners of one partition apply its messages to items, and are paused between any two requests, for
// as long as others need to overtake them. Requests and answers are lost, writes land late, and an
// operator sets the position back. In each era, each item has each message that the fence has passed
// exactly once, and no other twice, in order. And what is observed of a change is what became of it.
func TestInEachEraEachMessageChangesAnItemOnceAndInOrder(t *testing.T) {
	explore.Each(t, *explored, func(t *testing.T, seed uint64) {
		random := rand.New(rand.NewPCG(seed, 1))
		x := &exploration{
			T: t, store: memstore.New(), rand: random, schedule: &explore.Schedule{Rand: random},
			outcomes: map[string]string{}, decided: map[string]decided{},
		}
		x.play()
	})
}

const (
	messages = 12
	items    = 4
)

// keysOf are the items that a message changes.
func keysOf(offset epoch.Offset) []string {
	var keys []string
	for n := range 1 + offset%3 {
		keys = append(keys, fmt.Sprint("item", (offset*7+n*5)%items))
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

type exploration struct {
	*testing.T
	store    *memstore.Store
	rand     *rand.Rand
	schedule *explore.Schedule
	outcomes map[string]string
	decided  map[string]decided // by item, era and message

	mu    sync.Mutex
	fence epoch.Fence
	eras  []era
}

// era is the time between two changes of the position by an operator.
type era struct {
	number   epoch.Epoch
	from, to epoch.Offset // what the fence has passed
}

// decided counts the decisions about a message's change of an item.
type decided map[guard.Decision]int

func (x *exploration) play() {
	ctx, stop := context.WithCancel(x.Context())
	var owners sync.WaitGroup
	x.eras = []era{{}}
	for range 400 {
		synctest.Wait()
		switch n := x.rand.IntN(40); {
		case n == 0:
			x.rewinds()
		case n < 4:
			owners.Go(func() { x.own(ctx) })
		case n < 6:
			x.schedule.Lands()
		case n < 10:
			<-time.After(time.Duration(x.rand.IntN(2000)) * time.Millisecond)
		default:
			x.schedule.LetGo(x.schedule.Fate())
		}
	}
	for n := 0; x.position() < messages; n++ {
		if n%200 == 0 {
			owners.Go(func() { x.own(ctx) })
		}
		if n > 20_000 {
			x.Fatalf("the position stays at %d", x.position())
		}
		synctest.Wait()
		if !x.schedule.LetGo(explore.CarriedOut) {
			<-time.After(time.Second)
		}
	}
	for x.schedule.Lands() {
	}
	stop()
	owners.Wait()
	x.check()
}

func (x *exploration) position() epoch.Offset {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.fence.Next
}

// rewinds sets the position back, as an operator does.
func (x *exploration) rewinds() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.fence.Epoch++
	x.eras[len(x.eras)-1].to = x.fence.Next
	x.fence.SetUnder, x.fence.Next = x.fence.Epoch, epoch.Offset(x.rand.Int64N(int64(x.fence.Next)+1))
	x.eras = append(x.eras, era{number: x.fence.Epoch, from: x.fence.Next})
}

// own claims the partition and applies its messages until it is stopped. Half of the owners write each
// item at once, and half when a batch of messages is complete.
func (x *exploration) own(ctx context.Context) {
	x.mu.Lock()
	x.fence.Epoch++
	mine := x.fence
	x.mu.Unlock()
	store, from := explore.Store{Store: x.store, Schedule: x.schedule}, mine.Next
	first := guard.Stamp{Partition: orders, Log: "log", Era: mine.SetUnder, Epoch: mine.Epoch, Mark: epoch.NoMark}
	for from < messages {
		to := min(from+1+epoch.Offset(mine.Epoch%3), messages)
		first.Offset = from
		apply := x.inBatch
		if mine.Epoch%2 == 0 {
			apply = x.atOnce
		}
		if !apply(ctx, store, first, to) {
			return
		}
		if _, err := x.schedule.Pause(ctx); err != nil || !x.advance(mine.Epoch, &from, to) {
			return
		}
	}
}

func (x *exploration) atOnce(ctx context.Context, store cas.Store, s guard.Stamp, to epoch.Offset) bool {
	for ; s.Offset < to; s.Offset++ {
		m := guard.New(store, s).Observe(x.observe)
		if !x.apply(s.Era, s.Offset, func(key string, change guard.Change) ([]byte, error) { return m.Update(ctx, key, change) }, x.had) {
			return false
		}
	}
	return true
}

func (x *exploration) inBatch(ctx context.Context, store cas.Store, s guard.Stamp, to epoch.Offset) bool {
	b, outcomes := guard.Begin(store, s), map[string]string{}
	b.Observe(x.observe)
	for offset := s.Offset; offset < to; offset++ {
		at := epoch.Position{Offset: offset, Mark: s.Mark}
		if !x.apply(s.Era, offset, func(key string, change guard.Change) ([]byte, error) { return b.Update(ctx, at, key, change) },
			func(what, outcome string) { outcomes[what] = outcome }) {
			return false
		}
	}
	if b.Write(ctx) != nil {
		return false
	}
	for what, outcome := range outcomes {
		x.had(what, outcome)
	}
	return true
}

// apply applies a message to its items.
func (x *exploration) apply(e epoch.Epoch, offset epoch.Offset, update func(string, guard.Change) ([]byte, error), had func(what, outcome string)) bool {
	for _, key := range keysOf(offset) {
		word := fmt.Sprintf("%d:%d", e, offset)
		outcome, err := update(key, add(word))
		switch {
		case errors.Is(err, guard.ErrPassed):
			return true
		case err != nil:
			return false
		}
		had(key+" "+word, string(outcome))
	}
	return true
}

// had wants a message's change of an item to have the same outcome whenever it is asked for.
func (x *exploration) had(what, outcome string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if was, known := x.outcomes[what]; known && was != outcome {
		x.Errorf("%s: outcome %s, was %s", what, outcome, was)
	}
	x.outcomes[what] = outcome
}

func (x *exploration) observe(e guard.Event) {
	x.mu.Lock()
	defer x.mu.Unlock()
	what := changeOf(e.Key, e.Stamp.Era, e.Stamp.Offset)
	if x.decided[what] == nil {
		x.decided[what] = decided{}
	}
	x.decided[what][e.Decision]++
	if refused := e.Decision == guard.Stale; refused != (e.Decision != guard.InDoubt && e.Seen > e.Stamp.Epoch) {
		x.Errorf("%s is %v under epoch %d, after %d", what, e.Decision, e.Stamp.Epoch, e.Seen)
	}
}

func changeOf(key string, era epoch.Epoch, offset epoch.Offset) string {
	return fmt.Sprintf("%s %d:%d", key, era, offset)
}

func (x *exploration) advance(mine epoch.Epoch, from *epoch.Offset, to epoch.Offset) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.fence.Epoch != mine || x.fence.Next != *from {
		return false
	}
	x.fence.Next, *from = to, to
	return true
}

// check compares the items with what the fence has passed in each era.
func (x *exploration) check() {
	x.eras[len(x.eras)-1].to = x.fence.Next
	for n := range items {
		key := fmt.Sprint("item", n)
		words := strings.Fields(string(read(x.T, x.store, key).Value))
		for _, e := range x.eras {
			var got []epoch.Offset
			for _, word := range words {
				var number epoch.Epoch
				var offset epoch.Offset
				if _, err := fmt.Sscanf(word, "%d:%d", &number, &offset); err != nil {
					x.Fatal(err)
				}
				if number == e.number {
					got = append(got, offset)
				}
			}
			x.compare(key, e, got, words)
			x.compareDecisions(key, e, got)
		}
	}
}

func (x *exploration) compare(key string, e era, got []epoch.Offset, words []string) {
	if !slices.IsSorted(got) || len(slices.Compact(slices.Clone(got))) != len(got) {
		x.Errorf("era %d of %s: %v is not once and in order: %v", e.number, key, got, words)
	}
	for offset := e.from; offset < e.to; offset++ {
		if slices.Contains(keysOf(offset), key) && !slices.Contains(got, offset) {
			x.Errorf("era %d of %s: the fence has passed %d, and its change is missing: %v", e.number, key, offset, words)
		}
	}
}

// compareDecisions compares the changes that an item has with what was observed of each.
func (x *exploration) compareDecisions(key string, e era, got []epoch.Offset) {
	for offset := epoch.Offset(0); offset < messages; offset++ {
		what := changeOf(key, e.number, offset)
		d, has := x.decided[what], slices.Contains(got, offset)
		switch {
		case d[guard.Changed] > 1:
			x.Errorf("%s was changed %d times: %v", what, d[guard.Changed], d)
		case !has && d[guard.Changed]+d[guard.Repeated] > 0:
			x.Errorf("%s: the item lacks the change: %v", what, d)
		case has && d[guard.Changed] == 0 && d[guard.InDoubt] == 0:
			x.Errorf("%s: the item has the change, and nobody has reported that: %v", what, d)
		case has && e.from <= offset && offset < e.to && d[guard.Changed]+d[guard.Repeated] == 0:
			x.Errorf("%s: the fence has passed the change, and nobody has reported it: %v", what, d)
		}
	}
}
