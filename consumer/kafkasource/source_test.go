package kafkasource

import (
	"testing"
)

func TestMessagesAreAppliedInOrderFromEveryPartition(t *testing.T) {
	virtually(t, 3, func(r *rig) {
		for p := range int32(3) {
			r.produce(p, 100)
		}
		w := &worker{sink: r.sink, name: "a"}
		run := r.run(r.source(), w.own)
		r.until("all is applied", func() bool {
			return r.sink.exactly(part(0), 100) && r.sink.exactly(part(1), 100) && r.sink.exactly(part(2), 100)
		})
		if err := run.stop(); err != nil {
			t.Errorf("Run returned %v", err)
		}
		for p := range int32(3) {
			if at := r.committed(p); at != 100 {
				t.Errorf("partition %d: the group has %d after the drain, want 100", p, at)
			}
		}
	})
}
