package pgsink

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// A machine that stalls until time is up leaves no look behind that was not answered.
func TestALookThatWasDueAndNotBegunLeavesItUnknownWhetherATransactionWaited(t *testing.T) {
	t.Parallel()
	pool, err := pgxpool.New(t.Context(), "postgres://127.0.0.1:1/none") // which nobody asks
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	const every = time.Minute
	for name, c := range map[string]struct {
		due   time.Duration
		known bool
	}{
		"the next look is not due":       {time.Second, true},
		"it is due, and may begin yet":   {-every / 2, true},
		"it has been due for far longer": {-3 * every, false},
	} {
		now := time.Now()
		w := &lockWait{
			sink: &Sink{pool: pool}, cancel: func() {}, every: every, timer: time.NewTimer(time.Hour),
			began: now.Add(-10 * every), due: now.Add(c.due),
		}
		if waited, known := w.stop(); waited || known != c.known {
			t.Errorf("%s: waited %v, known %v; want it to be known: %v", name, waited, known, c.known)
		}
	}
}
