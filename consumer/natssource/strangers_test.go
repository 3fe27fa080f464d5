package natssource

import (
	"context"
	"strings"
	"testing"
	"time"
)

// strange are values that are no lease and no registration.
var strange = map[string][]byte{
	"garbage":               []byte("somebody's"),
	"nothing":               {},
	"bytes":                 {0, 0xff, 0xfe, '{'},
	"null":                  []byte("null"),
	"a number":              []byte("42"),
	"a text":                []byte(`"x"`),
	"a list":                []byte("[]"),
	"half of it":            []byte(`{"owner":"a","mem`),
	"another version":       []byte(`{"version":9,"holder":{"id":"x"},"streams":[{"orders":4}]}`),
	"other types":           []byte(`{"member":5,"streams":"orders","nonce":[]}`),
	"a large one":           []byte(strings.Repeat("x", 900_000)),
	"a large one in JSON":   []byte(`{"owner":"` + strings.Repeat("x", 900_000) + `","member":"x","name":5}`),
	"a number that is none": []byte(`{"member":"a b","streams":{"orders":1e300}}`),
}

func TestAPositionThatIsNoneIsSaidWithTheKeyAndReplacedOnceThePartitionIsClaimed(t *testing.T) {
	t.Parallel()
	for what, value := range strange {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			r := newGroupRig(t, 1, 20*time.Second)
			key := positionInBucket("billing", "orders", 0)
			must(t, r.bucket().create(inTime(t), 1))
			r.put(key, value)
			var log said
			r.logger = log.logger()
			g := r.start("a").granted(0)
			_, _, err := g.Committed(inTime(t))
			if err == nil || !strings.Contains(err.Error(), "nats kv del leases "+key) {
				t.Errorf("Committed: %.500v", err)
			}
			g.confirm(t, 1) // which has not been claimed
			if _, e := r.position(key); string(e.value) != string(value) {
				t.Errorf("it was replaced by %.100s before the partition was claimed", e.value)
			}
			f := g.fence(7)
			f.Epoch = 3
			g.Mirror(f)
			g.confirmFence(t, f)
			eventually(t, "the position is published", func() bool { m, _ := r.position(key); return m.Next == 7 })
			if lines := log.with("key="); len(lines) != 1 || !strings.Contains(lines[0], "key="+key) {
				t.Errorf("%d lines:\n%.2000s", len(lines), strings.Join(lines, ""))
			}
		})
	}
}

// position is the entry of a position's key, as the stream's leader has it.
func (r *groupRig) position(key string) (m position, e entry) {
	r.t.Helper()
	insist(r.t, func(ctx context.Context) (err error) { e, err = r.bucket().get(ctx, key); return err })
	m, _ = positionOf(e.value)
	return m, e
}
