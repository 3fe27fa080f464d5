package cassink_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/epochfence/epochfence/cas/guard"
	"github.com/epochfence/epochfence/cas/memstore"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/sinks/cassink"
	"github.com/epochfence/epochfence/sinks/sinktest"
)

func create(t testing.TB) sinktest.Database[*cassink.Tx] {
	store := memstore.New()
	open := func(t testing.TB) *cassink.Sink {
		s, err := cassink.Open(t.Context(), store, cassink.Options{})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := open(t)
	return sinktest.Database[*cassink.Tx]{
		Open:   func(t testing.TB) epoch.Sink[*cassink.Tx] { return open(t) },
		Append: appending(s.Operator()),
		List: func(ctx context.Context, list string) ([]string, error) {
			state, err := guard.Read(ctx, store, list)
			return lines(state.Value), err
		},
		Operator:   func(testing.TB) operate.Operator { return s.Operator() },
		DeadLetter: s.DeadLetter,
	}
}

// appending returns a function that adds a value to a list for the message whose offset begins the
// value, or else for the first of the transaction. If the transaction moves no position, the message is
// one that was dead-lettered.
func appending(o operate.Operator) func(ctx context.Context, tx *cassink.Tx, list, value string) error {
	ids := map[string]int64{} // of dead letters that may be gone
	var mu sync.Mutex
	return func(ctx context.Context, tx *cassink.Tx, list, value string) error {
		m := cassink.First(tx)
		if offset, _, ok := strings.Cut(value, "@"); ok {
			if n, err := strconv.ParseInt(offset, 10, 64); err == nil {
				m.Offset = epoch.Offset(n)
			}
		}
		if cassink.Replays(tx) {
			letters, err := o.DeadLetters(ctx, operate.DeadLetterQuery{})
			if err != nil {
				return err
			}
			deferred, err := o.DeadLetters(ctx, operate.DeadLetterQuery{Deferred: true})
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			for _, l := range slices.Concat(letters, deferred) {
				ids[fmt.Sprint(l.Message.Partition, l.Message.Offset)] = l.ID
			}
			m.Replay = ids[fmt.Sprint(m.Partition, m.Offset)]
		}
		_, err := tx.Update(ctx, m, list, func(old guard.State) (guard.State, []byte, error) {
			return guard.Text(strings.Join(append(lines(old.Value), value), "\n")), nil, nil
		})
		return err
	}
}

func lines(text []byte) []string {
	if len(text) == 0 {
		return nil
	}
	return strings.Split(string(text), "\n")
}

func TestSuite(t *testing.T)          { sinktest.Run(t, create) }
func TestSuiteUnblocked(t *testing.T) { sinktest.RunUnblocked(t, create) }
func TestSuiteOperated(t *testing.T)  { sinktest.RunOperated(t, create) }
