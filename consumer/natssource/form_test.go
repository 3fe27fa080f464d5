package natssource

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/form"
	"github.com/epochfence/epochfence/lease"
)

// These bytes are frozen: processes of other versions, and operators, read and write them. See package form.
func TestTheStoredFormOfVersion1OfAPosition(t *testing.T) {
	t.Parallel()
	mark := epoch.Mark(9)
	for text, want := range map[string]position{
		`{"next":7}`: {Next: 7},
		`{"next":7,"print":9,"epoch":3,"owner":"host/1","log":"log","lag":2}`: {Next: 7, Print: &mark, Epoch: 3, Owner: "host/1", Log: "log", Lag: 2},
	} {
		if got, err := json.Marshal(want); err != nil || string(got) != text {
			t.Errorf("written: %s, %v; want %s", got, err, text)
		}
		if got, err := positionOf([]byte(text)); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("read: %+v, %v; want %+v", got, err, want)
		}
	}
	if got, want := positionKey("billing/eu", lease.Resource{Name: "orders", Number: 3}), "billing%2Feu/position/orders/3"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestAPositionOfANewerVersionIsRefused(t *testing.T) {
	t.Parallel()
	if p, err := positionOf([]byte(`{"next":7,"behind":{"by":2}}`)); err != nil || p.Next != 7 {
		t.Errorf("an unknown field: %+v, %v", p, err)
	}
	_, err := positionOf([]byte(`{"next":{"seq":7},"v":2}`))
	if !errors.Is(err, form.ErrNewer) {
		t.Error(err)
	}
	text := (&brokenPositionError{"a.position.b.0", "leases", err}).Error()
	if !strings.Contains(text, "newer version; update this process") || strings.Contains(text, "nats kv") {
		t.Errorf("%s", text)
	}
}
