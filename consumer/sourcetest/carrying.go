package sourcetest

import (
	"bytes"
	"fmt"
	"reflect"
	"time"

	"github.com/epochfence/epochfence/consumer"
)

// carried returns m as it has to come out of partition 0.
func (w *world) carried(topic string, m consumer.Message) consumer.Message {
	m.Partition.Topic = topic
	m.Time = m.Time.Truncate(time.Millisecond)
	if c, ok := w.Harness.(Carrier); ok {
		m = c.Carried(m)
	}
	return m
}

var carrying = []history{{
	claim: "keys, values, headers and times come out as they went in",
	story: func(w *world) {
		topic := w.newTopic(1)
		when := time.Date(2001, 2, 3, 4, 5, 6, 789_000_000, time.UTC)
		sent := []consumer.Message{
			{Key: []byte("key"), Value: []byte("value"), Time: when},
			{Value: []byte("no key"), Time: when},
			{Key: []byte{}, Value: []byte("an empty key"), Time: when},
			{Key: []byte("an empty value"), Value: []byte{}, Time: when},
			{Key: []byte("no value"), Time: when},
			{Key: []byte{0, 0xff, 0xfe, '\n'}, Value: []byte{0xc3, 0x28, 0}, Time: when.Add(time.Hour)},
			{Value: []byte("headers"), Time: when, Headers: []consumer.Header{
				{Key: "z", Value: []byte("1")}, {Key: "a", Value: []byte("2")}, {Key: "z", Value: []byte("3")},
				{Key: "empty", Value: []byte{}}, {Key: "none"}, {Key: "bytes", Value: []byte{0, 0xff}},
			}},
			{Value: []byte("last"), Time: when},
		}
		w.Produce(w.t, topic, 0, sent...)
		g := w.start("a", topic).granted(topic, 0)
		for i, got := range g.read(g.earliest(), len(sent)) {
			if err := same(got.Message, w.carried(topic, sent[i])); err != nil {
				w.fail("message %d (%q): %w", i, sent[i].Value, err)
			}
		}
	},
}, {
	claim: "a message that comes without a time is given one",
	needs: []need{ofLogs},
	story: func(w *world) {
		topic := w.newTopic(1)
		before := time.Now().Truncate(time.Millisecond)
		w.produce(topic, 0, "x")
		g := w.start("a", topic).granted(topic, 0)
		m := g.read(g.earliest(), 1)[0]
		w.must(!m.Time.Before(before.Add(-time.Minute)) && !m.Time.After(time.Now().Add(time.Minute)), "the time is %v, and it is %v", m.Time, before)
	},
}, {
	claim: "messages of nearly a megabyte are carried whole, beside small ones",
	story: func(w *world) {
		topic := w.newTopic(1)
		var sent []consumer.Message
		for i := range 12 {
			m := consumer.Message{Value: []byte{byte(i)}}
			if i%3 == 0 {
				m.Value = bytes.Repeat(m.Value, 900<<10)
			}
			sent = append(sent, m)
		}
		w.Produce(w.t, topic, 0, sent...)
		g := w.start("a", topic).granted(topic, 0)
		for i, got := range g.read(g.earliest(), len(sent)) {
			if !bytes.Equal(got.Value, sent[i].Value) {
				w.fail("message %d has %d bytes, want %d of value %d", i, len(got.Value), len(sent[i].Value), i)
			}
		}
	},
}, {
	claim: "a message that looks like the server's is carried like any other",
	rules: "a message that looks like the server's",
	story: func(w *world) {
		topic := w.newTopic(1)
		var sent []consumer.Message
		header := func(key, value string) consumer.Header { return consumer.Header{Key: key, Value: []byte(value)} }
		for _, status := range []string{"100", "200", "400", "404", "408", "409", "412", "423", "429", "500", "503", "shipped", "", "0"} {
			sent = append(sent,
				consumer.Message{Value: []byte{}, Headers: []consumer.Header{header("Status", status)}},
				consumer.Message{Value: []byte("between"), Headers: []consumer.Header{header("Status", status)}})
		}
		for _, description := range []string{
			"Consumer Deleted", "Leadership Change", "Server Shutdown", "Message Size Exceeds MaxBytes", "Batch Completed",
			"Idle Heartbeat", "FlowControl Request", "Request Timeout", "No Messages",
		} {
			for _, status := range []string{"100", "404", "408", "409"} {
				sent = append(sent, consumer.Message{Value: []byte{}, Headers: []consumer.Header{
					header("Status", status), header("Description", description),
					header("Nats-Pending-Messages", "1"), header("Nats-Last-Consumer", "7"), header("Nats-Consumer-Stalled", "x"),
				}})
			}
		}
		for _, key := range []string{"status", "STATUS", "x", "x-y_z", "!", "Nats-Pin-Id", "Content-Length"} {
			sent = append(sent, consumer.Message{Value: []byte{}, Headers: []consumer.Header{header(key, "404"), header(key, "")}})
		}
		sent = append(sent, consumer.Message{Value: []byte{}}, consumer.Message{Value: []byte("last")})
		w.Produce(w.t, topic, 0, sent...)
		g := w.start("a", topic).granted(topic, 0)
		for i, got := range g.read(g.earliest(), len(sent)) {
			if err := same(got.Message, w.carried(topic, sent[i])); err != nil {
				w.fail("message %d (%q %q): %w", i, sent[i].Headers, sent[i].Value, err)
			}
		}
	},
}}

func same(got, want consumer.Message) error {
	switch {
	case !equal(got.Key, want.Key):
		return fmt.Errorf("key %#v, want %#v", got.Key, want.Key)
	case !equal(got.Value, want.Value):
		return fmt.Errorf("value %#v, want %#v", got.Value, want.Value)
	case len(got.Headers) != len(want.Headers):
		return fmt.Errorf("%d headers, want %d", len(got.Headers), len(want.Headers))
	case !want.Time.IsZero() && !got.Time.Truncate(time.Millisecond).Equal(want.Time):
		return fmt.Errorf("time %v, want %v", got.Time, want.Time)
	}
	for i, h := range got.Headers {
		if h.Key != want.Headers[i].Key || !equal(h.Value, want.Headers[i].Value) {
			return fmt.Errorf("header %d is %q: %#v, want %q: %#v", i, h.Key, h.Value, want.Headers[i].Key, want.Headers[i].Value)
		}
	}
	return nil
}

// equal distinguishes nil from empty.
func equal(a, b []byte) bool { return reflect.DeepEqual(a, b) }
