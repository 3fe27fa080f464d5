package epoch_test

import (
	"strings"
	"testing"

	"github.com/epochfence/epochfence/epoch"
)

func TestAClaimIDIsAFreshVersion4UUID(t *testing.T) {
	seen := map[epoch.ClaimID]bool{}
	for range 1000 {
		id := epoch.NewClaim(epoch.Lease{}).ID
		if seen[id] || id == (epoch.ClaimID{}) {
			t.Fatalf("%s is not fresh", id)
		}
		seen[id] = true
		if s := id.String(); len(s) != 36 || s[14] != '4' || !strings.ContainsRune("89ab", rune(s[19])) {
			t.Fatalf("%s is not a version 4 UUID of RFC 9562", s)
		}
	}
}

func TestParseClaimID(t *testing.T) {
	const text = "0123abcd-4567-89ab-cdef-0123456789ab"
	want := epoch.ClaimID{0x01, 0x23, 0xab, 0xcd, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef, 0x01, 0x23, 0x45, 0x67, 0x89, 0xab}
	for _, s := range []string{text, strings.ToUpper(text)} {
		if got, err := epoch.ParseClaimID(s); err != nil || got != want {
			t.Errorf("%q: %s, %v", s, got, err)
		}
	}
	for name, s := range map[string]string{
		"empty":          "",
		"short":          text[1:],
		"long":           text + "0",
		"no hyphens":     strings.ReplaceAll(text, "-", "0"),
		"moved hyphens":  "0123abc-d4567-89ab-cdef-0123456789ab",
		"not a digit":    "0123abcg-4567-89ab-cdef-0123456789ab",
		"braces":         "{" + text + "}",
		"hyphen inside":  "0123-bcd-4567-89ab-cdef-0123456789ab",
		"multibyte rune": "0123ab\u00e9-4567-89ab-cdef-0123456789ab",
	} {
		if id, err := epoch.ParseClaimID(s); err == nil || id != (epoch.ClaimID{}) {
			t.Errorf("%s: %q is read as %s, %v", name, s, id, err)
		}
	}
}

func FuzzParseClaimID(f *testing.F) {
	f.Add("")
	f.Add(epoch.ClaimID{}.String())
	f.Add("0123ABCD-4567-89ab-cdef-0123456789ab")
	f.Add("0123abcd-4567-89ab-cdef-0123456789a-")
	f.Fuzz(func(t *testing.T, s string) {
		id, err := epoch.ParseClaimID(s)
		if err != nil {
			if id != (epoch.ClaimID{}) {
				t.Fatalf("%q: %v, and yet %s", s, err, id)
			}
			return
		}
		if id.String() != strings.ToLower(s) {
			t.Fatalf("%q is read as %s", s, id)
		}
		if again, err := epoch.ParseClaimID(id.String()); err != nil || again != id {
			t.Fatalf("%s is read as %s, %v", id, again, err)
		}
	})
}
