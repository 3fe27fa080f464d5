package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/outbox"
)

func TestWhatOneScanReturnsIsBoundedInBytes(t *testing.T) {
	t.Run("SQLite", func(t *testing.T) { t.Parallel(); bounded(t, sqliteLedger(t)) })
	t.Run("PostgreSQL", func(t *testing.T) { t.Parallel(); bounded(t, postgresLedger(t)) })
	t.Run("a store", func(t *testing.T) { t.Parallel(); bounded(t, storeLedger(t)) })
}

// bounded adds entries that are too large for one scan, and reads each once.
func bounded[TX any](t *testing.T, l *ledger[TX]) {
	const n, size = 100, 250_000
	f := claimed(t, l)
	in := func(do func(ctx context.Context, tx TX) error) {
		t.Helper()
		if err := epoch.CommitHeld(t.Context(), l.Sink, epoch.Hold{Partition: orders, Claim: f.Claim}, epoch.TxOptions{}, do); err != nil {
			t.Fatal(err)
		}
	}
	in(func(ctx context.Context, tx TX) error {
		for i := range n {
			e := entry("k", fmt.Sprint(i))
			if i%2 == 0 {
				e.Body = make([]byte, size)
			} else {
				e.Header = http.Header{"X": {strings.Repeat("x", size)}}
			}
			if err := l.Store.Add(ctx, tx, epoch.Message{Partition: orders, Offset: 7}, e); err != nil {
				return err
			}
		}
		return nil
	})
	in(func(ctx context.Context, tx TX) error {
		var at outbox.Cursor
		for read := 0; ; {
			rows, to, err := l.Store.Scan(ctx, tx, orders, at, 1000)
			if err != nil {
				return err
			}
			all := 0
			for _, row := range rows {
				if row.IdempotencyKey != fmt.Sprint(read) {
					t.Errorf("entry %s came as number %d", row.IdempotencyKey, read)
				}
				all, read = all+row.Size(), read+1
			}
			switch at = to; {
			case !at.More && read != n:
				return fmt.Errorf("the scans have ended behind %d entries, want %d", read, n)
			case !at.More:
				return nil
			case len(rows) == 0:
				return errors.New("a scan without entries says that there are more")
			case all > outbox.ScanBytes+16*(size+1000):
				return fmt.Errorf("a scan has returned %d entries of %d bytes, want about %d", len(rows), all, outbox.ScanBytes)
			}
		}
	})
}

// A scan that ends early because of the bytes that it has read is not the end.
func TestRequestsBehindLargeOnesAreSent(t *testing.T) {
	o := fast
	o.RetryMax = time.Hour // it does not look again
	r := newRig(t, o, func(*http.Request, string) int { return http.StatusOK })
	large := strings.Repeat("x", 240_000)
	for n := range 40 {
		r.add(fmt.Sprintf("k%d %s", n, large))
	}
	r.relay(1)
	r.awaitEmpty()
}
