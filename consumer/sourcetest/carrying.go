package sourcetest

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
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
			w.must(bytes.Equal(got.Value, sent[i].Value), "message %d has %d bytes, want %d of value %d", i, len(got.Value), len(sent[i].Value), i)
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

func (g *grant) wantMisfit(from epoch.Fence, kind error, found epoch.Offset) {
	err := g.readError(from)
	var misfit *consumer.PositionError
	if !errors.As(err, &misfit) || !errors.Is(err, kind) {
		g.p.w.fail("Read of %s from %d = %v; want a *PositionError: %v", g.name(), from.Next, err, kind)
	}
	want := consumer.PositionError{Partition: g.Origin().Partition, Kind: kind, Position: from.Next, Found: found}
	g.p.w.must(*misfit == want, "Read of %s = %+v, want %+v", g.name(), *misfit, want)
}

var misfits = []history{{
	claim: "a position above the log's end is an error with both numbers, and Read may be called again",
	rules: "R10", needs: []need{ofLogs},
	story: func(w *world) {
		_, g := w.granted("x", "y")
		end := g.latest().Next
		g.wantMisfit(g.at(end+10), consumer.ErrTruncated, end)
		g.wantMisfit(g.at(end+1), consumer.ErrTruncated, end)
		g.want(g.earliest(), "x", "y")
	},
}, {
	claim: "a position below the log's beginning is an error with both numbers, and Read may be called again",
	rules: "R10", needs: []need{needs[Trimmer]()},
	story: func(w *world) {
		all := numbered(0, 0, 10)
		topic, g := w.granted(all...)
		a := g.p
		ms := g.want(g.earliest(), all...)
		w.Harness.(Trimmer).Trim(w.t, topic, 0, ms[6].Offset)
		g.wantMisfit(g.at(ms[2].Offset), consumer.ErrOffsetExpired, ms[6].Offset)
		g.wantMisfit(g.at(ms[6].Offset-1), consumer.ErrOffsetExpired, ms[6].Offset)
		g.want(g.at(ms[6].Offset), all[6:]...)
		a.leave()
		if at := w.start("b", topic).granted(topic, 0).earliest().Next; at != ms[6].Offset {
			w.fail("the earliest offset is %d, want %d", at, ms[6].Offset)
		}
	},
}, {
	claim: "a log that was trimmed to its end is no error for a position at the end",
	rules: "R10", needs: []need{needs[Trimmer]()},
	story: func(w *world) {
		topic, g := w.granted("x", "y")
		end := g.latest()
		w.Harness.(Trimmer).Trim(w.t, topic, 0, end.Next)
		w.produce(topic, 0, "z")
		g.want(end, "z")
	},
}, {
	claim: "a gap that a delete has left is read across",
	rules: "R10", needs: []need{needs[Deleter]()},
	story: func(w *world) {
		all := numbered(0, 0, 10)
		topic, g := w.granted(all...)
		ms := g.want(g.earliest(), all...)
		for _, i := range []int{3, 4, 9} {
			w.Harness.(Deleter).Delete(w.t, topic, 0, ms[i].Offset)
		}
		w.produce(topic, 0, "more")
		g.want(g.at(ms[0].Offset), append(append(numbered(0, 0, 3), numbered(0, 5, 9)...), "more")...)
		g.want(g.at(ms[4].Offset), numbered(0, 5, 9)...)
		g.want(g.at(ms[9].Offset), "more")
	},
}, {
	claim: "a log that was cut off below the position is an error, also once it has grown again",
	rules: "R10, attack: truncated log", needs: []need{needs[Truncator]()},
	story: func(w *world) {
		all := numbered(0, 0, 10)
		topic, g := w.granted(all...)
		ms := g.want(g.earliest(), all...)
		applied := after(g.at(0), ms[7])
		w.Harness.(Truncator).Truncate(w.t, topic, 0, ms[4].Offset)
		g.wantMisfit(applied, consumer.ErrTruncated, ms[4].Offset)
		w.produce(topic, 0, numbered(1, 0, 20)...)
		g.wantMisfit(applied, consumer.ErrTruncated, ms[4].Offset)
		// What was applied before the cut is still there.
		g.want(after(g.at(0), ms[1]), append(numbered(0, 2, 4), numbered(1, 0, 20)...)...)
	},
}, {
	claim: "a log that was cut off below a position from which nothing was applied yet is an error, also once it has grown again",
	rules: "R10, attack: a log cut before the first message was applied, and grown again", needs: []need{needs[Truncator](), needs[Positions]()},
	story: func(w *world) {
		topic := w.newTopic(1)
		all := numbered(0, 0, 10)
		ms := w.scouted(topic, all)
		w.Harness.(Positions).SetPosition(w.t, groupOf(group, []string{topic}), topic, 0, ms[7].Offset)
		g := w.start("a", topic).granted(topic, 0)
		latest := g.latest()
		at, _ := g.committed()
		adopted := g.fresh(at)
		adopted.Applied = true
		cut := ms[4].Offset
		w.Harness.(Truncator).Truncate(w.t, topic, 0, cut)
		g.wantMisfit(latest, consumer.ErrTruncated, cut)
		g.wantMisfit(adopted, consumer.ErrTruncated, cut)
		w.produce(topic, 0, numbered(1, 0, 20)...)
		g.wantMisfit(latest, consumer.ErrTruncated, cut)
		g.wantMisfit(adopted, consumer.ErrTruncated, cut)
		g.want(g.earliest(), append(all[:4:4], numbered(1, 0, 20)...)...)
	},
}, {
	claim: "a topic that was deleted and created again is another log, and its old tenures are lost",
	rules: "attack: topic deleted and recreated", needs: []need{needs[Recreator]()},
	story: func(w *world) {
		topic, old := w.granted("old", "older")
		a := old.p
		old.want(old.earliest(), "old", "older")
		w.Harness.(Recreator).RecreateTopic(w.t, topic, 1)
		w.produce(topic, 0, "new")
		// The process may have to start again to see the new log, which no old tenure may read.
		old.waitLost()
		a.leave()
		now := w.start("b", topic).granted(topic, 0)
		was, is := old.Origin(), now.Origin()
		w.must(is.Log != was.Log, "the log is still called %q", is.Log)
		w.must(is.Source == was.Source && is.Partition == was.Partition, "the origin was %+v and is %+v; only the log is another", was, is)
		now.want(now.earliest(), "new")
	},
}}
