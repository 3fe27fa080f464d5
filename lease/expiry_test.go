package lease

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/memstore"
	"github.com/epochfence/epochfence/internal/suites/bubble"
)

// strange are values that are no lease and no registration.
var strange = map[string]string{
	"garbage":               "somebody's",
	"nothing":               "",
	"bytes":                 "\x00\xff\xfe{",
	"null":                  "null",
	"a number":              "42",
	"a text":                `"x"`,
	"a list":                "[]",
	"an object":             "{}",
	"half of it":            `{"owner":"a","mem`,
	"another version":       `{"version":9,"holder":{"id":"x"},"serves":[{"orders":4}]}`,
	"other types":           `{"member":5,"serves":"orders","nonce":[],"generation":"x"}`,
	"a large one":           strings.Repeat("x", 900_000),
	"a large one in JSON":   `{"owner":"` + strings.Repeat("x", 900_000) + `","member":"x","name":5}`,
	"a number that is none": `{"member":"a b","serves":{"orders":1e300}}`,
}

// disbelieved are the registrations that no member can have written.
var disbelieved = []string{"a million resources", "a million names' resources", "less than no resources", "all resources that fit", "many that it does not want"}

// foreign is what somebody has put into the store, and what a member then says.
type foreign struct {
	where, what string
	values      map[string]string // by key
	says        []string          // the words of the one line that names a key or a registration; none
}

func allForeign() (all []foreign) {
	add := func(where, what string, values map[string]string, says ...string) {
		all = append(all, foreign{where, what, values, says})
	}
	lease, ghost := leaseKey("0"), memberKey("ghost")
	noLease := []string{"level=WARN", "was overwritten", "key=" + lease, "resource=orders/0", "stood=15"}
	const ofGhost = `{"owner":"ghost","member":"ghost","nonce":"n","generation":1}`
	for what, value := range strange {
		add("lease", what, map[string]string{lease: value}, noLease...)
		add("registration", what, map[string]string{lease: ofGhost, ghost: value}, "level=INFO", "has not renewed its registration", "registration=ghost")
	}
	for what, member := range map[string]string{
		"a member with a blank": "a b", "all members": ">", "any member": "*", "a member with dots": "a..b", "a member with slashes": "../x", "a long member": strings.Repeat("M", 5000),
	} {
		add("lease", what, map[string]string{lease: string(leaseRecord{Owner: "o", Member: member, Nonce: "n", Generation: 1}.json())}, noLease...)
	}
	add("lease", "no member", map[string]string{lease: `{"owner":"o","nonce":"n"}`}, noLease...)
	add("lease", "a generation below 0", map[string]string{lease: `{"member":"ghost","nonce":"n","generation":-1}`}, noLease...)
	add("lease", "a generation that does not fit", map[string]string{lease: `{"member":"ghost","nonce":"n","generation":9223372036854775808}`}, noLease...)
	add("lease", "a generation that leaves no room to grow", map[string]string{lease: `{"member":"x","nonce":"n","generation":9223372036854775807}`}, noLease...)
	add("lease", "a generation that leaves some", map[string]string{lease: `{"member":"x","nonce":"n","generation":4611686018427387903}`})
	add("lease", "a member that nobody knows", map[string]string{lease: `{"owner":"o","member":"x","nonce":"n","generation":1}`})
	add("lease", "a lease that was released", map[string]string{lease: `{"generation":1}`})
	for _, key := range []string{"resource/orders/00", "resource/orders/+0", "resource/orders", "resource/%6Frders/0", "resource/orders/0/0", "resource/orders/7", "resource/", "other"} {
		add("beside", strings.ReplaceAll(key, "/", " "), map[string]string{"billing/lease/" + key: "somebody's"})
	}
	add("beside", "a position", map[string]string{"billing/position/orders/x": "somebody's"})
	add("registration", "no id", map[string]string{memberKey(""): "somebody's"}, "level=INFO", "has not renewed its registration", `registration=""`)
	for what, record := range map[string]string{
		"a member like others":           `{"name":"ghost","serves":{"orders":2},"nonce":"n"}`,
		"a million resources":            `{"name":"ghost","serves":{"orders":1000000}}`,
		"a million names' resources":     `{"name":"ghost","serves":{"a":16000,"b":16000,"c":1000000}}`,
		"less than no resources":         `{"name":"ghost","serves":{"orders":-1}}`,
		"all resources that fit":         `{"name":"ghost","serves":{"orders":2147483647}}`,
		"a TTL of years":                 `{"name":"ghost","serves":{"orders":2},"ttl":9000000000000}`,
		"a TTL below 0":                  `{"name":"ghost","serves":{"orders":2},"ttl":-9000000000000}`,
		"many that it does not want":     `{"name":"ghost","serves":{"orders":2},"declined":["` + strings.Repeat(`x","`, 20_000) + `"]}`,
		"a record that says nothing":     `{}`,
		"a name that is not for a human": `{"name":"` + strings.Repeat("x", 100_000) + `","serves":{"orders":2}}`,
	} {
		says := []string{"level=INFO", "has not renewed its registration", "registration=ghost"}
		if slices.Contains(disbelieved, what) {
			says = []string{"level=ERROR", "claims an impossible number of resources", "key=" + ghost, "name=ghost", "remedy=\"remove " + ghost + `"`}
		}
		add("registration", what, map[string]string{lease: ofGhost, ghost: record}, says...)
	}
	return all
}

// One member is to have both resources, though somebody has put that into the store.
func TestForeignValuesInTheStoreIdleNoResourceForLong(t *testing.T) {
	for _, c := range allForeign() {
		t.Run(c.where+"/"+c.what, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) { c.idlesNothing(t, func(w *way) cas.Store { return w }) })
		})
		t.Run(c.where+"/"+c.what+"/in a store without numbers", func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) { c.idlesNothing(t, func(w *way) cas.Store { return listed{w, true, false} }) })
		})
	}
}

func (c foreign) idlesNothing(t *testing.T, of func(*way) cas.Store) {
	w := wayTo(memstore.New())
	for key, value := range c.values {
		put(t, w, key, value)
	}
	m := joinOn(t, w, of(w), sharing(2)).run()
	began := time.Now()
	m.comesTo(2, 2*testTTL)
	if took := time.Since(began); len(c.says) == 0 && took > 2*time.Second {
		t.Errorf("it took %v, and nobody had to be waited for", took)
	}
	for _, h := range m.holding() {
		confirms(t, h)
	}
	passes(testTTL)
	if n := len(m.holding()); n != 2 {
		t.Errorf("then it holds %d", n)
	}
	lines := append(m.log.with("key="), m.log.with("registration=")...)
	if slices.Contains(disbelieved, c.what) { // it is ended as well
		lines = slices.DeleteFunc(m.log.with("key="), func(line string) bool { return strings.Contains(line, "times=") })
	}
	if len(c.says) == 0 && len(lines) > 0 || len(c.says) > 0 && (len(lines) != 1 || !hasAll(lines[0], c.says)) {
		t.Errorf("want a line with %q, and no other; got %d:\n%.2000s", c.says, len(lines), strings.Join(lines, ""))
	}
	if n := len(m.log.String()); n > 4000 {
		t.Errorf("the log has %d bytes", n)
	}
}

// A value that changes again and again may be somebody's work: it is not taken, and that is said.
func TestAStrangeValueThatIsWrittenAgainAndAgainIsSaid(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := memstore.New()
		key := leaseKey("0")
		put(t, s, key, "0")
		m := join(t, s, sharing(2)).run()
		m.comesTo(1, testTTL)
		said := func() []string {
			return m.log.with("level=ERROR", "again and again", "resource=orders/0", "key="+key, `remedy="remove `+key+`"`)
		}
		for n := 0; n < 40; n++ {
			passes(testTTL / 4)
			put(t, s, key, fmt.Sprint(n))
			if n == 10 && len(said()) > 0 {
				t.Errorf("it is said before it has lasted:\n%s", m.log)
			}
		}
		if n := len(m.log.with("key=")) - len(m.log.with("key=", "times=")); n != 1 || len(said()) < 1 || len(m.holding()) != 1 {
			t.Errorf("%d lines; it holds %d\n%s", n, len(m.holding()), m.log)
		}
		m.comesTo(2, 2*testTTL) // it is left alone now
		until(t, time.Second, func() bool { return len(m.log.with("over: ")) > 0 })
		if n := len(m.log.with("was overwritten")); n != 0 {
			t.Errorf("what is said already is said again:\n%s", m.log)
		}
		if n := len(m.log.with("over: ")); n != 1 {
			t.Errorf("that it is over is said %d times:\n%s", n, m.log)
		}
	})
}

// A value in the key of a lease that a member holds costs the lease, and nobody else is let in at once.
func TestAStrangeValueIsLeftAloneForALeasesTerm(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := memstore.New()
		a, b := join(t, s, sharing(1)).run(), join(t, s)
		a.comesTo(1, testTTL)
		h := a.holding()[0]
		put(t, s, leaseKey("0"), "somebody's")
		if err := lose(t, h, time.Second); !errors.Is(err, errTaken) {
			t.Errorf("lost because of %v", err)
		}
		began := time.Now()
		a.comesTo(1, 2*testTTL)
		if took := time.Since(began); took < testTTL-time.Second {
			t.Errorf("it was taken after %v, with a TTL of %v", took, testTTL)
		}
		put(t, s, b.keys.resource(Resource{"nightly", 0}), "somebody's")
		began = time.Now()
		b.locks("nightly")
		if took := time.Since(began); took < testTTL || took > testTTL+2*time.Second {
			t.Errorf("the lock was taken after %v, with a TTL of %v", took, testTTL)
		}
	})
}

func TestALeaseThatNamesAMemberThatDoesNotServeItsResourceIsReleased(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := memstore.New()
		b := join(t, s, func(o *Options) { o.Resources = map[string]int32{"others": 1} }).run()
		b.comesTo(1, testTTL)
		put(t, s, leaseKey("0"), `{"owner":"b","member":"`+b.id+`","nonce":"n","generation":1}`)
		a := join(t, s, sharing(1)).run()
		a.comesTo(1, testTTL)
		if lines := b.log.with("level=WARN", "does not serve", "key="+leaseKey("0")); len(lines) != 1 {
			t.Errorf("it is said %d times:\n%s", len(lines), b.log)
		}
		if lines := a.log.with("key="); len(lines) > 0 {
			t.Errorf("the other says\n%s", a.log)
		}
	})
}

func TestARegistrationThatIsNotBelievedIsSaidOnceAndThatItIsGone(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := memstore.New()
		m := join(t, s, sharing(2)).run()
		m.comesTo(2, testTTL)
		for range 5 {
			put(t, s, memberKey("ghost"), `{"name":"ghost","serves":{"orders":1000000}}`)
			passes(testTTL / 3)
		}
		if n := m.taken(); n != 2 {
			t.Errorf("%d leases were taken", n)
		}
		if lines := m.log.with("key=" + memberKey("ghost")); len(lines) < 1 || len(lines)-len(m.log.with("times=")) != 1 {
			t.Errorf("%d lines:\n%s", len(lines), m.log)
		}
		remove(t, s, memberKey("ghost"))
		passes(time.Second)
		if n := len(m.log.with("over: a registration claims")); n != 1 {
			t.Errorf("that it is over is said %d times:\n%s", n, m.log)
		}
	})
}

// A member may serve more than others believe a stranger to.
func TestAMemberThatServesManyBelievesThatOthersDo(t *testing.T) {
	m := &testMember{Member: newMember(t.Context(), memstore.New(), testOptions(&said{}, sharing(2000)))}
	defer m.troubles.Close()
	for n, believed := range map[int32]bool{32_000: true, 32_001: false} {
		r := memberRecord{Serves: map[string]int32{"orders": n}}
		if got := m.believed("x", r); (got.Serves != nil) != believed {
			t.Errorf("%d: believed %v, want %v", n, got.Serves != nil, believed)
		}
	}
}

// The other members would not believe a registration that declines what it does not serve.
func TestALockThatIsDeclinedIsNotToldToOthers(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := memstore.New()
		a, b := join(t, s), join(t, s, sharing(1)).run()
		b.comesTo(1, testTTL)
		h := a.locks("nightly")
		h.Decline(nil)
		if err := h.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		changes(t, s, a.id, 2)
		if r := registrationIn(t, s, a.id); len(r.Declined) > 0 {
			t.Errorf("the value is %+v", r)
		}
		if lines := b.log.with("level=ERROR"); len(lines) > 0 {
			t.Errorf("the other says\n%s", b.log)
		}
	})
}

// The store is changed under a member that runs.
func TestSettingsThatLoseItemsEndTheLeasesUntilTheRemedy(t *testing.T) {
	for _, watched := range []bool{true, false} {
		t.Run(map[bool]string{true: "a watcher", false: "a store that is listed"}[watched], func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := wayTo(memstore.New())
				m := joinOn(t, w, map[bool]cas.Store{true: w, false: struct{ cas.Store }{w}}[watched], sharing(1)).run()
				m.comesTo(1, testTTL)
				h := m.holding()[0]
				m.has(unsuitable)
				err := lose(t, h, 4*testTTL/3)
				if !errors.Is(err, cas.ErrUnsuitable) || !strings.Contains(err.Error(), "edit it") {
					t.Errorf("the lease was lost by: %v", err)
				}
				passes(4 * testTTL)
				lines := slices.DeleteFunc(m.log.with("level=ERROR", "settings with which it can lose leases", "edit it"), func(line string) bool { return strings.Contains(line, "times=") })
				if len(lines) != 1 || m.taken() != 1 {
					t.Errorf("it is said %d times, and %d leases were taken:\n%s", len(lines), m.taken(), m.log)
				}
				m.has(nil)
				m.comesTo(1, 2*testTTL)
				if n := len(m.log.with("level=INFO", "over: ")); n != 1 {
					t.Errorf("that it is over is said %d times:\n%s", n, m.log)
				}
			})
		})
	}
}

// unsuitable is what a way does to a store that somebody has changed.
func unsuitable(ctx context.Context, r request, do func(context.Context) error) error {
	if r.op == "facts" {
		return fmt.Errorf("%w: edit it", cas.ErrUnsuitable)
	}
	return do(ctx)
}

// The store says so only once it has forgotten something.
func TestARegistrationThatIsGoneHasTheSettingsLookedAt(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := memstore.New()
		m := join(t, s, sharing(1)).run()
		m.comesTo(1, testTTL)
		h := m.holding()[0]
		m.has(unsuitable)
		remove(t, s, memberKey(m.id))
		_ = lose(t, h, 2*testTTL/3)
		passes(time.Second)
		if lines := m.log.with("level=ERROR", "settings with which it can lose leases", "edit it"); len(lines) == 0 || m.taken() != 1 {
			t.Errorf("%d leases were taken, and the log is\n%s", m.taken(), m.log)
		}
	})
}

// forgetful is a store that has evicted a key, and leaves no trace of it.
type forgetful struct {
	cas.Store
	evicted atomic.Pointer[string]
}

func (f *forgetful) has(key string) bool { e := f.evicted.Load(); return e == nil || *e != key }

func (f *forgetful) Get(ctx context.Context, key string) (cas.Item, error) {
	if !f.has(key) {
		return cas.Item{Key: key}, nil
	}
	return f.Store.Get(ctx, key)
}

func (f *forgetful) List(ctx context.Context, prefix string) iter.Seq2[cas.Item, error] {
	return func(yield func(cas.Item, error) bool) {
		for item, err := range f.Store.List(ctx, prefix) {
			if (err != nil || f.has(item.Key)) && !yield(item, err) {
				return
			}
		}
	}
}

func (f *forgetful) Swap(ctx context.Context, seen cas.Item, value, note []byte) (cas.Item, error) {
	if !f.has(seen.Key) && seen.Version == "" {
		seen, _ = f.Store.Get(ctx, seen.Key)
		f.evicted.Store(nil)
	}
	return f.Store.Swap(ctx, seen, value, note)
}

// The store has evicted the holder's key, or the holder's registration, and says only now that it does.
func TestNothingIsTakenBecauseAStoreHasForgottenIt(t *testing.T) {
	for name, forget := range map[string]func(a *testMember) string{
		"the lease":        func(a *testMember) string { return a.keys.resource(Resource{"nightly", 0}) },
		"the registration": func(a *testMember) string { return memberKey(a.id) },
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				s := memstore.New()
				a := join(t, s)
				h := a.locks("nightly")
				w := wayTo(s)
				f := &forgetful{Store: w}
				b := joinOn(t, w, f)
				passes(testTTL / 2)
				b.has(unsuitable)
				key := forget(a)
				f.evicted.Store(&key)
				ctx, cancel := context.WithTimeout(t.Context(), testTTL)
				defer cancel()
				if _, err := b.Acquire(ctx, "nightly"); err == nil || len(b.log.with("level=ERROR", "settings with which it can lose leases")) == 0 {
					t.Errorf("err = %v, and the log is\n%s", err, b.log)
				}
				if err := h.Release(t.Context()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}
