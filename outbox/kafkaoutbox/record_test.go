package kafkaoutbox

import (
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/outbox"
	"github.com/epochfence/epochfence/outbox/internal/batches"
)

// The histories of the relay, also on Kafka, are tests of outbox/internal/batches.

func TestARecordIsTheSameAfterTheOutbox(t *testing.T) {
	odd := string([]byte{0, 255, '=', '&', '%', '\n'}) + "ü "
	for _, r := range []Record{
		{Topic: "t"},
		{Topic: "t", Key: []byte{}, Value: []byte{}},
		{Topic: "a.b_c-D", Key: []byte(odd), Value: []byte(odd), Headers: []epoch.Header{{Key: odd, Value: []byte(odd)}, {Key: "b"}, {Key: "", Value: []byte{}}, {Key: "b", Value: []byte("2")}}},
		{Topic: "t", Key: []byte(strings.Repeat("k", 5000)), Value: make([]byte, 990_000)},
	} {
		all, err := of(r)
		if err != nil {
			t.Fatal(err)
		}
		to := Options{}.target()
		e := to.Entry(all, r.Key)
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
		if len(e.Key) > 255 || e.Method != "PRODUCE" || e.URL != "kafka://"+r.Topic {
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

func TestErrorsOfRecordsAndOthersDiffer(t *testing.T) {
	for err, want := range map[error]batches.Refusal{
		kerr.UnknownTopicOrPartition: batches.Refused, kerr.TopicAuthorizationFailed: batches.Refused, kerr.MessageTooLarge: batches.RefusedTogether,
		kerr.InvalidProducerEpoch: batches.NotRefused, errors.New("of the test"): batches.NotRefused,
	} {
		if got := refusal(fmt.Errorf("wrapped: %w", err)); got != want {
			t.Errorf("%v: %v, want %v", err, got, want)
		}
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
