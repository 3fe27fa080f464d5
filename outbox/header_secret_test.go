package outbox

import (
	"net/http"
	"strings"
	"testing"
)

func TestAReceiverThatRepeatsATokenDoesNotPutItIntoAnError(t *testing.T) {
	h := http.Header{"Authorization": {"Bearer s3cret-token"}, "Accept-Encoding": {"gzip"}}
	for _, said := range []string{`got "Bearer s3cret-token"`, "the token s3cret-token has expired, gzip"} {
		got := hideHeader(said, h)
		if strings.Contains(got, "s3cret") || strings.Contains(said, "gzip") != strings.Contains(got, "gzip") {
			t.Errorf("%q is told as %q", said, got)
		}
	}
}

func TestAReceiverThatSpellsASecretOfTheURLAnotherWayDoesNotPutItIntoAnError(t *testing.T) {
	const of = "https://bob:p%40ss%2Fw@hooks.example/services/T0KEN%2Fsecret?key=s3cr%65tkey"
	for said, want := range map[string]string{
		"no user with p%40ss%2fw or p@ss%2Fw":             "no user with … or …",
		"no T0KEN%2fsecret, T0KEN/secret, %540KEN/secret": "no …, …, …",
		"no key s3cretkey, " + of:                         "no key …, https://hooks.example",
	} {
		if got := hide(said, of); got != want {
			t.Errorf("%q is told as %q, want %q", said, got, want)
		}
	}
}
