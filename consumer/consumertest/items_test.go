package consumertest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http/httptest"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/guard"
	"github.com/epochfence/epochfence/cas/memstore"
	"github.com/epochfence/epochfence/cas/pgstore"
	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/consumertest"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/servers/pgtest"
	"github.com/epochfence/epochfence/sinks/cassink"
)

// This file has handlers that change items.

// shop is what such a handler has beside its transaction.
type shop struct {
	store cas.Store
	sink  *cassink.Sink
	url   string // of another system
}

type itemHandler struct {
	name  string
	makes func(s shop) consumer.Handlers[*cassink.Tx]
	cause string
	o     consumertest.Options
}

func eachItem(f func(ctx context.Context, tx *cassink.Tx, m consumer.Message, e epoch.Epoch) error) consumer.Handlers[*cassink.Tx] {
	return consumer.Each(f)
}

func sale(m consumer.Message) string  { return fmt.Sprint("sales/", place(m)) }
func stock(m consumer.Message) string { return "stock/" + item(m) }

func count(s guard.State) int {
	n, _ := strconv.Atoi(string(s.Value))
	return n
}

// put sets an item.
func put(ctx context.Context, tx *cassink.Tx, m consumer.Message, key, value string) error {
	_, err := tx.Update(ctx, m, key, func(guard.State) (guard.State, []byte, error) { return guard.Text(value), nil, nil })
	return err
}

// add adds to the number that an item has.
func add(ctx context.Context, tx *cassink.Tx, m consumer.Message, key string, n int) error {
	_, err := tx.Update(ctx, m, key, func(old guard.State) (guard.State, []byte, error) {
		return guard.Text(strconv.Itoa(count(old) + n)), nil, nil
	})
	return err
}

var errNoneLeft = errors.New("none is left")

// takeOne takes one of the stock, if there is one.
func takeOne(ctx context.Context, tx *cassink.Tx, m consumer.Message) error {
	_, err := tx.Update(ctx, m, stock(m), func(old guard.State) (guard.State, []byte, error) {
		if count(old) < 1 {
			return old, nil, consumer.Permanent(errNoneLeft)
		}
		return guard.Text(strconv.Itoa(count(old) - 1)), nil, nil
	})
	return err
}

var itemFaults = []itemHandler{
	{name: "reads the clock", cause: "a clock", makes: func(shop) consumer.Handlers[*cassink.Tx] {
		return eachItem(func(ctx context.Context, tx *cassink.Tx, m consumer.Message, _ epoch.Epoch) error {
			return put(ctx, tx, m, sale(m), time.Now().Format(time.RFC3339Nano))
		})
	}},
	{name: "reads the clock for a field", cause: "a clock", o: consumertest.Options{Ignore: []string{"sales.by"}}, makes: func(shop) consumer.Handlers[*cassink.Tx] {
		return eachItem(func(ctx context.Context, tx *cassink.Tx, m consumer.Message, _ epoch.Epoch) error {
			return put(ctx, tx, m, sale(m), fmt.Sprintf(`{"by": %d, "at": %q}`, rand.Int(), time.Now().Format(time.DateOnly)))
		})
	}},
	{name: "draws a random number", cause: "random numbers", makes: func(shop) consumer.Handlers[*cassink.Tx] {
		return eachItem(func(ctx context.Context, tx *cassink.Tx, m consumer.Message, _ epoch.Epoch) error {
			return put(ctx, tx, m, sale(m), fmt.Sprintf("%016x", rand.Uint64()))
		})
	}},
	{name: "counts in its change", cause: "a counter", makes: func(shop) consumer.Handlers[*cassink.Tx] {
		n := 0
		return eachItem(func(ctx context.Context, tx *cassink.Tx, m consumer.Message, _ epoch.Epoch) error {
			_, err := tx.Update(ctx, m, stock(m), func(guard.State) (guard.State, []byte, error) {
				n++
				return guard.Text(strconv.Itoa(n)), nil, nil
			})
			return err
		})
	}},
	{name: "remembers what it has seen", cause: "memory", makes: func(shop) consumer.Handlers[*cassink.Tx] {
		seen := map[int64]bool{}
		return eachItem(func(ctx context.Context, tx *cassink.Tx, m consumer.Message, _ epoch.Epoch) error {
			if seen[place(m)] {
				return nil
			}
			seen[place(m)] = true
			return put(ctx, tx, m, sale(m), item(m))
		})
	}},
	{name: "gives up at its third attempt", cause: "memory", makes: func(shop) consumer.Handlers[*cassink.Tx] {
		attempts := map[int64]int{}
		return eachItem(func(ctx context.Context, tx *cassink.Tx, m consumer.Message, _ epoch.Epoch) error {
			if attempts[place(m)]++; attempts[place(m)] > 3 {
				return nil
			}
			return put(ctx, tx, m, sale(m), item(m))
		})
	}},
	{name: "resumes after the update that it has reached", cause: "memory", makes: func(shop) consumer.Handlers[*cassink.Tx] {
		taken := map[int64]bool{}
		return eachItem(func(ctx context.Context, tx *cassink.Tx, m consumer.Message, _ epoch.Epoch) error {
			if !taken[place(m)] {
				if err := add(ctx, tx, m, stock(m), -1); err != nil {
					return err
				}
				taken[place(m)] = true
			}
			err := put(ctx, tx, m, sale(m), item(m))
			if err == nil {
				delete(taken, place(m))
			}
			return err
		})
	}},
	{name: "writes to the store itself", cause: "a write outside", makes: func(s shop) consumer.Handlers[*cassink.Tx] {
		return eachItem(func(ctx context.Context, tx *cassink.Tx, m consumer.Message, _ epoch.Epoch) error {
			seen, err := s.store.Get(ctx, "log")
			if err == nil {
				_, err = s.store.Swap(ctx, seen, append(seen.Value, m.Value...), nil)
			}
			return errors.Join(err, takeOne(ctx, tx, m))
		})
	}},
	{name: "changes an item without its transaction", cause: "a write outside", makes: func(s shop) consumer.Handlers[*cassink.Tx] {
		return eachItem(func(ctx context.Context, _ *cassink.Tx, m consumer.Message, _ epoch.Epoch) error {
			_, err := guard.At(s.store, m).Update(ctx, stock(m), func(old guard.State) (guard.State, []byte, error) {
				return guard.Text(strconv.Itoa(count(old) - 1)), nil, nil
			})
			return err
		})
	}},
	{name: "decides by what it reads of another item", cause: "that the handler decides about one item", makes: func(shop) consumer.Handlers[*cassink.Tx] {
		return eachItem(func(ctx context.Context, tx *cassink.Tx, m consumer.Message, _ epoch.Epoch) error {
			there, err := tx.Read(ctx, stock(m))
			if err != nil {
				return err
			}
			if count(there) == 0 {
				return put(ctx, tx, m, sale(m), "sold out")
			}
			return errors.Join(add(ctx, tx, m, stock(m), -1), put(ctx, tx, m, sale(m), "sold"))
		})
	}},
	{name: "copies one item to another", cause: "that the handler decides about one item", makes: func(s shop) consumer.Handlers[*cassink.Tx] {
		return eachItem(func(ctx context.Context, tx *cassink.Tx, m consumer.Message, _ epoch.Epoch) error {
			before, err := tx.Read(ctx, stock(m))
			if err != nil {
				return err
			}
			return errors.Join(put(ctx, tx, m, sale(m), string(before.Value)), add(ctx, tx, m, stock(m), -1))
		})
	}},
	{name: "writes an item for each call of its batch", cause: "that the handler counts or combines", makes: func(shop) consumer.Handlers[*cassink.Tx] {
		return consumer.Batches(func(ctx context.Context, tx *cassink.Tx, ms []consumer.Message, _ epoch.Epoch) error {
			return put(ctx, tx, ms[0], sale(ms[0]), strconv.Itoa(len(ms)))
		})
	}},
	{name: "sums up a batch under its last message", cause: "that the handler changes an item once for several messages", makes: func(shop) consumer.Handlers[*cassink.Tx] {
		return consumer.Batches(func(ctx context.Context, tx *cassink.Tx, ms []consumer.Message, _ epoch.Epoch) error {
			return add(ctx, tx, ms[len(ms)-1], "total", len(ms))
		})
	}},
	{name: "reads from the store what it writes", cause: "that the handler", makes: func(s shop) consumer.Handlers[*cassink.Tx] {
		return eachItem(func(ctx context.Context, tx *cassink.Tx, m consumer.Message, _ epoch.Epoch) error {
			old, err := guard.Read(ctx, s.store, stock(m))
			if err != nil {
				return err
			}
			return put(ctx, tx, m, stock(m), strconv.Itoa(count(old)-1))
		})
	}},
	{name: "ranges over a map", cause: "the order of a Go map", makes: func(shop) consumer.Handlers[*cassink.Tx] {
		return eachItem(func(ctx context.Context, tx *cassink.Tx, m consumer.Message, _ epoch.Epoch) error {
			line := 0
			for part := range map[string]int{"a": 1, "b": 2, "c": 3, "d": 4, "e": 5, "f": 6, "g": 7} {
				line++
				if err := put(ctx, tx, m, fmt.Sprint(sale(m), "/", part), strconv.Itoa(line)); err != nil {
					return err
				}
			}
			return nil
		})
	}},
	{name: "makes an id of the epoch", cause: "the epoch", makes: func(shop) consumer.Handlers[*cassink.Tx] {
		return eachItem(func(ctx context.Context, tx *cassink.Tx, m consumer.Message, e epoch.Epoch) error {
			return put(ctx, tx, m, sale(m), fmt.Sprintf("%d-%d", e, place(m)))
		})
	}},
	{name: "calls without a key", cause: "a call of another system", makes: func(s shop) consumer.Handlers[*cassink.Tx] {
		return eachItem(func(ctx context.Context, tx *cassink.Tx, m consumer.Message, _ epoch.Epoch) error {
			return errors.Join(post(ctx, s.url, ""), put(ctx, tx, m, sale(m), item(m)))
		})
	}},
	{name: "keeps its transaction", cause: "a tx that is kept", makes: func(shop) consumer.Handlers[*cassink.Tx] {
		var kept *cassink.Tx
		return eachItem(func(ctx context.Context, tx *cassink.Tx, m consumer.Message, _ epoch.Epoch) error {
			if kept == nil {
				kept = tx
			}
			return put(ctx, kept, m, sale(m), item(m))
		})
	}},
	{name: "has an OnFailure that reads the clock", cause: "a clock", makes: func(shop) consumer.Handlers[*cassink.Tx] {
		return eachItem(func(ctx context.Context, tx *cassink.Tx, m consumer.Message, _ epoch.Epoch) error {
			return takeOne(ctx, tx, m)
		}).
			OnFailure(func(ctx context.Context, tx *cassink.Tx, m consumer.Message, _ epoch.Epoch, _ error) error {
				return put(ctx, tx, m, sale(m), time.Now().String())
			})
	}},
	{name: "has an OnFailure that works for one message", cause: "OnFailure itself", makes: func(shop) consumer.Handlers[*cassink.Tx] {
		return eachItem(func(ctx context.Context, tx *cassink.Tx, m consumer.Message, _ epoch.Epoch) error {
			return put(ctx, tx, m, sale(m), item(m))
		}).OnFailure(func(ctx context.Context, tx *cassink.Tx, m consumer.Message, _ epoch.Epoch, _ error) error {
			_, err := tx.Update(ctx, m, "failed", func(old guard.State) (guard.State, []byte, error) {
				if old.Exists {
					return old, nil, errors.New("one has failed already")
				}
				return guard.Text(item(m)), nil, nil
			})
			return err
		})
	}},
	{name: "adds up what a rewind applies again", cause: "writes that add up", o: consumertest.Options{Rewind: true}, makes: func(shop) consumer.Handlers[*cassink.Tx] {
		return eachItem(func(ctx context.Context, tx *cassink.Tx, m consumer.Message, _ epoch.Epoch) error {
			return add(ctx, tx, m, stock(m), -1)
		})
	}},
}

var soundItems = []itemHandler{
	{name: "adds to a value", makes: func(shop) consumer.Handlers[*cassink.Tx] {
		return eachItem(func(ctx context.Context, tx *cassink.Tx, m consumer.Message, _ epoch.Epoch) error {
			return add(ctx, tx, m, stock(m), -1)
		})
	}},
	{name: "decides by an outcome", makes: func(shop) consumer.Handlers[*cassink.Tx] {
		return eachItem(func(ctx context.Context, tx *cassink.Tx, m consumer.Message, _ epoch.Epoch) error {
			outcome, err := tx.Update(ctx, m, stock(m), func(old guard.State) (guard.State, []byte, error) {
				if count(old) == 0 {
					return old, []byte("sold out"), nil
				}
				return guard.Text(strconv.Itoa(count(old) - 1)), []byte("sold"), nil
			})
			if err != nil {
				return err
			}
			return put(ctx, tx, m, sale(m), string(outcome))
		})
	}},
	{name: "passes outcomes on over three items", makes: func(shop) consumer.Handlers[*cassink.Tx] {
		return eachItem(func(ctx context.Context, tx *cassink.Tx, m consumer.Message, _ epoch.Epoch) error {
			outcome := []byte("-")
			for _, key := range []string{stock(m), "total", sale(m)} {
				var err error
				if outcome, err = tx.Update(ctx, m, key, func(old guard.State) (guard.State, []byte, error) {
					now := fmt.Sprint(len(old.Value), string(outcome))
					return guard.Text(now), []byte(now), nil
				}); err != nil {
					return err
				}
			}
			return nil
		})
	}},
	{name: "fails for some messages", makes: func(s shop) consumer.Handlers[*cassink.Tx] {
		return eachItem(func(ctx context.Context, tx *cassink.Tx, m consumer.Message, _ epoch.Epoch) error {
			return takeOne(ctx, tx, m)
		}).
			OnFailure(s.sink.DeadLetter)
	}},
	{name: "has an OnFailure that changes items", makes: func(s shop) consumer.Handlers[*cassink.Tx] {
		return eachItem(func(ctx context.Context, tx *cassink.Tx, m consumer.Message, _ epoch.Epoch) error {
			return errors.Join(put(ctx, tx, m, sale(m), "sold"), takeOne(ctx, tx, m))
		}).OnFailure(func(ctx context.Context, tx *cassink.Tx, m consumer.Message, e epoch.Epoch, cause error) error {
			return errors.Join(put(ctx, tx, m, sale(m), "failed"), add(ctx, tx, m, "failed", 1), s.sink.DeadLetter(ctx, tx, m, e, cause))
		})
	}},
	{name: "deletes items and makes them again", makes: func(shop) consumer.Handlers[*cassink.Tx] {
		return eachItem(func(ctx context.Context, tx *cassink.Tx, m consumer.Message, _ epoch.Epoch) error {
			_, err := tx.Update(ctx, m, stock(m), func(old guard.State) (guard.State, []byte, error) {
				return guard.State{Exists: !old.Exists, Value: m.Value}, nil, nil
			})
			return err
		})
	}},
	{name: "keeps the epoch as a token in a field", makes: func(shop) consumer.Handlers[*cassink.Tx] {
		return eachItem(func(ctx context.Context, tx *cassink.Tx, m consumer.Message, e epoch.Epoch) error {
			return put(ctx, tx, m, stock(m), fmt.Sprintf(`{"last": %d, "epoch": %d}`, place(m), e))
		})
	}},
	{name: "writes the time into a field that is ignored", o: consumertest.Options{Ignore: []string{"stock.at"}}, makes: func(shop) consumer.Handlers[*cassink.Tx] {
		return eachItem(func(ctx context.Context, tx *cassink.Tx, m consumer.Message, _ epoch.Epoch) error {
			return put(ctx, tx, m, stock(m), fmt.Sprintf(`{"last": %d, "at": %q}`, place(m), time.Now()))
		})
	}},
	{name: "keeps a log that is not compared", o: consumertest.Options{Tables: []string{"stock"}}, makes: func(shop) consumer.Handlers[*cassink.Tx] {
		return eachItem(func(ctx context.Context, tx *cassink.Tx, m consumer.Message, _ epoch.Epoch) error {
			return errors.Join(add(ctx, tx, m, stock(m), -1), put(ctx, tx, m, "log", time.Now().String()))
		})
	}},
	{name: "writes the message's time", makes: func(shop) consumer.Handlers[*cassink.Tx] {
		return eachItem(func(ctx context.Context, tx *cassink.Tx, m consumer.Message, _ epoch.Epoch) error {
			return put(ctx, tx, m, sale(m), m.Time.String())
		})
	}},
	{name: "keeps in the item what it has seen", o: consumertest.Options{Rewind: true}, makes: func(shop) consumer.Handlers[*cassink.Tx] {
		return eachItem(func(ctx context.Context, tx *cassink.Tx, m consumer.Message, _ epoch.Epoch) error {
			_, err := tx.Update(ctx, m, "seen/"+item(m), func(old guard.State) (guard.State, []byte, error) {
				seen := map[int64]bool{}
				_ = json.Unmarshal(old.Value, &seen)
				seen[place(m)] = true
				text, err := json.Marshal(seen)
				return guard.State{Exists: true, Value: text}, nil, err
			})
			return err
		})
	}},
	{name: "sums up a batch", makes: func(shop) consumer.Handlers[*cassink.Tx] {
		return consumer.Batches(func(ctx context.Context, tx *cassink.Tx, ms []consumer.Message, _ epoch.Epoch) error {
			sums, last := map[string]int{}, map[string]consumer.Message{}
			for _, m := range ms {
				sums[stock(m)]++
				last[stock(m)] = m
			}
			if err := tx.Load(ctx, slices.Sorted(maps.Keys(sums))...); err != nil {
				return err
			}
			for _, m := range ms {
				if err := add(ctx, tx, m, stock(m), -1); err != nil {
					return err
				}
			}
			return nil
		})
	}},
	{name: "changes nothing for some messages", makes: func(shop) consumer.Handlers[*cassink.Tx] {
		return eachItem(func(ctx context.Context, tx *cassink.Tx, m consumer.Message, _ epoch.Epoch) error {
			if item(m) != "chair" {
				return nil
			}
			return add(ctx, tx, m, stock(m), -1)
		})
	}},
	{name: "calls with a key of the message", makes: func(s shop) consumer.Handlers[*cassink.Tx] {
		return eachItem(func(ctx context.Context, tx *cassink.Tx, m consumer.Message, _ epoch.Epoch) error {
			return errors.Join(post(ctx, s.url, sale(m)), put(ctx, tx, m, sale(m), item(m)))
		})
	}},
	{name: "reads what no handler changes", makes: func(s shop) consumer.Handlers[*cassink.Tx] {
		return eachItem(func(ctx context.Context, tx *cassink.Tx, m consumer.Message, _ epoch.Epoch) error {
			price, err := guard.Read(ctx, s.store, "price")
			return errors.Join(err, put(ctx, tx, m, sale(m), string(price.Value)))
		})
	}},
}

// on returns what a Check of the handler says, with the items of a store.
func (h itemHandler) on(t *testing.T, store cas.Store, ms []consumer.Message) string {
	t.Helper()
	items := consumertest.Items(store)
	sink, err := cassink.Open(t.Context(), items, cassink.Options{Prefix: "shop/fences"})
	if err != nil {
		t.Fatal(err)
	}
	for key, value := range map[string]string{"stock/chair": "100", "stock/table": "100", "stock/lamp": "2", "price": "7"} {
		if seen, err := store.Get(t.Context(), key); err != nil {
			t.Fatal(err)
		} else if !seen.Live {
			if _, err := store.Swap(t.Context(), seen, []byte(value), nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	h.o.Calls = &consumertest.Calls{}
	server := httptest.NewServer(h.o.Calls)
	defer server.Close()
	if h.o.Timeout == 0 {
		h.o.Timeout = time.Minute // the machine may stall
	}
	r := &recorder{TB: t}
	consumertest.Check(r, sink, h.makes(shop{items, sink, server.URL}), ms, items, h.o)
	return strings.Join(r.texts, "\n")
}

func TestEachFaultOnItemsIsFoundAndNamed(t *testing.T) {
	for _, h := range itemFaults {
		t.Run(h.name, func(t *testing.T) {
			if report := h.on(t, memstore.New(), orders()); !regexp.MustCompile("The usual cause is (" + h.cause + ")").MatchString(report) {
				t.Errorf("the report is\n%s\nwant the cause %q", report, h.cause)
			}
		})
	}
}

func TestNoSoundHandlerOfItemsIsAccused(t *testing.T) {
	apart := orders()
	for i := range apart {
		apart[i].Partition.Number = int32(len(apart[i].Value) % 2) // each item has its messages in one partition
	}
	for _, h := range soundItems {
		t.Run(h.name, func(t *testing.T) {
			store := memstore.New()
			for _, ms := range [][]consumer.Message{orders(), apart} { // the second time with a fence that is there
				if report := h.on(t, store, ms); report != "" {
					t.Error(report)
				}
			}
		})
	}
}

func TestACheckOfItemsThatCannotJudgeFailsAndChangesNothing(t *testing.T) {
	putSale := func(shop) consumer.Handlers[*cassink.Tx] {
		return eachItem(func(ctx context.Context, tx *cassink.Tx, m consumer.Message, _ epoch.Epoch) error {
			return put(ctx, tx, m, sale(m), item(m))
		})
	}
	for want, o := range map[string]consumertest.Options{`"sale"`: {Tables: []string{"sale"}}, `"sales.at"`: {Ignore: []string{"sales.at"}}} {
		if report := (itemHandler{makes: putSale, o: o}).on(t, memstore.New(), orders()); !strings.Contains(report, want+", which no item has") {
			t.Errorf("the report is %q, want it to have %s", report, want)
		}
	}
	store := memstore.New()
	items := consumertest.Items(store)
	sink, err := cassink.Open(t.Context(), store, cassink.Options{})
	if err != nil {
		t.Fatal(err)
	}
	r := &recorder{TB: t}
	consumertest.Check(r, sink, putSale(shop{}), orders(), items, consumertest.Options{})
	if report := strings.Join(r.texts, ""); !strings.Contains(report, "the cassink is not open over what Items has returned") {
		t.Errorf("the report is %q", report)
	}
	if err := sink.Seed(t.Context(), []epoch.Start{{Origin: epoch.Origin{Partition: epoch.Partition{Group: "others", Topic: "orders"}, Log: "l", Source: "s"}}}); err != nil {
		t.Fatal(err)
	}
	over, err := cassink.Open(t.Context(), items, cassink.Options{})
	if err != nil {
		t.Fatal(err)
	}
	r = &recorder{TB: t}
	consumertest.Check(r, over, putSale(shop{}), orders(), items, consumertest.Options{})
	if report := strings.Join(r.texts, ""); !strings.Contains(report, `"epochfence/fence/others/orders/0"`) {
		t.Errorf("the report is %q, want that the store is in use", report)
	}
	for item, err := range store.List(t.Context(), "") {
		if err != nil || !strings.HasPrefix(item.Key, "epochfence/") || strings.Contains(item.Key, "fence/consumertest") {
			t.Errorf("the store has %q; %v", item.Key, err)
		}
	}
}

func TestAStoreWithTheFencesOfAnotherSinkIsLeftAlone(t *testing.T) {
	store := memstore.New()
	live, err := cassink.Open(t.Context(), store, cassink.Options{Prefix: "live"})
	if err != nil {
		t.Fatal(err)
	}
	if err := live.Seed(t.Context(), []epoch.Start{{Origin: epoch.Origin{Partition: epoch.Partition{Group: "billing", Topic: "orders"}, Log: "l", Source: "s"}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := guard.Apply(t.Context(), store, "garden/fence/3", guard.Stamp{Partition: epoch.Partition{Group: "g", Topic: "t"}, Log: "l", Mark: epoch.NoMark},
		func(guard.State) (guard.State, []byte, error) { return guard.Text(`{"price": 5}`), nil, nil }); err != nil {
		t.Fatal(err)
	}
	if report := soundItems[0].on(t, store, orders()); !strings.Contains(report, `"live/fence/billing/orders/0" is that of no partition of the messages`) {
		t.Errorf("the report is %q", report)
	}
}

// A user's test runs this under the race detector.
func TestItemsAreJudgedInSeveralPartitions(t *testing.T) {
	ms := orders()
	for i := range ms {
		ms[i].Partition.Number = int32(i % 3)
	}
	if report := soundItems[0].on(t, memstore.New(), ms); report != "" {
		t.Error(report)
	}
}

func TestItemsAreAsBeforeAfterACheck(t *testing.T) {
	store := memstore.New()
	if _, err := guard.Apply(t.Context(), store, "stock/table", guard.Stamp{Partition: epoch.Partition{Group: "g", Topic: "t"}, Log: "l", Mark: epoch.NoMark},
		func(guard.State) (guard.State, []byte, error) { return guard.Text("50"), []byte("yes"), nil }); err != nil {
		t.Fatal(err)
	}
	contents := func() (all string) {
		for item, err := range store.List(t.Context(), "") {
			if err != nil {
				t.Fatal(err)
			}
			if !strings.HasPrefix(item.Key, "shop%2Ffences/") {
				all += fmt.Sprintf("%s %s %s\n", item.Key, item.Value, item.Note)
			}
		}
		return all
	}
	h := soundItems[slices.IndexFunc(soundItems, func(h itemHandler) bool { return h.name == "deletes items and makes them again" })]
	if report := h.on(t, store, orders()[:1]); report != "" {
		t.Fatal(report)
	}
	before := contents() // with what the first has put there
	if report := h.on(t, store, orders()); report != "" || contents() != before || !strings.Contains(before, "stock/table 50 {") {
		t.Errorf("the report is %q, and the items are\n%s\nwant\n%s", report, contents(), before)
	}
	sink, err := cassink.Open(t.Context(), store, cassink.Options{Prefix: "shop/fences"})
	if err != nil {
		t.Fatal(err)
	}
	if f, err := epoch.FenceOf(t.Context(), sink, epoch.Partition{Group: "consumertest", Topic: "consumertest"}); err != nil || f.Next != 0 {
		t.Errorf("the fence is at %d, %v; want that it begins again", f.Next, err)
	}
}

func TestItemsOfAServerAreJudged(t *testing.T) {
	pool, _ := openPostgres(t, pgtest.Start(t).URL)
	store, err := pgstore.Open(t.Context(), pool, pgstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range soundItems[:4] {
		if report := h.on(t, store, orders()); report != "" {
			t.Errorf("%s: %s", h.name, report)
		}
	}
	for _, h := range itemFaults {
		if h.name != "decides by what it reads of another item" {
			continue
		}
		if report := h.on(t, store, orders()); !strings.Contains(report, h.cause) {
			t.Errorf("%s: %s", h.name, report)
		}
	}
}
