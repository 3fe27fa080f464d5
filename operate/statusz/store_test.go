package statusz_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"testing"
	"time"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/memstore"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/operate/statusz"
	"github.com/epochfence/epochfence/sinks/cassink"
)

// The page needs an operator and no database.
func TestASinkInAStoreIsShownAndOperated(t *testing.T) {
	ctx := t.Context()
	sink, err := cassink.Open(ctx, memstore.New(), cassink.Options{})
	must(t, err)
	origin := epoch.Origin{Partition: orders(0), Log: "log", Source: "issuer"}
	must(t, sink.Seed(ctx, []epoch.Start{{Origin: origin}}))
	seen, err := epoch.FenceOf(ctx, sink, orders(0))
	must(t, err)
	f, err := sink.Claim(ctx, seen, epoch.NewClaim(epoch.Lease{Origin: origin, Generation: 1, Owner: "there"}))
	must(t, err)
	advance := epoch.Advance{Partition: f.Partition, Claim: f.Claim, To: 1, Mark: epoch.NoMark}
	must(t, sink.Commit(ctx, []epoch.Advance{advance}, epoch.TxOptions{}, func(ctx context.Context, tx *cassink.Tx) error {
		return sink.DeadLetter(ctx, tx, epoch.Message{Partition: f.Partition, Value: []byte("secret")}, f.Epoch, errors.New("no such customer"))
	}))
	r := newRig(t)
	h := r.page(func(o *statusz.Options) {
		annaMay(o)
		o.Operator, o.Logger = sink.Operator(), slog.New(slog.DiscardHandler)
	})
	status, page := get(h, "")
	if status != http.StatusOK {
		t.Fatalf("%d", status)
	}
	wants(t, page, "orders/0", "no such customer", "no sign of life", "by there, begins at 0")
	acts := func(query string) {
		t.Helper()
		_, page := get(h, "act?reason=for+the+test&"+query)
		sent := fields(page)
		sent.Set("reason", "for the test")
		if answer := request(h, post("act", sent)); answer.StatusCode != http.StatusSeeOther {
			t.Errorf("%s: %d", query, answer.StatusCode)
		}
	}
	letters, err := sink.Operator().DeadLetters(ctx, operate.DeadLetterQuery{Limit: 1})
	must(t, err)
	acts(fmt.Sprintf("about=deadletter&kind=discard&id=%d", letters[0].ID))
	acts("about=partition&group=billing&topic=orders&number=0&kind=" + string(operate.ActPause))
	now, err := epoch.FenceOf(ctx, sink, orders(0))
	must(t, err)
	if now.Pause.Mode != epoch.Paused || now.Pause.By != "anna" {
		t.Errorf("%+v", now)
	}
	_, detail := get(h, "partition?group=billing&topic=orders&number=0")
	wants(t, detail, "by anna: for the test", "paused")
}

// A newer version has written one fence and one sign of life.
func TestAnItemThatCannotBeReadIsShownBesideTheOthers(t *testing.T) {
	items := memstore.New()
	sink, err := cassink.Open(t.Context(), items, cassink.Options{})
	must(t, err)
	must(t, sink.Seed(t.Context(), []epoch.Start{{Origin: epoch.Origin{Partition: orders(0), Log: "log", Source: "issuer"}}}))
	for _, run := range []string{"a", "b"} {
		must(t, operate.RecordsIn[*cassink.Tx](sink).Alive(t.Context(), operate.Process{Run: run, Group: "billing", Name: run, Every: time.Minute}))
	}
	sign, err := items.Get(t.Context(), "epochfence/process/b")
	must(t, err)
	must(t, second(items.Swap(t.Context(), sign, append([]byte(`{"v":2,`), sign.Value[1:]...), nil)))
	must(t, second(items.Swap(t.Context(), cas.Item{Key: "epochfence/fence/billing/orders/1"}, []byte(`{"v":2}`), nil)))
	r := newRig(t)
	status, page := get(r.page(func(o *statusz.Options) { o.Operator, o.Logger = sink.Operator(), slog.New(slog.DiscardHandler) }), "")
	if status != http.StatusOK {
		t.Errorf("%d", status)
	}
	wants(t, page, "orders/0 never claimed", "orders/1 unreadable", "newer version; update this process", "Processes alive 2")
}

func second[T any](_ T, err error) error { return err }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
