package guard

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/memstore"
	"github.com/epochfence/epochfence/epoch"
)

// These bytes are frozen: processes of other versions read and write them. See package form.
func TestTheStoredFormOfVersion1OfANote(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]note{
		`{"by":null}`: {},
		`{"absent":true,"by":[{"g":"billing","t":"orders","n":3,"log":"log","era":5,"act":"0c9a","epoch":8,"from":95,` +
			`"by":[{"at":97,"mark":7,"out":"b3V0"},{"at":100,"mark":-1}],"replays":[{"id":4,"out":"b3V0"}]}]}`: {
			Absent: true,
			Histories: []history{{
				Group: "billing", Topic: "orders", Number: 3, Log: "log", Era: 5, Act: "0c9a", Epoch: 8, From: 95,
				Changes: []change{{At: 97, Mark: 7, Outcome: []byte("out")}, {At: 100, Mark: epoch.NoMark}},
				Replays: []replayed{{ID: 4, Outcome: []byte("out")}},
			}},
		},
	} {
		if got, err := json.Marshal(want); err != nil || string(got) != text {
			t.Errorf("written: %s, %v; want %s", got, err, text)
		}
		if got, err := noteOf(cas.Item{Note: []byte(text)}); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("read: %+v, %v; want %+v", got, err, want)
		}
	}
}

func adds(old State) (State, []byte, error) { return Text(string(old.Value) + "+"), nil, nil }

func stamped(offset epoch.Offset) Stamp {
	return Stamp{Partition: epoch.Partition{Group: "billing", Topic: "orders", Number: 3}, Log: "log", Epoch: 8, Offset: offset, Mark: epoch.NoMark}
}

func TestAnItemWithANewerNoteIsLeftAloneAndNoMessageIsAtFault(t *testing.T) {
	t.Parallel()
	s := memstore.New()
	const newer = `{"v":2,"by":{"billing/orders/3":[8,95]}}`
	before, err := s.Swap(t.Context(), cas.Item{Key: "stock"}, []byte("x"), []byte(newer))
	if err != nil {
		t.Fatal(err)
	}
	for what, do := range map[string]func() error{
		"change": func() error { _, err := Apply(t.Context(), s, "stock", stamped(101), adds); return err },
		"read":   func() error { _, err := Read(t.Context(), s, "stock"); return err },
	} {
		if err := do(); !errors.Is(err, epoch.ErrUnhealthy) || !strings.Contains(err.Error(), "newer version; update this process") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if now, err := s.Get(t.Context(), "stock"); err != nil || now.Version != before.Version {
		t.Errorf("%s, %v", now.Note, err)
	}
}

// Another one's changes are what a note must not lose, and it has them. See the comment of note.
func TestUnknownFieldsOfANoteAreNotWrittenAgain(t *testing.T) {
	t.Parallel()
	s := memstore.New()
	const tomorrows = `{"by":[{"g":"billing","t":"orders","n":3,"log":"log","epoch":8,"from":95,"by":[{"at":100,"mark":-1,"size":3}],"trace":"x"},` +
		`{"g":"billing","t":"refunds","n":0,"epoch":1,"from":2}],"shape":{}}`
	if _, err := s.Swap(t.Context(), cas.Item{Key: "stock"}, []byte("x"), []byte(tomorrows)); err != nil {
		t.Fatal(err)
	}
	for _, offset := range []epoch.Offset{100, 101} { // the first is made
		if _, err := Apply(t.Context(), s, "stock", stamped(offset), adds); err != nil {
			t.Fatal(err)
		}
	}
	now, err := s.Get(t.Context(), "stock")
	const want = `{"by":[{"g":"billing","t":"orders","n":3,"log":"log","epoch":8,"from":101,"by":[{"at":101,"mark":-1}]},` +
		`{"g":"billing","t":"refunds","n":0,"epoch":1,"from":2}]}`
	if err != nil || string(now.Value) != "x+" || string(now.Note) != want {
		t.Errorf("%s, %s, %v", now.Value, now.Note, err)
	}
}
