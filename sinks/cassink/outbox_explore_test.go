package cassink_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/guard"
	"github.com/epochfence/epochfence/cas/memstore"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/suites/explore"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/sinks/cassink"
)

// Each message, and each replay of a dead letter, adds an entry to the outbox. Relays beside the owners
// send them to a receiver that checks epochs, and record the answers, under all faults of
// TestInEachEraEachMessageTakesEffectOnce. The receiver has each entry once and in order, and so have the items
// that record the answers.
func TestEachEntryOfTheOutboxIsSentAndItsAnswerRecordedOnce(t *testing.T) {
	explore.Each(t, *explored/4, func(t *testing.T, seed uint64) {
		random := rand.New(rand.NewPCG(seed, 3))
		x := &exploration{
			T: t, store: memstore.New(), rand: random, schedule: &explore.Schedule{Rand: random}, outcomes: map[string]string{},
			lags: seed%2 == 1, history: map[string][]cas.Item{}, receiver: &receiver{did: map[int64]string{}},
		}
		x.play()
		x.checkEntries()
	})
}

// receiver has an effect for each entry, and refuses epochs below the highest.
type receiver struct {
	mu      sync.Mutex
	highest epoch.Epoch
	did     map[int64]string
	effects []string
}

func (r *receiver) takes(under epoch.Epoch, e operate.OutboxEntry) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if under < r.highest {
		return false
	}
	r.highest = under
	if _, replayed := r.did[e.ID]; !replayed {
		r.did[e.ID] = string(e.Body)
		r.effects = append(r.effects, string(e.Body))
	}
	return true
}

// adds puts an entry for a message into the outbox.
func (x *exploration) adds(tx *cassink.Tx, m epoch.Message, under epoch.Epoch) error {
	if x.receiver == nil {
		return nil
	}
	word := fmt.Sprintf("%d:%d", under, m.Offset)
	if m.Replay != 0 {
		word = fmt.Sprintf("replay:%d", m.Offset)
	}
	box, err := tx.Outbox(orders)
	if err != nil {
		return err
	}
	return box.Add(operate.OutboxEntry{Key: "k", Body: []byte(word)})
}

// relays sends entries until its claim is over.
func (x *exploration) relays(ctx context.Context, sink *cassink.Sink, mine epoch.Fence) {
	hold := epoch.Hold{Partition: orders, Claim: mine.Claim}
	held := func(do func(ctx context.Context, box cassink.Outbox, tx *cassink.Tx) error) error {
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		return sink.CommitHeld(ctx, hold, epoch.TxOptions{}, func(ctx context.Context, tx *cassink.Tx) error {
			box, err := tx.Outbox(orders)
			if err != nil {
				return err
			}
			return do(ctx, box, tx)
		})
	}
	for {
		var found []operate.OutboxEntry
		err := held(func(ctx context.Context, box cassink.Outbox, _ *cassink.Tx) (err error) {
			found, err = box.Scan(ctx, 0, 3)
			return err
		})
		var sent []int64
		for _, e := range found {
			if !x.pauses(ctx) || !x.receiver.takes(mine.Epoch, e) {
				return
			}
			sent = append(sent, e.ID)
		}
		if err == nil && len(sent) > 0 {
			err = held(func(ctx context.Context, box cassink.Outbox, tx *cassink.Tx) error {
				return x.records(ctx, box, tx, found, sent)
			})
		}
		if err != nil && !errors.Is(err, errPoison) && !errors.Is(err, epoch.ErrTransient) && !errors.Is(err, epoch.ErrUnhealthy) || !x.pauses(ctx) {
			return
		}
	}
}

// records deletes entries and records their answers. It fails now and then after some of them.
func (x *exploration) records(ctx context.Context, box cassink.Outbox, tx *cassink.Tx, found []operate.OutboxEntry, sent []int64) error {
	there, err := box.Delete(ctx, sent)
	if err != nil {
		return err
	}
	for _, e := range found {
		if !slices.Contains(there, e.ID) {
			continue
		}
		m := epoch.Message{Partition: orders, Mark: epoch.NoMark, Replay: e.ID}
		if _, err := tx.Update(ctx, m, fmt.Sprint("answers", e.ID%2), add(string(e.Body))); err != nil {
			return err
		}
		if x.fails() {
			return errPoison
		}
	}
	return nil
}

// sent reports whether no entry is left.
func (x *exploration) sent(ctx context.Context) bool {
	left, err := x.operator.OutboxEntries(ctx, operate.OutboxQuery{})
	x.must(err)
	return len(left) == 0
}

func (x *exploration) checkEntries() {
	x.checkWords("the receiver", x.receiver.effects, func(epoch.Offset) bool { return true })
	var recorded []string
	for n := range 2 {
		state, err := guard.Read(x.Context(), x.store, fmt.Sprint("answers", n))
		x.must(err)
		recorded = append(recorded, strings.Fields(string(state.Value))...)
	}
	effects := slices.Sorted(slices.Values(x.receiver.effects))
	if slices.Sort(recorded); !slices.Equal(recorded, effects) {
		x.Errorf("recorded %v, want %v", recorded, effects)
	}
}
