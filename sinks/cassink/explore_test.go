package cassink_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
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
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/sinks/cassink"
)

var explored = flag.Int("explore", 200, "how many runs of random faults")

// Owners of one partition apply its messages, and are paused before any request for as long as others
// need to overtake them. Requests and answers are lost, writes land late, reads lag, messages fail at one owner and
// not at another, dead letters are replayed, and an operator sets the position back. In each era, each
// item has each message that the fence has passed exactly once, and no other twice.
func TestInEachEraEachMessageTakesEffectOnce(t *testing.T) {
	explore.Each(t, *explored, func(t *testing.T, seed uint64) {
		random := rand.New(rand.NewPCG(seed, 2))
		x := &exploration{
			T: t, store: memstore.New(), rand: random, schedule: &explore.Schedule{Rand: random}, outcomes: map[string]string{},
			lags: seed%2 == 1, history: map[string][]cas.Item{},
		}
		x.play()
	})
}

const (
	messages = 12
	items    = 4
)

var orders = epoch.Partition{Group: "billing", Topic: "orders", Number: 3}

func origin() epoch.Origin { return epoch.Origin{Partition: orders, Log: "log", Source: "source"} }

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
	operator operate.Operator
	rand     *rand.Rand
	schedule *explore.Schedule
	outcomes map[string]string

	lags     bool      // reads may answer with items that are older
	receiver *receiver // of the entries that messages add to the outbox, or nil

	mu      sync.Mutex
	history map[string][]cas.Item
	eras    []era
	calm    bool
}

type era struct {
	number   epoch.Epoch
	from, to epoch.Offset // what the fence has passed
}

func (x *exploration) play() {
	ctx, stop := context.WithCancel(x.Context())
	var owners sync.WaitGroup
	direct := x.sink(x.store)
	x.operator = direct.Operator()
	at := epoch.Position{Mark: epoch.NoMark}
	x.must(direct.Seed(ctx, []epoch.Start{{Origin: origin(), Next: at, Earliest: at}}))
	x.eras = []era{{}}
	steps := 500
	if x.receiver != nil { // relays need as many again, and more
		steps = 1000
	}
	for range steps {
		synctest.Wait()
		switch n := x.rand.IntN(50); {
		case n == 0:
			x.rewinds(ctx)
		case n == 1:
			x.requests(ctx)
		case n < 5:
			owners.Go(func() { x.own(ctx) })
		case n < 8:
			x.schedule.Lands()
		case n < 12:
			<-time.After(time.Duration(x.rand.IntN(3000)) * time.Millisecond)
		default:
			x.schedule.LetGo(x.schedule.Fate())
		}
	}
	x.mu.Lock()
	x.calm = true
	x.mu.Unlock()
	x.drains(ctx, &owners)
	for x.schedule.Lands() {
	}
	stop()
	owners.Wait()
	x.check()
}

// drains lets everything be carried out until all messages and replays are applied.
func (x *exploration) drains(ctx context.Context, owners *sync.WaitGroup) {
	for n := 0; ; n++ {
		if n%300 == 0 {
			if x.position() >= messages && !x.requests(ctx) && x.sent(ctx) {
				return
			}
			owners.Go(func() { x.own(ctx) })
		}
		if n > 30_000 {
			x.Fatalf("the position stays at %d", x.position())
		}
		synctest.Wait()
		if !x.schedule.LetGo(explore.CarriedOut) {
			<-time.After(time.Second)
		}
	}
}

func (x *exploration) sink(s cas.Store) *cassink.Sink {
	sink, err := cassink.Open(x.Context(), s, cassink.Options{})
	x.must(err)
	cassink.RideLess(sink)
	return sink
}

func (x *exploration) must(err error) {
	x.Helper()
	if err != nil {
		x.Fatal(err)
	}
}

func (x *exploration) position() epoch.Offset {
	p, err := x.operator.Partition(x.Context(), orders)
	x.must(err)
	return p.Next
}

// rewinds sets the position back, as an operator does.
func (x *exploration) rewinds(ctx context.Context) {
	p, err := x.operator.Partition(ctx, orders)
	x.must(err)
	a := operate.NewAct(operate.ActRewind, p.Fence, "anna", "again")
	a.To = &epoch.Position{Offset: epoch.Offset(x.rand.Int64N(int64(p.Next) + 1)), Mark: epoch.NoMark}
	after, err := x.operator.Act(ctx, a)
	x.must(err)
	x.mu.Lock()
	defer x.mu.Unlock()
	x.eras[len(x.eras)-1].to = p.Next
	x.eras = append(x.eras, era{number: after.Epoch, from: after.Next})
}

// requests has all dead letters replayed, and reports whether there are any.
func (x *exploration) requests(ctx context.Context) bool {
	letters, err := x.operator.DeadLetters(ctx, operate.DeadLetterQuery{})
	x.must(err)
	for _, l := range letters {
		if !l.Requested {
			_, err := x.operator.DoDeadLetter(ctx, operate.DeadLetterAct{Kind: operate.Replay, Seen: l, By: "anna", Reason: "fixed"})
			x.must(err)
		}
	}
	return len(letters) > 0
}

// own claims the partition and applies its messages until it is stopped.
func (x *exploration) own(ctx context.Context) {
	sink := x.sink(lagging{explore.Store{Store: x.store, Schedule: x.schedule}, x})
	ctx, stop := context.WithCancel(ctx)
	var relay sync.WaitGroup
	defer relay.Wait()
	defer stop()
	seen, err := epoch.FenceOf(ctx, sink, orders)
	if err != nil {
		return
	}
	mine, err := sink.Claim(ctx, seen, epoch.NewClaim(epoch.Lease{Origin: origin(), Generation: 1, Owner: "owner"}))
	if err == nil && x.receiver != nil {
		relay.Go(func() {
			x.relays(ctx, sink, mine)
			stop()
		})
	}
	for err == nil {
		if err = x.replays(ctx, sink, mine); err == nil && mine.Next < messages {
			mine, err = x.applies(ctx, sink, mine)
		} else if err == nil && !x.pauses(ctx) {
			return
		}
	}
}

func (x *exploration) pauses(ctx context.Context) bool {
	_, err := x.schedule.Pause(ctx)
	return err == nil
}

var errPoison = errors.New("poison")

// applies commits some messages. One that fails becomes a dead letter.
func (x *exploration) applies(ctx context.Context, sink *cassink.Sink, mine epoch.Fence) (epoch.Fence, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	a := epoch.Advance{Partition: orders, Claim: mine.Claim, From: mine.Next, To: min(mine.Next+1+epoch.Offset(mine.Epoch%3), messages), Mark: epoch.NoMark}
	outcomes := map[string]string{}
	var calls []func(context.Context, *cassink.Tx) error
	var failing epoch.Message
	for offset := a.From; offset < a.To; offset++ {
		m := epoch.Message{Partition: orders, Offset: offset, Mark: epoch.NoMark}
		calls = append(calls, func(ctx context.Context, tx *cassink.Tx) error {
			failing = m
			return x.handle(ctx, tx, m, x.era(mine.Epoch), outcomes, true)
		})
	}
	err := sink.Commit(ctx, []epoch.Advance{a}, epoch.TxOptions{}, calls...)
	if errors.Is(err, errPoison) {
		if err = x.commit(ctx, sink, &mine, failing.Offset, func(ctx context.Context, tx *cassink.Tx, m epoch.Message) error {
			return x.handle(ctx, tx, m, x.era(mine.Epoch), map[string]string{}, false)
		}); err != nil {
			return mine, err
		}
		err = x.commit(ctx, sink, &mine, failing.Offset+1, func(ctx context.Context, tx *cassink.Tx, m epoch.Message) error {
			return sink.DeadLetter(ctx, tx, m, mine.Epoch, errPoison)
		})
		return mine, err
	}
	if err == nil {
		mine.Next = a.To
		for what, outcome := range outcomes {
			x.had(what, outcome)
		}
	}
	return mine, err
}

// commit applies the messages before an offset, one in each call.
func (x *exploration) commit(ctx context.Context, sink *cassink.Sink, mine *epoch.Fence, to epoch.Offset, do func(context.Context, *cassink.Tx, epoch.Message) error) error {
	if to == mine.Next {
		return nil
	}
	a := epoch.Advance{Partition: orders, Claim: mine.Claim, From: mine.Next, To: to, Mark: epoch.NoMark}
	var calls []func(context.Context, *cassink.Tx) error
	for offset := a.From; offset < a.To; offset++ {
		m := epoch.Message{Partition: orders, Offset: offset, Mark: epoch.NoMark}
		calls = append(calls, func(ctx context.Context, tx *cassink.Tx) error { return do(ctx, tx, m) })
	}
	err := sink.Commit(ctx, []epoch.Advance{a}, epoch.TxOptions{}, calls...)
	if err == nil {
		mine.Next = to
	}
	return err
}

// replays applies the dead letters whose replay is requested.
func (x *exploration) replays(ctx context.Context, sink *cassink.Sink, mine epoch.Fence) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	found, err := operate.RecordsIn[*cassink.Tx](sink).Requests(ctx, []epoch.Partition{orders})
	if err != nil {
		return err
	}
	for _, r := range found.Replays {
		m := r.Message
		m.Replay = r.ID
		a := epoch.Advance{Partition: orders, Claim: mine.Claim, From: mine.Next, To: mine.Next, Mark: mine.Mark}
		err := sink.Commit(ctx, []epoch.Advance{a}, epoch.TxOptions{}, func(ctx context.Context, tx *cassink.Tx) error {
			if err := x.handle(ctx, tx, m, epoch.Epoch(r.ID), map[string]string{}, false); err != nil {
				return err
			}
			return operate.RecordsIn[*cassink.Tx](sink).Replayed(ctx, tx, r, mine)
		})
		if err != nil && !errors.Is(err, operate.ErrRowChanged) {
			return err
		}
	}
	return nil
}

func (x *exploration) era(of epoch.Epoch) (number epoch.Epoch) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, e := range x.eras {
		if e.number <= of {
			number = e.number
		}
	}
	return number
}

// handle is the handler. Of the messages that may, some fail after their first change.
func (x *exploration) handle(ctx context.Context, tx *cassink.Tx, m epoch.Message, under epoch.Epoch, outcomes map[string]string, mayFail bool) error {
	for n, key := range keysOf(m.Offset) {
		word := fmt.Sprintf("%d:%d", under, m.Offset)
		if m.Replay != 0 {
			word = fmt.Sprintf("replay:%d", m.Offset)
		}
		outcome, err := tx.Update(ctx, m, key, add(word))
		if err != nil {
			return err
		}
		outcomes[key+" "+word] = string(outcome)
		if n == 0 && mayFail && x.fails() {
			return errPoison
		}
	}
	return x.adds(tx, m, under)
}

func (x *exploration) fails() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return !x.calm && x.rand.IntN(8) == 0
}

// add appends a word, and returns how many there are.
func add(word string) guard.Change {
	return func(old guard.State) (guard.State, []byte, error) {
		words := append(strings.Fields(string(old.Value)), word)
		return guard.Text(strings.Join(words, " ")), []byte(strconv.Itoa(len(words))), nil
	}
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

// lagging is a store whose caller is paused before each request, and whose reads may lag.
type lagging struct {
	explore.Store
	x *exploration
}

func (l lagging) Get(ctx context.Context, key string) (cas.Item, error) {
	item, err := l.Store.Get(ctx, key)
	if err != nil {
		return cas.Item{}, err
	}
	return l.x.older(item), nil
}

// older returns an item or, if the store lags, one of those before it.
func (x *exploration) older(item cas.Item) cas.Item {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.lags || x.calm {
		return item
	}
	before := x.history[item.Key]
	if n := len(before); n == 0 || before[n-1].Version != item.Version {
		before = append(before, item)
		x.history[item.Key] = before
	}
	return before[len(before)-1-min(x.rand.IntN(6)/2, len(before)-1)]
}

// check compares the items with what the fence has passed in each era.
func (x *exploration) check() {
	x.eras[len(x.eras)-1].to = x.position()
	for n := range items {
		key := fmt.Sprint("item", n)
		state, err := guard.Read(x.Context(), x.store, key)
		x.must(err)
		x.checkWords(key, strings.Fields(string(state.Value)), func(offset epoch.Offset) bool { return slices.Contains(keysOf(offset), key) })
	}
}

// checkWords wants each message of each era once that is to be there.
func (x *exploration) checkWords(key string, words []string, has func(epoch.Offset) bool) {
	replayed := map[epoch.Offset]int{}
	byEra := map[epoch.Epoch][]epoch.Offset{}
	for _, word := range words {
		under, at, _ := strings.Cut(word, ":")
		offset, err := strconv.ParseInt(at, 10, 64)
		x.must(err)
		if under == "replay" {
			replayed[epoch.Offset(offset)]++
			continue
		}
		e, err := strconv.ParseInt(under, 10, 64)
		x.must(err)
		byEra[epoch.Epoch(e)] = append(byEra[epoch.Epoch(e)], epoch.Offset(offset))
	}
	for _, e := range x.eras {
		x.compare(key, e, byEra[e.number], replayed, words, has)
	}
	for offset, n := range replayed {
		if n != 0 {
			x.Errorf("%s: %d replays of %d, and no era lacks it: %v", key, n, offset, words)
		}
	}
}

// compare wants each message of an era once, by itself or by a replay.
func (x *exploration) compare(key string, e era, got []epoch.Offset, replayed map[epoch.Offset]int, words []string, has func(epoch.Offset) bool) {
	if !slices.IsSorted(got) || len(slices.Compact(slices.Clone(got))) != len(got) {
		x.Errorf("era %d of %s: %v is not once and in order: %v", e.number, key, got, words)
	}
	for offset := e.from; offset < e.to; offset++ {
		if !has(offset) || slices.Contains(got, offset) {
			continue
		}
		if replayed[offset] == 0 {
			x.Errorf("era %d of %s: the fence has passed %d, and its change is missing: %v", e.number, key, offset, words)
			continue
		}
		replayed[offset]--
	}
}
