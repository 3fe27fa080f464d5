package kafkasource

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/epochfence/epochfence/consumer/internal/tenures"
	"github.com/epochfence/epochfence/epoch"
)

// Kafka's reset tool sets the committed offsets of a group that is stopped.
func TestThatTheGroupsOffsetWasSetByOthersIsSaidWhenThePartitionIsClaimed(t *testing.T) {
	for name, c := range map[string]struct {
		committed int64
		claimed   epoch.Epoch // by the fence that is there
		lines     int
	}{
		"to the beginning": {0, 4, 1},
		"to the end":       {20, 4, 1},
		"to where we are":  {12, 4, 0},
		"before the partition was claimed at all": {0, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			virtually(t, 1, func(r *rig) {
				r.produce(0, 20)
				var os kadm.Offsets
				os.AddOffset(testTopic, 0, c.committed, -1)
				if err := r.admin.CommitAllOffsets(r.Context(), testGroup, os); err != nil {
					r.Fatal(err)
				}
				var said bytes.Buffer
				_, one, run := r.hold(func(o *Options) { o.Logger = slog.New(slog.NewTextHandler(&said, nil)) })
				seen := r.fence(one, 12)
				seen.Epoch = c.claimed
				for range 3 {
					if _, err := one.Confirm(r.Context(), seen); err != nil {
						r.Fatal(err)
					}
					one.Mirror(seen)
				}
				if err := run.stop(); err != nil {
					r.Error(err)
				}
				if n := strings.Count(said.String(), tenures.NotHeeded); n != c.lines {
					r.Errorf("said %d times, want %d:\n%s", n, c.lines, &said)
				}
			})
		})
	}
}
