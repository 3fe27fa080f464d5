package lease

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/epochfence/epochfence/cas/memstore"
	"github.com/epochfence/epochfence/internal/suites/bubble"
)

// names draws names that keys could mistake for something else.
func names() *rapid.Generator[string] {
	return rapid.OneOf(rapid.String(), rapid.StringOf(rapid.SampledFrom([]rune("ab0/%25F=ü."))))
}

func TestKeysAreUniqueForAnyNamesAndComeBack(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		k, other := keysOf(names().Draw(t, "group")), keysOf(names().Draw(t, "other group"))
		n := rapid.Int32Range(0, 1<<31-1)
		r, s := Resource{names().Draw(t, "name"), n.Draw(t, "number")}, Resource{names().Draw(t, "other name"), n.Draw(t, "other number")}
		if got, ok := k.parseResource(k.resource(r)); !ok || got != r {
			t.Fatalf("the key of %v is read as %v, %v", r, got, ok)
		}
		id := newMemberID()
		if got, ok := k.parseMember(k.member(id)); !ok || got != id {
			t.Fatalf("the key of member %s is read as %q, %v", id, got, ok)
		}
		if _, ok := k.parseMember(k.resource(r)); ok {
			t.Fatal("a resource is read as a member")
		}
		if _, ok := k.parseResource(k.member(id)); ok {
			t.Fatal("a member is read as a resource")
		}
		if r != s && k.resource(r) == k.resource(s) {
			t.Fatalf("%v and %v have one key", r, s)
		}
		if k != other && (strings.HasPrefix(k.resource(r), other.prefix) || strings.HasPrefix(k.member(id), other.prefix)) {
			t.Fatalf("a list of group %q has the keys of group %q", other.prefix, k.prefix)
		}
	})
}

func TestKeysAreWhatTheDocumentationSays(t *testing.T) {
	t.Parallel()
	k := keysOf("billing/eu")
	for _, c := range []struct{ got, want string }{
		{k.prefix, "billing%2Feu/lease/"},
		{k.member("ID"), "billing%2Feu/lease/member/ID"},
		{k.resource(Resource{"orders", 3}), "billing%2Feu/lease/resource/orders/3"},
		{k.resource(Resource{"ünits/100%", 0}), "billing%2Feu/lease/resource/ünits%2F100%25/0"},
	} {
		if c.got != c.want {
			t.Errorf("%s, want %s", c.got, c.want)
		}
	}
	for _, rest := range []string{"orders", "orders/", "orders/x", "orders/-1", "orders/+1", "orders/01", "orders/1/1", "orders/2147483648", "%6Frders/1", "orders%2/1", "orders%2f1/1"} {
		if r, ok := k.parseResource("billing%2Feu/lease/resource/" + rest); ok {
			t.Errorf("%s is read as %v", rest, r)
		}
	}
	if r, ok := k.parseResource("other/lease/resource/orders/1"); ok {
		t.Errorf("another group's is read as %v", r)
	}
}

func TestTheStoreHasWhatTheDocumentationSays(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := memstore.New()
		m := join(t, s, sharing(1), func(o *Options) { o.Name = "api" }).run()
		m.comesTo(1, testTTL)
		r := registrationIn(t, s, m.id)
		if !strings.HasPrefix(r.Name, "api@") || r.Serves["orders"] != 1 || r.TTL != testTTL.Milliseconds() || r.Nonce == "" || r.Ended {
			t.Errorf("the registration is %+v", r)
		}
		h := m.holding()[0]
		generation := confirms(t, h)
		l, ok := leaseOf(look(t, s, leaseKey("0")).Value)
		if !ok || l.Owner != r.Name || l.Member != m.id || l.Nonce == "" || l.Nonce == r.Nonce || l.Generation == 0 {
			t.Errorf("the lease is %+v", l)
		}
		if h.Owner() != r.Name+"/"+m.id || h.Generation() != generation || generation != look(t, s, leaseKey("0")).Number {
			t.Errorf("the owner is %s, the generation %d of %d", h.Owner(), h.Generation(), generation)
		}
		if err := h.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if l, ok := leaseOf(look(t, s, leaseKey("0")).Value); !ok || l.Member != "" || l.Owner != "" || l.Nonce != "" || l.Generation == 0 {
			t.Errorf("a lease that was released is %+v", l)
		}
	})
}
