package kafkasource

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/consumer/internal/tenures"
)

// TestAnOwnerIsNamedSoThatItsProcessIsFound: by the host and the process, or as the client is.
func TestAnOwnerIsNamedSoThatItsProcessIsFound(t *testing.T) {
	for want, opts := range map[string][]kgo.Opt{
		tenures.Process() + "/m": nil,
		"shipping-7/m":           {kgo.ClientID("shipping-7")},
		"shipping-7/m/i":         {kgo.ClientID("shipping-7"), kgo.InstanceID("i")},
	} {
		s, err := New(Options{Group: "g", Topics: []string{"t"}, Client: append(opts, kgo.SeedBrokers("localhost:9092"))})
		if err != nil {
			t.Fatal(err)
		}
		if got := s.owner("m"); got != want {
			t.Errorf("owner %q, want %q", got, want)
		}
	}
}
