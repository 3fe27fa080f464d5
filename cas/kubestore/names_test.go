package kubestore

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"
)

func TestANameIsTheKeyOrEndsWithItsHash(t *testing.T) {
	s := &Store{name: "epochfence"}
	for key, want := range map[string]string{
		"orders":                          "epochfence.orders",
		"billing/lease/resource/orders/3": "epochfence.billing.lease.resource.orders.3",
		"billing/lease/member/AB_c":       "epochfence.billing-lease-member-ab-c.sha256-",
		"a.b":                             "epochfence.a-b.sha256-",
		"A":                               "epochfence.a.sha256-",
		"a/sha256-":                       "epochfence.a-sha256.sha256-",
		"a//b":                            "epochfence.a-b.sha256-",
		"/":                               "epochfence.sha256-",
		"é":                               "epochfence.sha256-",
		strings.Repeat("k", 242):          "epochfence." + strings.Repeat("k", 242),
		strings.Repeat("k", 243):          "epochfence." + strings.Repeat("k", 100) + ".sha256-",
	} {
		got := s.NameOf(key)
		hash, isHashed := strings.CutPrefix(got, want)
		if got != want && (!isHashed || len(hash) != 64) {
			t.Errorf("%q is named %s, want %s", key, got, want)
		}
		if why := validation.IsDNS1123Subdomain(got); len(why) > 0 {
			t.Errorf("%q is named %s: %q", key, got, why)
		}
	}
}
