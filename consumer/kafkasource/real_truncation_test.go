package kafkasource_test

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/kafkasource"
	"github.com/epochfence/epochfence/internal/servers/kafkatest"
)

// Twenty messages are applied at leader epoch 0. The broker loses its disk's
// tail: it comes back with twelve. The worker that is there halts at 20 against
// 12. Then fifteen other messages come in, and offset 20 exists again: only the
// leader epoch in the fence tells that 12 to 19 are not what was applied
// (KIP-320). A worker that starts now halts with the same numbers, and none of
// the fifteen is applied.
func TestRealTruncatedLogHalts(t *testing.T) {
	t.Parallel()
	b := kafkatest.Start(t, kafkatest.Config{})
	h := newRealHistory(t, b.Addr, 1)
	h.send(0, 20)
	there := h.start("there")
	h.awaitApplied()

	truncateLog(t, b, h.topic, 0, 12)
	wantPosition(t, awaitHalt[*consumer.PositionError](there), consumer.ErrTruncated, 20, 12)
	there.stop()

	h.connect()
	for range 15 {
		h.sendValue(0, "written again")
	}
	later := h.start("later")
	wantPosition(t, awaitHalt[*consumer.PositionError](later), consumer.ErrTruncated, 20, 12)
	later.stop()
	h.wantExactlyOnce()
}

// The same, but the other messages come in before the worker hears of the
// broker again, so that it never sees a log that is too short.
func TestRealLogRewrittenBehindAFrozenWorkerHalts(t *testing.T) {
	t.Parallel()
	b := kafkatest.Start(t, kafkatest.Config{})
	h := newRealHistory(t, b.Addr, 1)
	h.send(0, 20)
	w := h.start("frozen")
	h.awaitApplied()
	w.link.freeze()

	truncateLog(t, b, h.topic, 0, 12)
	h.connect()
	for range 15 {
		h.sendValue(0, "written again")
	}
	w.link.thaw()
	wantPosition(t, awaitHalt[*consumer.PositionError](w), consumer.ErrTruncated, 20, 12)
	w.stop()
	h.wantExactlyOnce()
}

// A group that starts after the 20 messages there are, and one that had committed
// there, have applied nothing when the log is cut to 12. They halt with both
// numbers, and do so still when it has grown beyond 20: the positions were held
// against the log from the first moment on.
func TestRealLogCutBeforeTheFirstMessageWasAppliedHalts(t *testing.T) {
	for _, policy := range []consumer.StartPolicy{consumer.StartLatest, consumer.StartCommitted} {
		t.Run(policy.String(), func(t *testing.T) {
			t.Parallel()
			b := kafkatest.Start(t, kafkatest.Config{})
			h := newRealHistory(t, b.Addr, 1)
			h.from = policy
			for range 20 {
				h.sendValue(0, "before")
			}
			kafkasource.CommitAsOthers[any](t, h.admin, nil, h.group, h.topic, 0, 20)
			there := h.start("there")
			h.await("a claim", func() bool { return len(all[consumer.Claimed](there)) > 0 })
			truncateLog(t, b, h.topic, 0, 12)
			wantPosition(t, awaitHalt[*consumer.PositionError](there), consumer.ErrTruncated, 20, 12)
			there.stop()
			h.connect()
			for range 15 {
				h.sendValue(0, "written again")
			}
			later := h.start("later")
			wantPosition(t, awaitHalt[*consumer.PositionError](later), consumer.ErrTruncated, 20, 12)
			later.stop()
			h.wantExactlyOnce()
		})
	}
}

// truncateLog restarts the broker with everything from an offset on cut off a
// partition's log, which must have one segment and begin at zero.
func truncateLog(t testing.TB, b *kafkatest.Broker, topic string, partition int32, end int64) {
	t.Helper()
	if err := b.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := cutSegment(filepath.Join(b.DataDir, fmt.Sprintf("%s-%d", topic, partition)), end); err != nil {
		t.Fatal(err)
	}
	// Without its mark of a clean shutdown the broker looks at every log anew.
	if err := os.Remove(filepath.Join(b.DataDir, ".kafka_cleanshutdown")); err != nil {
		t.Fatal(err)
	}
	if err := b.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func cutSegment(dir string, end int64) error {
	name := filepath.Join(dir, fmt.Sprintf("%020d.log", 0))
	log, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	// A batch begins with its first offset, 8 bytes, and the length of what
	// follows, 4 bytes.
	at := 0
	for at < len(log) && int64(binary.BigEndian.Uint64(log[at:])) < end {
		at += 12 + int(binary.BigEndian.Uint32(log[at+8:]))
	}
	if err := os.Truncate(name, int64(at)); err != nil {
		return err
	}
	// Indexes and the snapshot of producers reach beyond the cut; they are
	// built again from the log.
	files, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, f := range files {
		if strings.HasSuffix(f.Name(), "index") || strings.HasSuffix(f.Name(), ".snapshot") {
			if err := os.Remove(filepath.Join(dir, f.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}
