package kafkasource

import (
	"log/slog"
	"testing"
	"time"

	"github.com/epochfence/epochfence/epoch"
)

// A pause costs the partition the fetch under way, which may wait long for the others' messages.
func TestAFullPartitionIsWaitedForLongerWhereItIsTheOnlyOne(t *testing.T) {
	for name, c := range map[string]struct {
		others bool          // got something, too
		after  time.Duration // all is taken
		want   time.Duration
		paused bool
	}{
		"alone":                               {false, time.Hour, graceAlone, true},
		"alone, and it has room in time":      {false, 3 * grace, 3 * grace, false},
		"beside others":                       {true, time.Hour, grace, true},
		"beside others, and it has room":      {true, grace / 2, grace / 2, false},
		"beside others, and has room later":   {true, 3 * grace, grace, true},
		"alone, and it has room far too late": {false, graceAlone + time.Second, graceAlone, true},
	} {
		t.Run(name, func(t *testing.T) {
			virtually(t, 1, func(r *rig) {
				f := newFetcher(r.client(), newBudget(leastBuffer, 1<<20), slog.New(slog.DiscardHandler))
				var fed []*feed
				for n := range int32(2) {
					fd := newFeed(topicPartition{testTopic, n}, [16]byte{1}, epoch.Fence{})
					f.feeds[fd.topicPartition] = fd
					fed = append(fed, fd)
				}
				f.reading.Store(2)
				full := fed[0]
				full.add(filled(0, 10_000))
				if !c.others {
					fed = fed[:1]
				}
				time.AfterFunc(c.after, func() {
					_, _, _ = full.take(1 << 30)
					_, _, _ = full.take(1 << 30) // which lets go of what was taken before
					f.taken()
				})
				began := time.Now()
				f.hold(r.Context(), fed)
				if took := time.Since(began); took != c.want || full.paused != c.paused {
					r.Errorf("waited for %v, paused: %v; want %v, %v", took, full.paused, c.want, c.paused)
				}
			})
		})
	}
}
