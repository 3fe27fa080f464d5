// Package instant writes times of any year as text, and reads them. Package time reads only the
// years 0 to 9999, and a producer that takes microseconds for milliseconds writes later ones.
package instant

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Format returns t in UTC in the format of [time.RFC3339Nano], with more digits for the year if it
// needs them.
func Format(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

// Parse returns a time from [Format].
func Parse(s string) (time.Time, error) {
	t, err := time.Parse(time.RFC3339Nano, s)
	if err == nil {
		return t, nil
	}
	i := strings.IndexByte(strings.TrimPrefix(s, "-"), '-') + len(s) - len(strings.TrimPrefix(s, "-"))
	year, bad := strconv.Atoi(s[:max(i, 0)])
	if bad != nil {
		return t, err
	}
	same := 2000 + (year%400+400)%400 // the calendar repeats itself every 400 years
	if t, err = time.Parse(time.RFC3339Nano, fmt.Sprintf("%d%s", same, s[i:])); err != nil {
		return t, err
	}
	return t.AddDate(year-same, 0, 0), nil
}

// JSON is a time that is a text from [Format] in JSON, where a [time.Time] has the years 0 to 9999.
type JSON struct{ time.Time }

// MarshalJSON implements [json.Marshaler].
func (t JSON) MarshalJSON() ([]byte, error) { return json.Marshal(Format(t.Time)) }

// UnmarshalJSON implements [json.Unmarshaler].
func (t *JSON) UnmarshalJSON(b []byte) (err error) {
	var text string
	if err := json.Unmarshal(b, &text); err != nil {
		return err
	}
	t.Time, err = Parse(text)
	return err
}
