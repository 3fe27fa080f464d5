package schedule

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/form"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/sinks/memsink"
)

// These numbers are frozen: processes of other versions read them in fences.
func TestTheStoredFormOfVersion1OfAPosition(t *testing.T) {
	t.Parallel()
	if epoch.NoMark != -1 || requested != 1 || between != 2 {
		t.Errorf("marks %d, %d, %d", epoch.NoMark, requested, between)
	}
	if at, step := operate.JobTime(1764424800_000007); at.Unix() != 1764424800 || step != 7 {
		t.Errorf("%v, step %d", at, step)
	}
	if got := operate.JobLog + " " + operate.RedirectLog; got != "epochfence/schedule epochfence/shardsink: not in this database but in shard " {
		t.Errorf("%q", got)
	}
}

func TestAPositionOfANewerVersionHaltsItsJobAlone(t *testing.T) {
	inWorld(t, func(w *world) {
		p := w.pod("a", writes("nightly", "0 2 * * *"), writes("hourly", "0 * * * *"))
		w.until("01 02:30:00")
		p.end()
		sink, seen := w.db.Open(), w.fence("nightly")
		f, err := sink.Claim(w.Context(), seen, epoch.NewClaim(epoch.Lease{Origin: seen.Origin, Generation: seen.Generation + 1, Owner: "newer"}))
		if err != nil {
			w.Fatal(err)
		}
		to := epoch.Advance{Partition: f.Partition, Claim: f.Claim, From: f.Next, To: f.Next + 1, Mark: between + 1}
		if err := sink.Commit(w.Context(), []epoch.Advance{to}, epoch.TxOptions{}, func(context.Context, *memsink.Tx) error { return nil }); err != nil {
			w.Fatal(err)
		}
		p = w.pod("b", writes("nightly", "0 2 * * *"), writes("hourly", "0 * * * *"))
		w.until("02 02:30:00")
		w.ran("nightly", "01 02:00:00")
		if n := len(w.db.List("hourly")); n != 26 {
			w.Errorf("hourly ran %d times", n)
		}
		h, halted := p.halted()
		if !halted || !errors.Is(h.Err, consumer.ErrBlocked) || !errors.Is(h.Err, form.ErrNewer) || !strings.Contains(h.Err.Error(), "update this process") {
			w.Errorf("%+v", h)
		}
		p.end()
	})
}
