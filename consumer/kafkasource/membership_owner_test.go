package kafkasource

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/internal/text/process"
)

// TestAnOwnerIsNamedSoThatItsProcessIsFound: by the host and the process, behind the client's id where it was given one.
func TestAnOwnerIsNamedSoThatItsProcessIsFound(t *testing.T) {
	for want, opts := range map[string][]kgo.Opt{
		process.Name() + "/m":                   nil,
		"shipping-7@" + process.Name() + "/m":   {kgo.ClientID("shipping-7")},
		"shipping-7@" + process.Name() + "/m/i": {kgo.ClientID("shipping-7"), kgo.InstanceID("i")},
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
