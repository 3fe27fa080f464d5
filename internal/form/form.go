// Package form decides how the JSON may change that processes of several versions read and write.
// Two versions run together in each deployment, and tomorrow's may go back to today's.
//
//   - A form has the number of its version in the field "v". Version 1 leaves it out.
//   - A new optional field is not a new version. Readers of before ignore it. A process that
//     replaces an item of others writes the field again if the form is [Kept]; another form loses it.
//   - What an older process would misunderstand is a new version. An older process refuses it with
//     [ErrNewer] where it would act on it: a fence, a claim, a stamp. A list shows that it cannot be
//     read, and goes on with the others.
//   - A release that writes a new version follows one that reads it.
//   - A new kind of item gets keys that no list of before has.
//
// A test of each form has its frozen bytes: grep for TestTheStoredFormOfVersion1.
//
// Forms without JSON have the version in a name instead: the metadata of Kafka's offsets begins with
// "epochfence ", a fenced request has the header Epochfence-Version, a table has its migrations.
package form

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
)

// Newest is the version that this build reads and writes.
const Newest = 1

var (
	// ErrUnreadable is returned for what no version has written.
	ErrUnreadable = errors.New("it cannot be read")

	// ErrNewer is returned for what a newer version has written. It matches [ErrUnreadable].
	ErrNewer = fmt.Errorf("%w: it was written by a newer version; update this process", ErrUnreadable)
)

// Form is a pointer to a struct that embeds [Version] or [Kept].
type Form interface{ version() int }

// Version is the field that each form has.
type Version struct {
	V int `json:"v,omitempty"`
}

func (v Version) version() int { return v.V }

// Kept is a [Version] of a form that other processes replace. It has the fields of the outer object
// that this build does not know.
type Kept struct {
	Version
	unknown map[string]json.RawMessage
}

type keeper interface{ kept() *Kept }

func (k *Kept) kept() *Kept { return k }

// Parse parses the text of a form. into must be zero. With [ErrNewer], into has as much as could be
// read.
func Parse(text []byte, into Form) error {
	k, keeps := into.(keeper)
	if !keeps {
		return judge(text, into, json.Unmarshal(text, into))
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err == nil && len(bytes.TrimSpace(text[d.InputOffset():])) == 0 {
		return judge(text, into, nil)
	}
	reflect.ValueOf(into).Elem().SetZero()
	if err := judge(text, into, json.Unmarshal(text, into)); err != nil {
		return err
	}
	unknown := map[string]json.RawMessage{}
	err := json.Unmarshal(text, &unknown)
	maps.DeleteFunc(unknown, func(name string, _ json.RawMessage) bool { return isKnown(into, name) })
	k.kept().unknown = unknown
	return err
}

// judge returns the error of a text that was parsed, or not.
func judge(text []byte, into Form, err error) error {
	v := into.version()
	if err != nil && v <= Newest { // what is of another type may come before the version
		var of Version
		_ = json.Unmarshal(text, &of)
		v = of.V
	}
	switch {
	case v > Newest:
		return fmt.Errorf("%w: its form is version %d, and this process knows %d", ErrNewer, v, Newest)
	case err != nil:
		return fmt.Errorf("%w: %w", ErrUnreadable, err)
	}
	return nil
}

func isKnown(of Form, name string) bool {
	text, _ := json.Marshal(map[string]any{name: nil})
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	return d.Decode(reflect.New(reflect.TypeOf(of).Elem()).Interface()) == nil
}

// Text returns the text of a form, with the fields that [Parse] has kept.
func Text(f Form) ([]byte, error) {
	text, err := json.Marshal(f)
	k, keeps := f.(keeper)
	if err != nil || !keeps {
		return text, err
	}
	unknown := k.kept().unknown
	for _, name := range slices.Sorted(maps.Keys(unknown)) {
		field, err := json.Marshal(map[string]json.RawMessage{name: unknown[name]})
		if err != nil {
			return nil, err
		}
		text = append(append(text[:len(text)-1], ','), field[1:]...) // no form is empty
	}
	return text, nil
}
