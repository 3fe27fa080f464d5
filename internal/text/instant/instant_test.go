package instant_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/epochfence/epochfence/internal/text/instant"
)

func TestATimeOfAnyYearComesBack(t *testing.T) {
	for _, at := range []time.Time{
		{}, time.Date(2026, 2, 28, 23, 59, 59, 123456789, time.UTC), time.Date(2024, 2, 29, 0, 0, 0, 0, time.FixedZone("", 3600)),
		time.Date(9999, 12, 31, 23, 59, 59, 999999999, time.UTC), time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(57824, 2, 29, 1, 2, 3, 4, time.UTC),
		time.Date(-44, 3, 15, 0, 0, 0, 0, time.UTC), time.Date(-10000, 12, 31, 0, 0, 0, 0, time.UTC),
		time.UnixMilli(1 << 62), time.UnixMilli(1<<63 - 1), time.UnixMilli(-1 << 62),
	} {
		got, err := instant.Parse(instant.Format(at))
		if err != nil || !got.Equal(at) {
			t.Errorf("%v: %v, %v", at, got, err)
		}
		var back instant.JSON
		if text, err := json.Marshal(instant.JSON{Time: at}); err != nil || json.Unmarshal(text, &back) != nil || !back.Equal(at) {
			t.Errorf("%v: %v in JSON, %v", at, back, err)
		}
	}
	for _, text := range []string{"", "-", "--", "yesterday", "10000", "10000-13-01T00:00:00Z", "10000-02-30T00:00:00Z"} {
		if got, err := instant.Parse(text); err == nil {
			t.Errorf("%q is %v", text, got)
		}
	}
}
