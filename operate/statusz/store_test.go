package statusz_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"testing"

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
	seen, err := sink.Fence(ctx, orders(0))
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
	now, err := sink.Fence(ctx, orders(0))
	must(t, err)
	if now.Pause.Mode != epoch.Paused || now.Pause.By != "anna" {
		t.Errorf("%+v", now)
	}
	_, detail := get(h, "partition?group=billing&topic=orders&number=0")
	wants(t, detail, "by anna: for the test", "paused")
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
