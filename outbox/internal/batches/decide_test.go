package batches

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/epochfence/epochfence/internal/form"
	"github.com/epochfence/epochfence/outbox"
)

func TestThePositionDecidesWhatBecameOfTheAssignedBatch(t *testing.T) {
	batch, settled := &assignment{Number: 7, Name: "g", Previous: "f", Entries: []int64{3}}, &assignment{Number: 7, Name: "g"}
	ahead := &assignment{Number: 7, Name: "g", Previous: "f", Entries: []int64{3}, Ahead: &assignment{Number: 8, Name: "h", Previous: "g", Entries: []int64{4}}}
	kept := &assignment{Number: 7, Name: "g", Previous: inDoubt}
	for _, c := range []struct {
		at   Position
		a    *assignment
		want decision
	}{
		{Position{-1, ""}, nil, nothing},
		{Position{6, "empty f"}, nil, nothing},
		{Position{6, "f"}, nil, doubt}, // discarded, or the database has lost commits
		{Position{6, ""}, nil, doubt},  // set by hand
		{Position{7, "g"}, settled, deliver},
		{Position{6, "f"}, settled, doubt}, // Kafka has lost commits
		{Position{6, ""}, settled, doubt},
		{Position{8, "h"}, settled, doubt}, // the database has lost commits
		{Position{8, "empty h"}, settled, doubt},
		{Position{-1, ""}, settled, doubt}, // the position was lost
		{Position{7, "g"}, batch, deliver},
		{Position{6, "f"}, batch, withdraw},
		{Position{-1, ""}, batch, doubt},  // the position was lost
		{Position{7, "x"}, batch, doubt},  // another database's, or ours before a restore
		{Position{6, "x"}, batch, doubt},  // the same
		{Position{7, ""}, batch, doubt},   // set by hand
		{Position{6, ""}, batch, doubt},   // the same
		{Position{8, "h"}, batch, doubt},  // the database has lost commits
		{Position{8, "g"}, batch, doubt},  // no version writes that
		{Position{5, "e"}, batch, doubt},  // Kafka has lost commits
		{Position{0, "f"}, batch, doubt},  // began anew
		{Position{-1, "f"}, batch, doubt}, // no version writes that
		{Position{8, "h"}, ahead, deliver},
		{Position{7, "g"}, ahead, deliver},
		{Position{6, "f"}, ahead, withdraw},
		{Position{5, "e"}, ahead, doubt}, // Kafka has lost commits
		{Position{8, "g"}, ahead, doubt}, // no version writes that
		{Position{7, "h"}, ahead, doubt}, // the same
		{Position{8, "x"}, ahead, doubt}, // the database has lost commits
		{Position{9, "i"}, ahead, doubt}, // the same
		{Position{-1, ""}, ahead, doubt}, // the position was lost
		{Position{7, "g"}, kept, doubt},
		{Position{6, "in doubt"}, kept, doubt},
		{Position{-1, ""}, kept, doubt}, // Kafka has forgotten it
		{Position{0, "empty x"}, kept, doubt},
	} {
		if got := decide(c.at, c.a, false); got != c.want {
			t.Errorf("decide(%v, %+v, false) = %v, want %v", c.at, c.a, got, c.want)
		}
	}
	for at, want := range map[Position]decision{{7, "g"}: deliver, {6, "f"}: doubt, {5, "e"}: doubt} {
		if got := decide(at, batch, true); got != want {
			t.Errorf("decide(%v, %+v, true) = %v, want %v", at, batch, got, want)
		}
	}
	for at, want := range map[Position]decision{{8, "h"}: deliver, {7, "g"}: doubt, {6, "f"}: doubt} { // the last of them may be torn
		if got := decide(at, ahead, true); got != want {
			t.Errorf("decide(%v, %+v, true) = %v, want %v", at, ahead, got, want)
		}
	}
	if p := (Position{-1, ""}).following(nil).position(); !p.empty() || decide(p, nil, false) != nothing {
		t.Errorf("the first position is %v", p)
	}
	for range 3 { // a batch follows its position, and no other
		at := Position{7, "g"}
		next := at.following(nil)
		if decide(at, next, false) != withdraw || decide(next.position(), next, false) != deliver || decide(next.position(), at.following(nil), false) != doubt {
			t.Errorf("%+v does not follow %v alone", next, at)
		}
	}
}

func TestTheStoredFormOfVersion1(t *testing.T) {
	const frozen = `{"number":7,"name":"g","previous":"f","entries":[3,5]}`
	want := assignment{Number: 7, Name: "g", Previous: "f", Entries: []int64{3, 5}}
	text, err := form.Text(&want)
	if err != nil || string(text) != frozen {
		t.Errorf("written: %s, %v; want %s", text, err, frozen)
	}
	var got assignment
	if err := form.Parse([]byte(frozen), &got); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("read: %+v, %v", got, err)
	}
	const two = `{"number":7,"name":"g","previous":"f","entries":[3],"ahead":{"number":8,"name":"h","previous":"g","entries":[4]}}`
	got, want = assignment{}, assignment{Number: 7, Name: "g", Previous: "f", Entries: []int64{3}, Ahead: &assignment{Number: 8, Name: "h", Previous: "g", Entries: []int64{4}}}
	if text, err := form.Text(&want); err != nil || string(text) != two {
		t.Errorf("written: %s, %v; want %s", text, err, two)
	}
	if err := form.Parse([]byte(two), &got); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("read: %+v, %v", got, err)
	}
}

func TestTheRecordsThatATopicRefusesAreFound(t *testing.T) {
	rows := []outbox.Row{{ID: 1, Entry: outbox.Entry{Key: "a"}}, {ID: 2, Entry: outbox.Entry{Key: "a"}}, {ID: 3}, {ID: 4}}
	large, gone, denied, other := errors.New("too large"), errors.New("no such topic"), errors.New("not allowed"), errors.New("of the test")
	of := func(err error) Refusal {
		switch {
		case errors.Is(err, gone), errors.Is(err, denied):
			return Refused
		case errors.Is(err, large):
			return RefusedTogether
		}
		return NotRefused
	}
	for _, c := range []struct {
		errs   []error
		want   []int
		narrow bool
	}{
		{nil, nil, false},
		{[]error{nil, nil, nil, other}, nil, false},
		{[]error{other, other, other, other}, nil, false},
		{[]error{nil, large, other, other}, []int{1}, false},
		{[]error{nil, large, large, nil}, nil, true},
		{[]error{gone, gone, fmt.Errorf("wrapped: %w", gone), nil}, []int{0, 2}, false}, // the second waits for the first
		{[]error{nil, nil, denied, denied}, []int{2, 3}, false},
		{[]error{gone, nil, large, large}, []int{0}, false}, // the others are found later
		{[]error{gone, nil, nil, large}, []int{0, 3}, false},
	} {
		if got, narrow := blame(rows, c.errs, of); !slices.Equal(got, c.want) || narrow != c.narrow {
			t.Errorf("blame(%v) = %v, %v; want %v, %v", c.errs, got, narrow, c.want, c.narrow)
		}
	}
}

func TestOneRefusedRecordOfATopicIsTriedForAll(t *testing.T) {
	at := time.Now()
	row := func(id int64, key, destination string) outbox.Row {
		return outbox.Row{ID: id, Entry: outbox.Entry{Key: key, URL: "kafka://" + destination}}
	}
	var s refusals
	all := []outbox.Row{row(9, "a", "x"), row(1, "a", "x"), row(2, "", "x"), row(3, "b", "x"), row(4, "c", "y")}
	for _, of := range all {
		s.add(of, at, time.Second)
	}
	want := func(ids ...int64) {
		t.Helper()
		if got := s.due(at, 100); !slices.Equal(got, ids) {
			t.Errorf("due: %v, want %v", got, ids)
		}
	}
	want()
	at = at.Add(time.Second)
	want(1, 4)
	s.add(all[1], at, time.Second) // refused again
	want(4)
	at = at.Add(time.Second)
	want(2, 4) // another than before
	s.remove(2)
	s.width["x"] *= 2 // delivered
	want(3, 4, 1)
	s.of[1].tries = -1 // an operator wants it
	want(1, 3, 4)
	s.add(row(5, "", "x"), at, time.Second) // a new one does not hold the others up
	want(1, 4)
	s.remove(1)
	want(3, 4)
	s.remove(3)
	want(4, 9) // 9 is the first of its Key now
	for _, c := range []struct {
		row   outbox.Row
		holds bool
	}{{row(8, "a", "x"), false}, {row(9, "a", "x"), true}, {row(10, "a", "y"), true}, {row(10, "b", "x"), false}, {row(10, "", "x"), false}, {row(5, "", "x"), true}} {
		if got := s.holds(c.row); got != c.holds {
			t.Errorf("%+v is held: %v, want %v", c.row, got, c.holds)
		}
	}
	for _, id := range []int64{4, 5, 9} {
		s.remove(id)
	}
	if len(s.of)+len(s.first)+len(s.width) > 0 {
		t.Errorf("left: %+v", s)
	}
}

func TestKeysOrderRecordsAlsoIfNoDatabaseCanStoreThem(t *testing.T) {
	long := strings.Repeat("k", 1000)
	o := &Target{Prefix: "x:"}
	seen := map[string]string{}
	for _, key := range []string{"", "a", "ü", "=a", "#a", "batch", "\x00", "\xff", long, long + "k", strings.Repeat("ü", 124)} {
		got := o.orderKey([]byte(key))
		if before, twice := seen[got]; twice || got == "" || got == o.keyBatch() || len(got) > maxKey || o.orderKey([]byte(key)) != got {
			t.Errorf("Key %.20q: %q, as %.20q has", key, got, before)
		}
		seen[got] = key
	}
	if got := o.orderKey(nil); got != "" {
		t.Errorf("no Key: %q", got)
	}
}
