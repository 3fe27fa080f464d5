package guard_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/guard"
	"github.com/epochfence/epochfence/cas/memstore"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/suites/explore"
)

// Two partitions take from a few items and put some back, and ship what they have got. All messages keep the
// rules of the package, so none is refused, whatever is lost and whoever is faster.
func TestAMessageThatKeepsTheRulesIsNotRefusedForGood(t *testing.T) {
	refused := 0
	explore.Each(t, *explored, func(t *testing.T, seed uint64) { refused += ship(t, seed) })
	if refused > 0 {
		t.Errorf("%d of %d messages were refused", refused, *explored*2*messages)
	}
}

// ship has two owners apply their messages, and returns how many of these were refused.
func ship(t *testing.T, seed uint64) (refused int) {
	random := rand.New(rand.NewPCG(seed, 2))
	schedule := &explore.Schedule{Rand: random}
	store := explore.Store{Store: memstore.New(), Schedule: schedule}
	ctx, stop := context.WithTimeout(t.Context(), time.Hour)
	defer stop()
	var owners sync.WaitGroup
	var refusals [2]int
	var mu sync.Mutex
	var dies [2]func() // the owner of a partition, in its batch
	for n := range refusals {
		owners.Go(func() {
			s := guard.Stamp{Partition: orders, Log: "log", Mark: epoch.NoMark}
			s.Partition.Number = int32(n)
			for s.Offset < messages && ctx.Err() == nil {
				s.Epoch++ // each batch that fails is another owner's
				to := min(s.Offset+4, messages)
				batch, end := context.WithCancel(ctx)
				mu.Lock()
				dies[n] = end
				mu.Unlock()
				switch err := shipBatch(batch, store, s, to); {
				case err == nil:
					s.Offset = to
				case errors.Is(err, guard.ErrNew):
					refusals[n]++
					end()
					return
				}
				end()
			}
		})
	}
	done := make(chan struct{})
	go func() {
		owners.Wait()
		close(done)
	}()
	for {
		synctest.Wait()
		select {
		case <-done:
			return refusals[0] + refusals[1]
		default:
		}
		switch {
		case random.IntN(8) == 0 && schedule.Lands():
		case random.IntN(12) == 0:
			mu.Lock()
			dies[random.IntN(2)]()
			mu.Unlock()
		case !schedule.LetGo(schedule.Fate()):
			<-time.After(time.Second)
		}
	}
}

func shipBatch(ctx context.Context, store cas.Store, s guard.Stamp, to epoch.Offset) error {
	b := guard.Begin(store, s)
	for offset := s.Offset; offset < to; offset++ {
		at := epoch.Position{Offset: offset, Mark: s.Mark}
		item := (offset*5 + epoch.Offset(s.Partition.Number)) % 3
		stock, shipping := fmt.Sprint("stock", item), fmt.Sprint("shipping", (offset*7+item)%3)
		lists := func() error {
			_, err := b.Update(ctx, at, shipping, func(old guard.State) (guard.State, []byte, error) {
				return guard.Text(fmt.Sprint(string(old.Value), " ", offset)), nil, nil
			})
			return err
		}
		var err error
		if offset%3 == 0 {
			if err = lists(); err == nil {
				_, err = b.Update(ctx, at, stock, func(old guard.State) (guard.State, []byte, error) {
					return guard.Text(string(old.Value) + "o"), nil, nil
				})
			}
		} else {
			var got []byte
			got, err = b.Update(ctx, at, stock, func(old guard.State) (guard.State, []byte, error) {
				if len(old.Value) == 0 {
					return old, []byte("sold out"), nil
				}
				return guard.Text(string(old.Value[1:])), []byte("got it"), nil
			})
			if err == nil && string(got) == "got it" {
				err = lists()
			}
		}
		if err != nil && !errors.Is(err, guard.ErrPassed) {
			return err
		}
	}
	return b.Write(ctx)
}
