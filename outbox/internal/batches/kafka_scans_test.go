package batches_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/outbox/kafkaoutbox"
)

// Entries are read in larger parts only while none was large: the next ones may be large, too.
func TestALargeEntryMakesTheNextPartsSmall(t *testing.T) {
	r := newKafkaRig(t, onKfake(t))
	r.o.Batch = 1000
	run := r.takeOver(&process{})
	for _, want := range []int{256, 64} {
		r.db.Lock()
		r.db.Once = 0
		r.db.Unlock()
		r.add(slices.Repeat([]string{"a"}, 1000)...)
		r.awaitSent()
		r.db.Lock()
		once := r.db.Once
		r.db.Unlock()
		if once > want || want > 64 && once <= 64 {
			t.Errorf("one Scan was to read %d entries, want at most %d", once, want)
		}
		box := r.box(&process{})
		err := r.db.Do(0, func(tx *tx) error {
			return box.Add(t.Context(), tx, epoch.Message{Partition: orders}, kafkaoutbox.Record{Topic: r.o.Positions, Value: []byte(strings.Repeat("x", 5000))})
		})
		if err != nil {
			t.Fatal(err)
		}
		r.add("a")
		r.awaitSent()
	}
	r.stop(run)
	r.wantAll()
}
