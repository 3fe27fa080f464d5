package lease

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/memstore"
	"github.com/epochfence/epochfence/internal/form"
	"github.com/epochfence/epochfence/internal/suites/bubble"
)

// These bytes are frozen: members of other versions read and write them. See package form.
func TestTheStoredFormOfVersion1OfAGroup(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]leaseRecord{
		`{"owner":"host-1","member":"M","nonce":"N","since":"2026-11-29T14:00:00Z","generation":7}`: {
			Owner: "host-1", Member: "M", Nonce: "N", Since: "2026-11-29T14:00:00Z", Generation: 7,
		},
		`{"generation":8}`: {Generation: 8},
	} {
		if got, ok := leaseOf([]byte(text)); string(want.json()) != text || !ok || got != want {
			t.Errorf("%s is read as %+v, and written as %s", text, got, want.json())
		}
	}
	for text, want := range map[string]memberRecord{
		`{"name":"host-1","serves":{"orders":4},"declined":["orders/2"],"wants":["nightly"],"ttl":15000,"nonce":"N","trial":1,"note":"hello"}`: {
			Name: "host-1", Serves: map[string]int32{"orders": 4}, Declined: []string{"orders/2"}, Wants: []string{"nightly"}, TTL: 15000, Nonce: "N", Trial: 1, Note: "hello",
		},
		`{"name":"host-1","ended":true}`:                      {Name: "host-1", Ended: true},
		`{"name":"host-1","ended":true,"suspected":"host-2"}`: {Name: "host-1", Ended: true, Suspected: "host-2"},
	} {
		written, err := json.Marshal(want)
		if got := registrationOf([]byte(text)); err != nil || string(written) != text || !reflect.DeepEqual(got, want) {
			t.Errorf("%s is read as %+v, and written as %s", text, got, written)
		}
	}
}

func TestUnknownFieldsOfAGroupAreIgnored(t *testing.T) {
	t.Parallel()
	if got, ok := leaseOf([]byte(`{"member":"M","zone":"b","generation":7,"nonce":"N"}   `)); !ok || got != (leaseRecord{Member: "M", Nonce: "N", Generation: 7}) {
		t.Errorf("%+v, %t", got, ok)
	}
	if got := registrationOf([]byte(`{"name":"a","serves":{"orders":4},"weights":{"orders":2}}`)); got.Serves["orders"] != 4 {
		t.Errorf("%+v", got)
	}
}

// tomorrows is the registration of a member of a newer version, as it is renewed. Only the fields that
// every version has can be read.
const tomorrows = `{"v":2,"name":"newer","serves":{"orders":4},"ttl":15000,"wants":{"nightly":true},"nonce":7,"zone":"b"}`

// renews keeps a value in the store, as a member of a newer version does.
func renews(t *testing.T, s cas.Store, key, value string) (stop func()) {
	t.Helper()
	put(t, s, key, value)
	ended, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for n := 0; ; n++ {
			select {
			case <-time.After(testTTL / 3):
				put(t, s, key, value+strings.Repeat(" ", n%2))
			case <-ended:
				return
			}
		}
	}()
	return func() { close(ended); <-done }
}

// The member of today has all resources, and gives those back that the one of tomorrow is to have.
func TestMembersOfTwoVersionsShareResources(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := memstore.New()
		m := join(t, s, sharing(4)).run()
		m.comesTo(4, testTTL)
		put(t, s, "billing/lease/zone/b", `{"v":2}`) // of a kind that nobody knows yet
		stop := renews(t, s, memberKey("newer"), tomorrows)
		theirs := map[string]bool{}
		until(t, 3*testTTL, func() bool {
			for _, n := range []string{"0", "1", "2", "3"} {
				if r, _ := leaseOf(look(t, s, leaseKey(n)).Value); r.Member == "" {
					put(t, s, leaseKey(n), `{"v":2,"member":"newer","owner":"newer","generation":100,"until":[1]}`)
					theirs[n] = true
				}
			}
			return len(theirs) == 2
		})
		passes(5 * testTTL)
		held := m.holding()
		if len(held) != 2 || len(m.log.with("level=ERROR")) > 0 {
			t.Errorf("it holds %d:\n%s", len(held), m.log)
		}
		for _, h := range held {
			confirms(t, h)
		}
		all, err := Holders(t.Context(), s, "billing")
		if err != nil || len(all) != 4 {
			t.Fatalf("%+v, %v", all, err)
		}
		for n, h := range all {
			if theirs[string(rune('0'+n))] != (h.Owner == "newer") {
				t.Errorf("%+v", h)
			}
		}
		stop()
		m.leave()
	})
}

// The holder is dead, or has released it. What that means is not known, also after the TTL.
func TestALeaseOfANewerVersionIsNotTakenAndThatIsSaid(t *testing.T) {
	for what, value := range map[string]string{
		"released":                  `{"v":2,"generation":8}`,
		"of a member that is gone":  `{"v":2,"member":"gone","generation":8}`,
		"that cannot be read":       `{"v":2,"member":{"id":"gone"},"generation":"8"}`,
		"that has a broken version": `{"generation":[],"member":5,"v":3}`,
	} {
		t.Run(what, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				s := memstore.New()
				before := put(t, s, leaseKey("0"), value)
				m := join(t, s, sharing(2)).run()
				m.comesTo(1, 2*testTTL)
				passes(5 * testTTL)
				if now := look(t, s, leaseKey("0")); now.Version != before.Version {
					t.Errorf("it was replaced by %s", now.Value)
				}
				confirms(t, m.holding()[0])
				if lines := m.log.with("key=" + leaseKey("0")); len(lines) == 0 || !hasAll(lines[0], []string{"level=ERROR", "newer version", "update this process"}) {
					t.Errorf("%s", lines)
				}
				put(t, s, leaseKey("0"), `{"generation":9}`)
				m.comesTo(2, testTTL)
			})
		})
	}
}

func TestACallThatMeetsALeaseOfANewerVersionIsToldSo(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := memstore.New()
		m := join(t, s)
		put(t, s, m.keys.resource(Resource{Name: nightly}), `{"v":2,"generation":8}`)
		passes(2 * time.Second)
		if _, err := m.TryAcquire(nightly); !errors.Is(err, ErrHeld) || !errors.Is(err, form.ErrNewer) {
			t.Errorf("%v", err)
		}
	})
}
