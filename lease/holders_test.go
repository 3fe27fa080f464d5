package lease

import (
	"errors"
	"testing"
	"time"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/memstore"
	"github.com/epochfence/epochfence/internal/suites/bubble"
)

func TestHoldersAreThoseWhoHaveAResourceNow(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := memstore.New()
		m := join(t, s, sharing(2)).run()
		m.comesTo(2, testTTL)
		passes(time.Minute)
		began := time.Now()
		h := m.locks("nightly")
		if _, err := h.Confirm(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := m.locks("given back").Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Swap(t.Context(), cas.Item{Key: m.keys.resource(Resource{Name: "strange"})}, []byte("no lease"), nil); err != nil {
			t.Fatal(err)
		}
		passes(time.Minute)
		all, err := Holders(t.Context(), s, "billing")
		if err != nil || len(all) != 3 {
			t.Fatalf("%v, %v", all, err)
		}
		if got := all[0]; got.Resource != h.Resource || got.Owner != m.Name || got.Generation != h.Generation() || began.Sub(got.Since).Abs() > time.Second {
			t.Errorf("%+v, taken at %s under %d", got, began, h.Generation())
		}
		for n, r := range []Resource{{"orders", 0}, {"orders", 1}} {
			if got := all[1+n]; got.Resource != r || got.Owner != m.Name || !got.Since.Before(began) {
				t.Errorf("%+v, want %s", got, r)
			}
		}
		if all, err := Holders(t.Context(), s, "another"); err != nil || len(all) != 0 {
			t.Errorf("%v, %v", all, err)
		}
	})
}

func TestTryAcquireDoesNotWait(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := memstore.New()
		a, b := join(t, s), join(t, s)
		h, err := a.TryAcquire("nightly")
		if err != nil {
			t.Fatal(err)
		}
		passes(time.Second)
		for _, m := range []*testMember{a, b} {
			before := time.Now()
			if _, err := m.TryAcquire("nightly"); !errors.Is(err, ErrHeld) || time.Since(before) > time.Second {
				t.Errorf("%v after %s", err, time.Since(before))
			}
		}
		if err := h.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		passes(time.Second)
		if h, err = b.TryAcquire("nightly"); err != nil {
			t.Fatal(err)
		}
		confirms(t, h)
		b.Close()
		if _, err := b.TryAcquire("nightly"); !errors.Is(err, ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
	})
}

func TestAMemberKnowsWhoHasALeaseUntilItIsFree(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := memstore.New()
		a, b := join(t, s), join(t, s)
		if got, held := b.Holder(nightly); held {
			t.Errorf("before: %+v", got)
		}
		h := a.locks(nightly)
		passes(time.Second)
		for _, m := range []*testMember{a, b} {
			got, held := m.Holder(nightly)
			if !held || got.Resource != h.Resource || got.Owner != a.Owner() || got.Generation != h.Generation() || time.Since(got.Since) > 2*time.Second {
				t.Errorf("%+v, %t", got, held)
			}
		}
		a.has(swallow)
		passes(2 * testTTL) // the lease's item still names a
		if got, held := b.Holder(nightly); held {
			t.Errorf("after its end: %+v", got)
		}
		if _, err := s.Swap(t.Context(), cas.Item{Key: a.keys.resource(Resource{Name: "strange"})}, []byte("no lease"), nil); err != nil {
			t.Fatal(err)
		}
		passes(time.Second)
		if got, held := b.Holder("strange"); !held || got.Owner != "" {
			t.Errorf("a value that is no lease: %+v, %t", got, held)
		}
	})
}
