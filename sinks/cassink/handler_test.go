package cassink_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/guard"
	"github.com/epochfence/epochfence/cas/memstore"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/cassink"
)

// No store is at fault, so the outcome is not in doubt, and the handler's mistake is the message's.
func TestAMistakeOfTheHandlerIsNoDoubt(t *testing.T) {
	t.Parallel()
	s := memstore.New()
	for name, of := range map[string]func(m *epoch.Message, key *string){
		"another partition": func(m *epoch.Message, _ *string) { m.Partition.Number++ },
		"another message":   func(m *epoch.Message, _ *string) { m.Offset += 100 },
		"a dead letter":     func(m *epoch.Message, _ *string) { m.Replay = 7 },
		"the sink's fence":  func(_ *epoch.Message, key *string) { *key = "epochfence/fence/billing/orders/3" },
	} {
		w := owns(t, s, orders)
		before, err := s.Get(t.Context(), "epochfence/fence/billing/orders/3")
		must(t, err)
		err = w.applies(1, func(ctx context.Context, tx *cassink.Tx, m epoch.Message) error {
			_, err := tx.Update(ctx, m, "mine", add("one"))
			must(t, err)
			key := "item"
			of(&m, &key)
			_, _ = tx.Update(ctx, m, key, add("x"))
			return nil
		})
		var call *epoch.CallError
		if !errors.As(err, &call) || errors.Is(err, epoch.ErrInDoubt) {
			t.Errorf("%s: %v", name, err)
		}
		if got := words(t, s, "mine") + words(t, s, "item"); got != "" {
			t.Errorf("%s: %q", name, got)
		}
		if after, err := s.Get(t.Context(), before.Key); err != nil || after.Version != before.Version {
			t.Errorf("%s: the fence is %q, %v", name, after.Value, err)
		}
	}
}

// A goroutine that the handler does not wait for is in the middle of an Update when the handler returns.
func TestAHandlerThatDoesNotWaitForItsUpdateFails(t *testing.T) {
	t.Parallel()
	s := memstore.New()
	w := owns(t, s, orders)
	changing, goOn := make(chan struct{}), make(chan struct{})
	var stray sync.WaitGroup
	var got error
	var once sync.Once
	err := w.applies(1, func(ctx context.Context, tx *cassink.Tx, m epoch.Message) error {
		stray.Go(func() {
			_, got = tx.Update(ctx, m, "item", func(old guard.State) (guard.State, []byte, error) {
				once.Do(func() {
					close(changing)
					<-goOn
				})
				return guard.Text("changed"), nil, nil
			})
		})
		<-changing
		return nil
	})
	close(goOn)
	stray.Wait()
	var call *epoch.CallError
	if !errors.As(err, &call) || words(t, s, "item") != "" {
		t.Errorf("commit: %v, and the item is %q; Update: %v", err, words(t, s, "item"), got)
	}
}

// failing refuses writes of an item, as often as wanted.
type failing struct {
	cas.Store
	mu     sync.Mutex
	prefix string
	fails  int
}

func (f *failing) Swap(ctx context.Context, seen cas.Item, value, note []byte) (cas.Item, error) {
	f.mu.Lock()
	fails := f.fails > 0 && strings.HasPrefix(seen.Key, f.prefix)
	if fails {
		f.fails--
	}
	f.mu.Unlock()
	if fails {
		return cas.Item{}, errLost
	}
	return f.Store.Swap(ctx, seen, value, note)
}
