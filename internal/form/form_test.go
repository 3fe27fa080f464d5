package form_test

import (
	"errors"
	"testing"

	"github.com/epochfence/epochfence/internal/form"
)

type inner struct{ Name string }

type seen struct {
	form.Version
	Count int
}

type replaced struct {
	form.Kept
	inner
	Count int
	Names []inner `json:"names,omitempty"`
}

func TestANewerVersionIsRefusedWhateverItsFieldsAre(t *testing.T) {
	for _, text := range []string{
		`{"v":2,"Count":1}`, `{"Count":1,"v":2}`, `{"Count":"many","v":2}`, `{"Name":{"first":"a"},"Count":[],"v":3,"names":7}`,
	} {
		for _, into := range []form.Form{&seen{}, &replaced{}} {
			if err := form.Parse([]byte(text), into); !errors.Is(err, form.ErrNewer) || !errors.Is(err, form.ErrUnreadable) {
				t.Errorf("%T from %s: %v", into, text, err)
			}
		}
	}
	var s seen
	if err := form.Parse([]byte(`{"v":2,"Count":3,"Name":4}`), &s); err == nil || s.Count != 3 {
		t.Errorf("%v, and as much as can be read is %+v", err, s)
	}
}

func TestBrokenBytesAreUnreadableAndNotNewer(t *testing.T) {
	for _, text := range []string{"", "no JSON", `{"Count":1}}`, `{"Count":"many"}`, `{"v":"2"}`, `[1]`, `{"v":1,"Count":`} {
		for _, into := range []form.Form{&seen{}, &replaced{}} {
			if err := form.Parse([]byte(text), into); !errors.Is(err, form.ErrUnreadable) || errors.Is(err, form.ErrNewer) {
				t.Errorf("%T from %s: %v", into, text, err)
			}
		}
	}
}

func TestUnknownFieldsAreWrittenAgainIfTheFormKeepsThem(t *testing.T) {
	const tomorrows = `{"Count":1,"z":{"a":[1, 2]},"Name":"x","names":[{"Name":"y","Age":7}],"a\"b":null}`
	var r replaced
	if err := form.Parse([]byte(tomorrows), &r); err != nil {
		t.Fatal(err)
	}
	r.Count++
	got, err := form.Text(&r)
	if want := `{"Name":"x","Count":2,"names":[{"Name":"y"}],"a\"b":null,"z":{"a":[1,2]}}`; err != nil || string(got) != want {
		t.Errorf("%s, %v; want %s", got, err, want)
	}
	var s seen
	if err := form.Parse([]byte(tomorrows), &s); err != nil {
		t.Fatal(err)
	}
	if got, err := form.Text(&s); err != nil || string(got) != `{"Count":1}` {
		t.Errorf("%s, %v", got, err)
	}
}

func TestVersion1IsLeftOut(t *testing.T) {
	for _, text := range []string{`{"Count":1}`, " {\"Count\":1}\n "} {
		for _, into := range []form.Form{&seen{}, &replaced{}} {
			if err := form.Parse([]byte(text), into); err != nil {
				t.Fatalf("%T from %q: %v", into, text, err)
			}
		}
	}
	if got, err := form.Text(&seen{Count: 1}); err != nil || string(got) != `{"Count":1}` {
		t.Errorf("%s, %v", got, err)
	}
}
