package kafkasource_test

import (
	"errors"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/servers/kafkatest"
)

// Ten messages are applied under topic id X. The topic is deleted and created
// again under its name, with id Y and twelve other messages. Offset 10 exists
// in it and means something else. The fence still says 10 of X: the partition
// halts, and none of the twelve is applied, by the worker that was there nor by
// one that comes later.
func TestRealTopicDeletedAndRecreatedHalts(t *testing.T) {
	t.Parallel()
	h := newRealHistory(t, kafkatest.Shared(t), 1)
	h.send(0, 10)
	a := h.start("a")
	h.awaitApplied()
	before := h.fence(0)

	h.deleteTopic()
	h.createTopic(1)
	h.connect() // the old client knows the topic by its old id
	for range 12 {
		h.sendValue(0, "from another log")
	}
	h.wantLogChanged(a, before)
	a.stop()
	b := h.start("b")
	h.wantLogChanged(b, before)
	b.stop()
	h.wantExactlyOnce()
	if h.fence(0) != before {
		t.Errorf("the fence is %+v, want it as before: %+v", h.fence(0), before)
	}
}

func (h *realHistory) wantLogChanged(w *worker, before epoch.Fence) {
	h.Helper()
	changed := awaitHalt[*epoch.LogChangedError](w)
	if changed.Next != before.Next || changed.Fence != before.Log || changed.Source == before.Log {
		h.Errorf("halted with %+v, want offset %d of log %s, and another log", changed, before.Next, before.Log)
	}
}

// awaitHalt waits until w has halted a partition with an error of type E.
func awaitHalt[E error](w *worker) (found E) {
	w.h.Helper()
	w.h.await("a halt of "+w.name, func() bool {
		for _, e := range all[consumer.Halted](w) {
			if errors.As(e.Err, &found) {
				return true
			}
		}
		return false
	})
	return found
}

// Ten messages are applied, the worker stops, twenty more come in, and retention
// deletes everything below offset 25. Fifteen messages were never applied:
// the partition halts with both numbers, 10 and 25.
func TestRealRetentionPassingUsByHalts(t *testing.T) {
	t.Parallel()
	h := newRealHistory(t, kafkatest.Shared(t), 1)
	h.send(0, 10)
	a := h.start("a")
	h.awaitApplied()
	a.stop()
	h.send(0, 20)
	h.trim(0, 25)

	b := h.start("b")
	wantPosition(t, awaitHalt[*consumer.PositionError](b), consumer.ErrOffsetExpired, 10, 25)
	b.stop()
	if got := len(h.applied(0)); got != 10 {
		t.Errorf("%d messages applied, want the 10 of before", got)
	}
}

// The same up to the position itself loses nothing: reading continues.
func TestRealRetentionUpToThePositionDoesNotHalt(t *testing.T) {
	t.Parallel()
	h := newRealHistory(t, kafkatest.Shared(t), 1)
	h.send(0, 10)
	a := h.start("a")
	h.awaitApplied()
	a.stop()
	h.send(0, 5)
	h.trim(0, 10)
	b := h.start("b")
	h.awaitApplied()
	b.stop()
	h.wantExactlyOnce()
}

// trim deletes the messages of a partition below an offset.
func (h *realHistory) trim(p int32, begin int64) {
	h.Helper()
	offsets := kadm.Offsets{}
	offsets.AddOffset(h.topic, p, begin, -1)
	if _, err := h.admin.DeleteRecords(h.Context(), offsets); err != nil {
		h.Fatal(err)
	}
}

func wantPosition(t *testing.T, err *consumer.PositionError, kind error, position, found epoch.Offset) {
	t.Helper()
	if !errors.Is(err.Kind, kind) || err.Position != position || err.Found != found {
		t.Errorf("halted with %v at %d, found %d; want %v at %d, found %d",
			err.Kind, err.Position, err.Found, kind, position, found)
	}
}

// Two deployments, each on a Kafka of its own, use one group and topic name on
// one sink. The first holds the fence. The second must not touch it.
func TestRealTwoDeploymentsOnOneGroupHaltTheSecond(t *testing.T) {
	t.Parallel()
	first := newRealHistory(t, kafkatest.Shared(t), 1)
	first.send(0, 10)
	a := first.start("a", kgo.SessionTimeout(30*time.Second), kgo.HeartbeatInterval(time.Second)) // which lasts while a broker starts
	first.awaitApplied()
	before := first.fence(0)

	second := newRealHistory(t, kafkatest.Start(t, kafkatest.Config{}).Addr, 1)
	second.sink, second.topic, second.group = first.sink, first.topic, first.group
	second.createTopic(1)
	second.send(0, 20)
	b := second.start("b")
	changed := awaitHalt[*epoch.LogChangedError](b)
	if changed.Fence != before.Log || changed.Next != 10 {
		t.Errorf("halted with %+v, want offset 10 of log %s", changed, before.Log)
	}
	b.stop()

	first.send(0, 5)
	first.awaitApplied()
	a.stop()
	first.wantExactlyOnce()
	if got := all[consumer.Claimed](a); len(got) != 1 {
		t.Errorf("the first deployment made %d claims, want the 1 it began with", len(got))
	}
}
