package kafkaoutbox

import (
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/form"
	"github.com/epochfence/epochfence/outbox"
)

func TestThePositionDecidesWhatBecameOfTheAssignedBatch(t *testing.T) {
	batch, settled := &assignment{Number: 7, Name: "g", Previous: "f", Entries: []int64{3}}, &assignment{Number: 7, Name: "g"}
	kept := &assignment{Number: 7, Name: "g", Previous: inDoubt}
	for _, c := range []struct {
		at   position
		a    *assignment
		want decision
	}{
		{position{-1, ""}, nil, nothing},
		{position{6, "empty f"}, nil, nothing},
		{position{6, "f"}, nil, doubt}, // discarded, or the database has lost commits
		{position{6, ""}, nil, doubt},  // set by hand
		{position{7, "g"}, settled, deliver},
		{position{6, "f"}, settled, doubt}, // Kafka has lost commits
		{position{6, ""}, settled, doubt},
		{position{8, "h"}, settled, doubt}, // the database has lost commits
		{position{8, "empty h"}, settled, doubt},
		{position{-1, ""}, settled, doubt}, // the position was lost
		{position{7, "g"}, batch, deliver},
		{position{6, "f"}, batch, withdraw},
		{position{-1, ""}, batch, doubt},  // the position was lost
		{position{7, "x"}, batch, doubt},  // another database's, or ours before a restore
		{position{6, "x"}, batch, doubt},  // the same
		{position{7, ""}, batch, doubt},   // set by hand
		{position{6, ""}, batch, doubt},   // the same
		{position{8, "h"}, batch, doubt},  // the database has lost commits
		{position{8, "g"}, batch, doubt},  // no version writes that
		{position{5, "e"}, batch, doubt},  // Kafka has lost commits
		{position{0, "f"}, batch, doubt},  // began anew
		{position{-1, "f"}, batch, doubt}, // no version writes that
		{position{7, "g"}, kept, doubt},
		{position{6, "in doubt"}, kept, doubt},
		{position{-1, ""}, kept, doubt}, // Kafka has forgotten it
		{position{0, "empty x"}, kept, doubt},
	} {
		if got := decide(c.at, c.a); got != c.want {
			t.Errorf("decide(%v, %+v) = %v, want %v", c.at, c.a, got, c.want)
		}
	}
	if p := (position{-1, ""}).following(nil).position(); !p.empty() || decide(p, nil) != nothing {
		t.Errorf("the first position is %v", p)
	}
	for range 3 { // a batch follows its position, and no other
		at := position{7, "g"}
		next := at.following(nil)
		if decide(at, next) != withdraw || decide(next.position(), next) != deliver || decide(next.position(), at.following(nil)) != doubt {
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
}

func TestTheRecordsThatATopicRefusesAreFound(t *testing.T) {
	rows := []outbox.Row{{ID: 1, Entry: outbox.Entry{Key: "a"}}, {ID: 2, Entry: outbox.Entry{Key: "a"}}, {ID: 3}, {ID: 4}}
	large, gone, denied, other := kerr.MessageTooLarge, kerr.UnknownTopicOrPartition, kerr.TopicAuthorizationFailed, errors.New("of the test")
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
		{[]error{kerr.InvalidProducerEpoch, kerr.InvalidProducerEpoch, nil, nil}, nil, false},
	} {
		if got, narrow := blame(rows, c.errs); !slices.Equal(got, c.want) || narrow != c.narrow {
			t.Errorf("blame(%v) = %v, %v; want %v, %v", c.errs, got, narrow, c.want, c.narrow)
		}
	}
}

func TestOneRefusedRecordOfATopicIsTriedForAll(t *testing.T) {
	at := time.Now()
	row := func(id int64, key, topic string) outbox.Row {
		return outbox.Row{ID: id, Entry: outbox.Entry{Key: key, URL: urlStart + topic}}
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

func TestARecordIsTheSameAfterTheOutbox(t *testing.T) {
	odd := string([]byte{0, 255, '=', '&', '%', '\n'}) + "ü "
	for _, r := range []Record{
		{Topic: "t"},
		{Topic: "t", Key: []byte{}, Value: []byte{}},
		{Topic: "a.b_c-D", Key: []byte(odd), Value: []byte(odd), Headers: []epoch.Header{{Key: odd, Value: []byte(odd)}, {Key: "b"}, {Key: "", Value: []byte{}}, {Key: "b", Value: []byte("2")}}},
		{Topic: "t", Key: []byte(strings.Repeat("k", 5000)), Value: make([]byte, 990_000)},
	} {
		e, err := r.entry()
		if err != nil {
			t.Fatal(err)
		}
		text, err := outbox.MarshalHeader(e.Header) // as stores keep it
		if err != nil {
			t.Fatal(err)
		}
		var h http.Header
		if h, err = outbox.UnmarshalHeader(text); err != nil {
			t.Fatal(err)
		}
		e.Header = h
		if e.Body == nil {
			e.Body = []byte{} // the same
		}
		if len(e.Key) > maxKey || !isRecord(outbox.Row{Entry: e}) {
			t.Errorf("entry %.300v", e)
		}
		want := &kgo.Record{Topic: r.Topic, Key: r.Key, Value: r.Value}
		for _, field := range r.Headers {
			want.Headers = append(want.Headers, kgo.RecordHeader{Key: field.Key, Value: field.Value})
		}
		got, err := record(outbox.Row{Entry: e})
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("got %.300v, %v; want %.300v", got, err, want)
		}
	}
}

func TestKeysOrderRecordsAlsoIfNoDatabaseCanStoreThem(t *testing.T) {
	long := strings.Repeat("k", 1000)
	seen := map[string]string{}
	for _, key := range []string{"", "a", "ü", "=a", "#a", "batch", "\x00", "\xff", long, long + "k", strings.Repeat("ü", 124)} {
		got := orderKey([]byte(key))
		if before, twice := seen[got]; twice || got == "" || got == keyBatch || len(got) > maxKey || orderKey([]byte(key)) != got {
			t.Errorf("Key %.20q: %q, as %.20q has", key, got, before)
		}
		seen[got] = key
	}
	if got := orderKey(nil); got != "" {
		t.Errorf("no Key: %q", got)
	}
}

func TestARecordThatCanNeverBeSentFailsItsMessage(t *testing.T) {
	for name, r := range map[string]Record{
		"no topic":     {},
		"two dots":     {Topic: ".."},
		"a slash":      {Topic: "a/b"},
		"a long topic": {Topic: strings.Repeat("t", 250)},
		"large":        {Topic: "t", Key: make([]byte, 1), Value: make([]byte, maxRecord)},
		"many headers": {Topic: "t", Headers: slices.Repeat([]epoch.Header{{Key: strings.Repeat("h", 1000)}}, 1001)},
	} {
		box, err := New(outbox.Store[int](neverCalled{}), Options{})
		if err != nil {
			t.Fatal(err)
		}
		if err := box.Add(t.Context(), 0, epoch.Message{}, r); !errors.Is(err, outbox.ErrEntry) || !strings.Contains(fmt.Sprintf("%T", err), "ermanent") {
			t.Errorf("%s: err = %v", name, err)
		}
	}
}

type neverCalled struct{ outbox.Store[int] }

func TestOptionsAreChecked(t *testing.T) {
	for name, o := range map[string]Options{
		"batch":     {Batch: 10_001},
		"negative":  {Batch: -1},
		"timeout":   {RequestTimeout: -1},
		"waits":     {RetryMin: 2, RetryMax: 1},
		"positions": {Positions: "a/b"},
		"client":    {Client: []kgo.Opt{kgo.ProducerBatchMaxBytes(-1)}},
		"flushing":  {Client: []kgo.Opt{kgo.ManualFlushing()}},
		"group":     {Client: []kgo.Opt{kgo.ConsumerGroup("g")}},
		"topics":    {Client: []kgo.Opt{kgo.ConsumeTopics("t")}},
	} {
		if _, err := New(outbox.Store[int](neverCalled{}), o); err == nil || !strings.HasPrefix(err.Error(), "kafkaoutbox: ") {
			t.Errorf("%s: err = %v", name, err)
		}
	}
}

func TestNamesOfPartitionsDiffer(t *testing.T) {
	o := Options{Prefix: "p"}
	seen := map[string]epoch.Partition{}
	for _, p := range []epoch.Partition{{Group: "a/b", Topic: "c"}, {Group: "a", Topic: "b/c"}, {Group: "a%2Fb", Topic: "c"}, {Group: "a", Topic: "b", Number: 1}, {Group: "a", Topic: "b/1"}} {
		if before, twice := seen[o.name(p)]; twice {
			t.Errorf("%v and %v are both %s", before, p, o.name(p))
		}
		seen[o.name(p)] = p
	}
}
