package epoch_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/epochfence/epochfence/epoch"
)

// A struct that embeds a Stringer is printed as that alone, and what a failed
// test or a log line was to show is not there.
func TestPlusVShowsEveryField(t *testing.T) {
	partition := epoch.Partition{Group: "billing", Topic: "orders", Number: 3}
	origin := epoch.Origin{Partition: partition, Log: "a log", Source: "an issuer"}
	position := epoch.Position{Offset: 71, Mark: 72}
	lease := epoch.Lease{Origin: origin, Generation: 73, Owner: "worker-1"}
	fence := epoch.Fence{
		Origin: origin, Generation: 74, Owner: "worker-2", Epoch: 75, Claim: epoch.NewClaimID(), Next: 76, Mark: 77, Applied: true,
	}
	for _, v := range []any{
		origin,
		position,
		lease,
		fence,
		epoch.Claim{Lease: lease, ID: epoch.NewClaimID(), Adopt: &position, Above: 78},
		epoch.Start{Origin: origin, Next: position, Earliest: epoch.Position{Offset: 79, Mark: 80}},
		epoch.Advance{Partition: partition, Claim: epoch.NewClaimID(), From: 81, To: 82, Mark: 83},
		epoch.StaleError{Partition: partition, Ours: epoch.NewClaimID(), Held: fence},
		epoch.MovedError{Partition: partition, From: 84, Next: 85},
		epoch.MissingError{Partition: partition},
		epoch.WentBackError{Was: fence, Now: epoch.Fence{Origin: origin, Next: 86, Mark: epoch.NoMark}},
		epoch.LogChangedError{Partition: partition, Fence: "one log", Source: "another log", Next: 87},
		epoch.ForeignLeaseError{Partition: partition, Fence: "one issuer", Source: "another issuer", Owner: "worker-3"},
	} {
		t.Run(reflect.TypeOf(v).Name(), func(t *testing.T) { showsAll(t, fmt.Sprintf("%+v", v), reflect.ValueOf(v)) })
	}
}

// showsAll fails the test for each field of v that s lacks, in whatever structs
// it is. A partition is shown by its name.
func showsAll(t *testing.T, s string, v reflect.Value) {
	t.Helper()
	if v.Kind() == reflect.Pointer {
		return // its address is shown
	}
	_, named := v.Interface().(epoch.Partition)
	if _, written := v.Interface().(time.Time); written {
		named = true
	}
	if named || v.Kind() != reflect.Struct {
		if !strings.Contains(s, fmt.Sprint(v.Interface())) {
			t.Errorf("%q lacks %v", s, v)
		}
		return
	}
	for i := range v.NumField() {
		if f := v.Type().Field(i); !strings.Contains(s, f.Name+":") {
			t.Errorf("%q lacks the field %s", s, f.Name)
		}
		showsAll(t, s, v.Field(i))
	}
}
