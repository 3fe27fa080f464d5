package httpfence_test

import (
	"errors"
	"fmt"
	"net/http"
	"testing"

	"github.com/epochfence/epochfence/outbox/httpfence"
)

// These bytes are frozen: senders and receivers of other versions write and read them.
func TestTheStoredFormOfVersion1OfARequest(t *testing.T) {
	t.Parallel()
	h := http.Header{}
	c := httpfence.Call{Scope: "account/17", Epoch: 8, Key: `charge-"4711"`}
	if err := c.SetHeaders(h); err != nil {
		t.Fatal(err)
	}
	if got, want := fmt.Sprint(h), `map[Epochfence-Epoch:[8] Epochfence-Scope:[account/17] Idempotency-Key:["charge-\"4711\""]]`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	h.Set("Epochfence-Attempt", "2") // of tomorrow
	for _, version := range []string{"", "1"} {
		if version != "" {
			h.Set("Epochfence-Version", version)
		}
		if got, err := httpfence.ReadCall(h); err != nil || got != c {
			t.Errorf("%+v, %v", got, err)
		}
	}
	for _, version := range []string{"2", "x"} {
		h.Set("Epochfence-Version", version)
		if _, err := httpfence.ReadCall(h); !errors.Is(err, httpfence.ErrNewer) {
			t.Errorf("version %q: %v", version, err)
		}
	}
}

// The sender keeps the entry, and tries again until the receiver is updated.
func TestARequestOfANewerVersionHasNoEffectAndIsToBeSentAgain(t *testing.T) {
	eachStore(t, func(t *testing.T, r *rig) {
		h := httpfence.Handler(r.open(), http.HandlerFunc(r.apply), quiet)
		c := httpfence.Call{Scope: "account/17", Epoch: 8, Key: "a"}
		req := request(t.Context(), c, "")
		req.Header.Set(httpfence.VersionHeader, "2")
		req.Header.Set(httpfence.EpochHeader, "eight")
		p := serve(t, h, req).wantProblem(http.StatusNotImplemented, httpfence.TypeNewer)
		if !httpfence.Retryable(p.Status) {
			t.Error("it is final")
		}
		r.wantLog(t)
		send(t, h, c, "").want(http.StatusCreated, "done under epoch 8", false)
	})
}
