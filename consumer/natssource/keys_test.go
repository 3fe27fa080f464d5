package natssource

import (
	"regexp"
	"testing"

	"pgregory.net/rapid"
)

func TestAnyNameIsOneTokenOfAKeyAndComesBack(t *testing.T) {
	t.Parallel()
	token := regexp.MustCompile(`^[-_=a-zA-Z0-9]*$`)
	rapid.Check(t, func(t *rapid.T) {
		a, b := rapid.String().Draw(t, "a"), rapid.String().Draw(t, "b")
		if got, err := unescape(escape(a)); err != nil || got != a {
			t.Fatalf("%q comes back as %q, %v", a, got, err)
		}
		if !token.MatchString(escape(a)) {
			t.Fatalf("%q becomes %q", a, escape(a))
		}
		if a != b && escape(a) == escape(b) {
			t.Fatalf("%q and %q become the same", a, b)
		}
		k := newKeys(a)
		p := streamPartition{b, 7}
		if got, ok := k.parseLease(k.lease(p)); !ok || got != p {
			t.Fatalf("the lease of %v is read as %v, %v", p, got, ok)
		}
		if _, ok := k.parseMember(k.lease(p)); ok {
			t.Fatal("a lease is read as a member")
		}
	})
}

func TestKeysAreWhatTheDocumentationSays(t *testing.T) {
	t.Parallel()
	k := newKeys("billing/eu")
	for _, c := range []struct{ got, want string }{
		{k.member("ID"), "billing=2Feu.member.ID"},
		{k.lease(streamPartition{"orders", 3}), "billing=2Feu.lease.orders.3"},
		{k.position(streamPartition{"ünits", 0}), "billing=2Feu.position.=C3=BCnits.0"},
	} {
		if c.got != c.want {
			t.Errorf("%s, want %s", c.got, c.want)
		}
	}
	for _, key := range []string{"billing=2Feu.lease.orders", "billing=2Feu.lease.orders.x", "billing=2Feu.lease.orders.-1", "billing=2Feu.lease.or=xy.1", "billing=2Feu.lease.orders.01", "billing=2Feu.lease.orders.+1", "billing=2Feu.lease.=6Frders.1", "other.lease.orders.1"} {
		if p, ok := k.parseLease(key); ok {
			t.Errorf("%s is read as the lease of %v", key, p)
		}
	}
}
