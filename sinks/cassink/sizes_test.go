package cassink_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/guard"
	"github.com/epochfence/epochfence/cas/memstore"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/cassink"
)

// small is a store with small notes and values.
type small struct {
	cas.Store
	f cas.Facts
}

func (s small) Facts(ctx context.Context) (cas.Facts, error) {
	f, err := s.Store.Facts(ctx)
	f.MaxKey, f.MaxValue, f.MaxNote = s.f.MaxKey, s.f.MaxValue, s.f.MaxNote
	return f, err
}

func (s small) Swap(ctx context.Context, seen cas.Item, value, note []byte) (cas.Item, error) {
	if err := s.f.Check(seen.Key, value, note); err != nil {
		return cas.Item{}, err
	}
	return s.Store.Swap(ctx, seen, value, note)
}

func TestTheChangesOfOnePartitionLeaveRoomInTheNoteForOthers(t *testing.T) {
	t.Parallel()
	mem := memstore.New()
	s := small{mem, cas.Facts{MaxNote: 64 << 10}}
	w := owns(t, s, orders)
	share := 0
	for n := epoch.Offset(16384); n > 0; n /= 2 {
		err := w.applies(n, func(ctx context.Context, tx *cassink.Tx, m epoch.Message) error {
			return sets(ctx, tx, m, "hot")
		})
		if err == nil {
			share = int(n)
			break
		}
		if !errors.Is(err, epoch.ErrTooLarge) {
			t.Fatal(err)
		}
	}
	if share < 64 {
		t.Errorf("only %d messages fit", share)
	}
	for n := range int32(20) {
		other := orders
		other.Number = 100 + n
		v := owns(t, s, other)
		for n := epoch.Offset(1024); ; n /= 2 {
			err := v.applies(n, func(ctx context.Context, tx *cassink.Tx, m epoch.Message) error { return sets(ctx, tx, m, "hot") })
			if err == nil {
				break
			} else if n == 1 {
				t.Fatal(err)
			}
		}
	}
}

// An item is not written because of another one that is too large.
func TestATransactionThatIsTooLargeWritesNothing(t *testing.T) {
	t.Parallel()
	mem := memstore.New()
	w := owns(t, small{mem, cas.Facts{MaxValue: 1500}}, orders)
	err := w.applies(3, func(ctx context.Context, tx *cassink.Tx, m epoch.Message) error {
		_, err := tx.Update(ctx, m, fmt.Sprint("item", m.Offset), func(guard.State) (guard.State, []byte, error) {
			return guard.Text(strings.Repeat("x", 1000*int(m.Offset))), nil, nil
		})
		return err
	})
	if !errors.Is(err, epoch.ErrTooLarge) || words(t, mem, "item0")+words(t, mem, "item1") != "" {
		t.Errorf("%v", err)
	}
}
