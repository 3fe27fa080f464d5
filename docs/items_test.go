package docs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/guard"
	"github.com/epochfence/epochfence/cas/memstore"
	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/consumertest"
	"github.com/epochfence/epochfence/consumer/memsource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/outbox"
	"github.com/epochfence/epochfence/outbox/casoutbox"
	"github.com/epochfence/epochfence/outbox/httpfence"
	"github.com/epochfence/epochfence/sinks/cassink"
	"github.com/epochfence/epochfence/sinks/memsink"
)

// bill charges each order once through a payment gateway, and stores the receipt.
func bill(ctx context.Context, source consumer.Source, store cas.Store, gateway string) error {
	sink, err := cassink.Open(ctx, store, cassink.Options{})
	if err != nil {
		return err
	}
	box, err := outbox.New(casoutbox.Store{}, outbox.Options[*cassink.Tx]{
		OnAnswer: func(ctx context.Context, tx *cassink.Tx, sent outbox.Sent, a outbox.Answer) error {
			_, err := tx.Update(ctx, sent.Message(), "receipt/"+sent.IdempotencyKey, func(guard.State) (guard.State, []byte, error) {
				return guard.Text(string(a.Body)), nil, nil
			})
			return err
		},
	})
	if err != nil {
		return err
	}
	charge := func(ctx context.Context, tx *cassink.Tx, m consumer.Message, _ epoch.Epoch) error {
		customer, id, _ := strings.Cut(string(m.Key), "/")
		return box.Add(ctx, tx, m, outbox.Entry{Key: customer, Scope: customer, IdempotencyKey: id, URL: gateway, Body: m.Value})
	}
	return consumer.Run(ctx, source, sink, consumer.Each(charge).Background(box.Relay), consumer.Options{Guarantee: epoch.PerItem})
}

func TestAnOutboxInAStoreChargesOnceAndKeepsTheReceipt(t *testing.T) {
	charged := make(chan string, 100)
	gateway := httptest.NewServer(httpfence.Handler(httpfence.NewMemory(), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		amount, _ := io.ReadAll(r.Body)
		charged <- string(amount)
		_, _ = fmt.Fprintf(w, "receipt %s", amount)
	}), httpfence.Options{}))
	defer gateway.Close()
	log, store := memsource.New("orders", 2), memstore.New()
	for n := range 20 {
		log.Send(fmt.Sprintf("customer-%d/%d", n%5, n), strconv.Itoa(100+n))
	}
	ctx, stop := context.WithTimeout(t.Context(), 30*time.Second)
	defer stop()
	done := make(chan error, 1)
	go func() { done <- bill(ctx, log.Member("a"), store, gateway.URL) }()
	for n := 0; n < 20 && ctx.Err() == nil; {
		state, err := guard.Read(ctx, store, fmt.Sprint("receipt/", n))
		if err == nil && string(state.Value) == fmt.Sprint("receipt ", 100+n) {
			n++
		} else {
			<-time.After(5 * time.Millisecond)
		}
	}
	if stop(); len(charged) != 20 {
		t.Errorf("%d charges, want 20", len(charged))
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

type order struct {
	Item  string
	Count int
}

// reserve takes an order's items out of the stock if there are enough, and stores the answer.
func reserve(ctx context.Context, tx *cassink.Tx, m consumer.Message, _ epoch.Epoch) error {
	var o order
	if err := json.Unmarshal(m.Value, &o); err != nil {
		return consumer.Permanent(err)
	}
	answer, err := tx.Update(ctx, m, "stock/"+o.Item, func(old guard.State) (guard.State, []byte, error) {
		left, _ := strconv.Atoi(string(old.Value))
		if left < o.Count {
			return old, []byte("sold out"), nil
		}
		return guard.Text(strconv.Itoa(left - o.Count)), []byte("reserved"), nil
	})
	if err != nil {
		return err
	}
	_, err = tx.Update(ctx, m, "order/"+string(m.Key), func(guard.State) (guard.State, []byte, error) {
		return guard.Text(string(answer)), nil, nil
	})
	return err
}

// consume applies the messages of a source to a store, on any number of processes.
func consume(ctx context.Context, source consumer.Source, store cas.Store) error {
	sink, err := cassink.Open(ctx, store, cassink.Options{})
	if err != nil {
		return err
	}
	return consumer.Run(ctx, source, sink, consumer.Each(reserve).OnFailure(sink.DeadLetter), consumer.Options{
		Guarantee: epoch.PerItem, // what this sink gives; Run wants Transactional by default
	})
}

func TestTheEffectsOfReserveAreExactlyOnce(t *testing.T) {
	items := consumertest.Items(memstore.New())
	if _, err := items.Swap(t.Context(), cas.Item{Key: "stock/chair"}, []byte("3"), nil); err != nil {
		t.Fatal(err)
	}
	sink, err := cassink.Open(t.Context(), items, cassink.Options{})
	if err != nil {
		t.Fatal(err)
	}
	messages := consumertest.Values(`{"Item":"chair","Count":2}`, `{"Item":"chair","Count":1}`, `no order`, `{"Item":"chair","Count":1}`)
	for i := range messages {
		messages[i].Key = []byte(strconv.Itoa(i))
	}
	consumertest.Check(t, sink, consumer.Each(reserve).OnFailure(sink.DeadLetter), messages, items, consumertest.Options{})
}

func TestTheHandlerOfItemsReservesEachOrderOnce(t *testing.T) {
	store := memstore.New()
	if _, err := store.Swap(t.Context(), cas.Item{Key: "stock/chair"}, []byte("3"), nil); err != nil {
		t.Fatal(err)
	}
	log := memsource.New("orders", 1)
	for n := range 3 {
		log.Send(fmt.Sprint(n), `{"Item":"chair","Count":2}`)
	}
	log.Append(0, "no order")
	if err := consume(log.UntilApplied(t.Context()), log.Member("a"), store); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{"stock/chair": "1", "order/0": "reserved", "order/1": "sold out", "order/2": "sold out"} {
		if item, err := store.Get(t.Context(), key); err != nil || string(item.Value) != want {
			t.Errorf("%s is %q, %v; want %q", key, item.Value, err, want)
		}
	}
	sink, err := cassink.Open(t.Context(), store, cassink.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if letters, err := sink.Operator().DeadLetters(t.Context(), operate.DeadLetterQuery{}); err != nil || len(letters) != 1 || letters[0].Message.Offset != 3 {
		t.Errorf("dead letters: %+v, %v", letters, err)
	}
}

// thumbnail writes an object for each picture. The positions are in a database.
func thumbnail(objects cas.Store, small func([]byte) []byte) consumer.Handler[*memsink.Tx] {
	return func(ctx context.Context, tx *memsink.Tx, m consumer.Message, _ epoch.Epoch) error {
		object := guard.At(objects, m)
		_, err := object.Update(ctx, "small/"+string(m.Key), func(guard.State) (guard.State, []byte, error) {
			return guard.State{Exists: true, Value: small(m.Value)}, nil, nil
		})
		if errors.Is(err, guard.ErrPassed) {
			err = nil // all objects of this message were written
		}
		if err != nil {
			return err
		}
		tx.Append("pictures", string(m.Key))
		return nil
	}
}

func TestTheHandlerOfObjectsWritesEachOnce(t *testing.T) {
	log, sink, objects := memsource.New("pictures", 1), memsink.New(), memstore.New()
	log.Send("cat", "a large cat")
	h := consumer.Each(thumbnail(objects, func(p []byte) []byte { return p[2:] }))
	err := consumer.Run(log.UntilApplied(t.Context()), log.Member("a"), sink, h, consumer.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	state, err := guard.Read(t.Context(), objects, "small/cat")
	if err != nil || string(state.Value) != "large cat" || len(sink.List("pictures")) != 1 {
		t.Errorf("%q, %v, %q", state.Value, err, sink.List("pictures"))
	}
}
