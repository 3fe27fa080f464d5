package cas_test

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/epochfence/epochfence/cas"
)

func TestAnEscapedKeyHasSafeBytesAloneAndComesBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		key, more := rapid.String().Draw(t, "key"), rapid.String().Draw(t, "more")
		escaped := cas.Escape(key)
		if bad := strings.Trim(escaped, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ=0123456789-_"); bad != "" {
			t.Fatalf("%q became %q", key, escaped)
		}
		if back, err := cas.Unescape(escaped); err != nil || back != key {
			t.Fatalf("%q became %q and came back as %q, %v", key, escaped, back, err)
		}
		if whole := cas.Escape(key + more); whole != escaped+cas.Escape(more) {
			t.Fatalf("%q is no prefix of %q", escaped, whole)
		}
	})
}

func TestWhatNobodyHasEscapedIsRefused(t *testing.T) {
	for _, bad := range []string{"=", "=A", "=a1", "=1g", "x=", "==41"} {
		if key, err := cas.Unescape(bad); err == nil {
			t.Errorf("%q was taken for %q", bad, key)
		}
	}
}
