package cassinktest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/guard"
	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/servers/proxy"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/sinks/cassink"
)

func comeAndGo(w *world) {
	a := w.starts("a", w.store, w.each())
	w.sends(8)
	w.until("a has begun", func() error { return w.claimed(0) })
	w.starts("b", w.rig.Open(w, direct), w.batches())
	w.sends(8)
	w.drains()
	w.sends(8)
	a.Kill()
	w.starts("c", w.rig.Open(w, direct), w.each())
	w.drains()
	w.exact()
}

func (w *world) claimed(n int32) error {
	f, err := epoch.FenceOf(w.ctx, w.sink, w.partition(n))
	if err == nil && f.Epoch == 0 {
		err = errors.New("it was not claimed")
	}
	return err
}

func breaks(w *world) {
	p, via, err := proxy.Between()
	w.NoError(err)
	w.Cleanup(p.Close)
	w.starts("a", w.rig.Open(w, via), w.each())
	w.starts("b", w.rig.Open(w, via), w.batches())
	w.sends(3)
	w.drains()
	for _, fault := range []func(){p.LoseAnswer, p.LoseRequest, p.LoseAnswer, p.Cut, p.LoseAnswer, p.LoseRequest} {
		fault()
		w.sends(3)
		<-time.After(200 * time.Millisecond)
		p.Pass()
		w.sends(1)
		<-time.After(100 * time.Millisecond)
	}
	w.Wantf(p.Struck() != 0, "no request or answer was lost")
	w.drains()
	w.exact()
}

// killed has the server killed while messages are applied: with all members at work, with one that is
// frozen within a transaction, and with one that is killed as well.
func killed(w *world) {
	f := &freezer{Store: w.rig.Open(w, direct), frozen: make(chan struct{}), thawed: make(chan struct{})}
	thaw := sync.OnceFunc(func() { close(f.thawed) })
	defer thaw()
	s := &failing{Store: w.rig.Open(w, direct), writes: make(chan struct{})}
	a, b := w.starts("a", f, w.each()), w.starts("b", s, w.batches())
	w.sends(3)
	w.drains()

	for s.failed.Load() == 0 {
		w.sends(20)
		select {
		case <-s.writes:
		case <-w.ctx.Done():
			w.Fatal("nothing is written")
		}
		w.rig.Kill(w)
		w.drains()
	}

	f.left.Store(3)
	w.sends(8)
	select {
	case <-f.frozen:
	case <-w.ctx.Done():
		w.Fatal("it was not frozen")
	}
	a.Freeze()
	w.rig.Kill(w)
	a.Group().Expire(a)
	w.drains()
	thaw()
	a.Thaw()

	w.sends(8)
	b.Kill()
	w.rig.Kill(w)
	w.starts("c", w.rig.Open(w, direct), w.each())
	w.drains()
	w.exact()
}

// failing is a store that counts the writes that neither succeed nor conflict.
type failing struct {
	cas.Store
	writes chan struct{} // takes a value when a write begins, if somebody waits for it
	failed atomic.Int32
}

func (f *failing) Swap(ctx context.Context, seen cas.Item, value, note []byte) (cas.Item, error) {
	select {
	case f.writes <- struct{}{}:
	default:
	}
	item, err := f.Store.Swap(ctx, seen, value, note)
	if err != nil && !errors.Is(err, cas.ErrConflict) {
		f.failed.Add(1)
	}
	return item, err
}

// freezer is a store that stops answering before one of its writes. What is asked then is sent at the
// thaw, whatever became of its context.
type freezer struct {
	cas.Store
	left           atomic.Int32 // writes before that
	frozen, thawed chan struct{}
	late           atomic.Int32 // requests that wait for the thaw, or are sent since
}

func (f *freezer) Get(ctx context.Context, key string) (cas.Item, error) {
	return f.sends(ctx, func(ctx context.Context) (cas.Item, error) { return f.Store.Get(ctx, key) })
}

func (f *freezer) Swap(ctx context.Context, seen cas.Item, value, note []byte) (cas.Item, error) {
	if f.left.Add(-1) == 0 {
		close(f.frozen)
	}
	value, note = bytes.Clone(value), bytes.Clone(note)
	return f.sends(ctx, func(ctx context.Context) (cas.Item, error) { return f.Store.Swap(ctx, seen, value, note) })
}

func (f *freezer) sends(ctx context.Context, do func(ctx context.Context) (cas.Item, error)) (cas.Item, error) {
	if !closed(f.frozen) || closed(f.thawed) {
		return do(ctx)
	}
	return cas.Await(ctx, func() (cas.Item, error) {
		f.late.Add(1)
		defer f.late.Add(-1)
		<-f.thawed
		return do(context.WithoutCancel(ctx))
	})
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// frozen has an owner stop before its first write, its third and so on, in a group each.
func frozen(w *world) {
	var all sync.WaitGroup
	for n := 1; n < 24; n += 3 {
		all.Go(func() {
			newWorld(w, fmt.Sprint(w.prefix, "-", n), w.rig, int32(len(w.size))).freezes(n)
		})
	}
	all.Wait()
}

func (w *world) freezes(at int) {
	f := &freezer{Store: w.rig.Open(w, direct), frozen: make(chan struct{}), thawed: make(chan struct{})}
	f.left.Store(int32(at))
	thaw := sync.OnceFunc(func() { close(f.thawed) })
	defer thaw()
	w.sends(8)
	a := w.starts("a", f, w.batches())
	select {
	case <-f.frozen:
	case <-w.ctx.Done():
		w.Errorf("no write %d", at)
		return
	}
	a.Freeze()
	w.starts("b", w.store, w.each())
	a.Group().Expire(a)
	w.drains()
	thaw()
	a.Thaw()
	w.sends(3)
	w.drains()
	w.until("what was asked in the freeze is over", func() error {
		if n := f.late.Load(); n > 0 {
			return fmt.Errorf("%d requests are not answered", n)
		}
		return nil
	})
	w.exact()
}

// poisoned returns handlers that fail for good at an offset until healed is closed.
func (w *world) poisoned(at epoch.Offset, healed <-chan struct{}) consumer.Handlers[*cassink.Tx] {
	return consumer.Each(func(ctx context.Context, tx *cassink.Tx, m consumer.Message, _ epoch.Epoch) error {
		if err := w.apply(ctx, tx, m); err != nil {
			return err
		}
		if m.Offset == at && !closed(healed) {
			return consumer.Permanent(errors.New("poison"))
		}
		return nil
	}).OnFailure(w.sink.DeadLetter)
}

func replayed(w *world) {
	healed, op := make(chan struct{}), w.sink.Operator()
	w.starts("a", w.store, w.poisoned(2, healed))
	w.sends(5)
	w.drains()
	w.has(0, 0, "0:0", "0:1", "0:3", "0:4")
	letter := w.letter(2)
	close(healed)
	_, err := op.DoDeadLetter(w.ctx, operate.DeadLetterAct{Kind: operate.Replay, Seen: letter, By: "anna", Reason: "it is fixed"})
	w.NoError(err)
	w.until("the replay", func() error {
		if _, err := op.DeadLetter(w.ctx, letter.ID); !errors.Is(err, operate.ErrNoDeadLetter) {
			return fmt.Errorf("the dead letter is there: %w", err)
		}
		return nil
	})
	w.sends(1)
	w.drains()
	w.has(0, 0, "0:0", "0:1", "0:3", "0:4", "0:2", "0:5")
	w.has(3, 0, "0:2", "0:5")
}

// letter returns the dead letter with this offset, of which there must be one.
func (w *world) letter(offset epoch.Offset) (found operate.DeadLetter) {
	w.Helper()
	w.until("a dead letter is listed", func() error {
		all, err := w.sink.Operator().DeadLetters(w.ctx, operate.DeadLetterQuery{})
		if err != nil || len(all) != 1 || all[0].Message.Offset != offset {
			return fmt.Errorf("%+v, %w", all, err)
		}
		found, err = w.sink.Operator().DeadLetter(w.ctx, all[0].ID)
		return err
	})
	return found
}

func (w *world) acts(kind operate.ActKind, to *epoch.Position) {
	w.Helper()
	seen, err := w.sink.Operator().Partition(w.ctx, w.partition(0))
	w.NoError(err)
	act := operate.NewAct(kind, seen.Fence, "anna", "for the test")
	act.To = to
	_, err = w.sink.Operator().Act(w.ctx, act)
	w.NoError(err)
}

func operated(w *world) {
	w.starts("a", w.store, w.each())
	w.sends(3)
	w.drains()
	w.acts(operate.ActPause, nil)
	w.sends(3)
	<-time.After(200 * time.Millisecond)
	w.has(0, 0, "0:0", "0:1", "0:2")
	w.acts(operate.ActResume, nil)
	w.drains()
	w.exact()
	w.acts(operate.ActRewind, &epoch.Position{Offset: 4, Mark: epoch.NoMark})
	w.sends(1)
	w.drains()
	w.has(0, 0, "0:0", "0:1", "0:2", "0:3", "0:4", "0:5", "0:4", "0:5", "0:6")
}

func listed(w *world) {
	op := w.sink.Operator()
	for _, name := range []string{"a", "b"} {
		w.starts(name, w.rig.Open(w, direct), w.poisoned(1, nil))
	}
	w.log.Append(0, "0:0")
	facts, err := w.store.Facts(w.ctx)
	w.NoError(err)
	large := bytes.Repeat([]byte{0xff}, max(min(facts.MaxValue, 1<<20), 1)) // with its key it does not fit an item of a small store
	w.log.AppendMessages(0, consumer.Message{Key: []byte("apples\xff"), Value: []byte("0:1"), Headers: []consumer.Header{{Key: "h\xff", Value: large}}})
	w.log.Append(1, "1:0")
	w.size = []int{2, 1}
	w.drains()
	m := w.letter(1).Message
	if m.Partition != w.partition(0) || string(m.Key) != "apples\xff" || string(m.Value) != "0:1" || len(m.Headers) != 1 || m.Headers[0].Key != "h\xff" ||
		!bytes.Equal(m.Headers[0].Value, large) {
		w.Errorf("the dead letter has %.500v", m)
	}
	w.until("two fences, one with a dead letter", func() error {
		ps, err := op.Partitions(w.ctx, operate.Filter{Topic: "orders"})
		if err != nil || len(ps) != 2 || ps[0].Next != 2 || ps[0].DeadLetters != 1 || ps[1].Next != 1 || ps[1].DeadLetters != 0 || ps[1].Owner == "" {
			return fmt.Errorf("%+v, %w", ps, err)
		}
		return nil
	})
	w.until("two processes", func() error {
		ps, err := op.Processes(w.ctx, "")
		if err != nil || len(ps) != 2 || ps[0].Name != "a" || ps[1].Name != "b" {
			return fmt.Errorf("%+v, %w", ps, err)
		}
		return nil
	})
	w.acts(operate.ActEvict, nil)
	for kind, least := range map[operate.DecisionKind]int{operate.DecidedClaim: 2, operate.DecidedEvict: 1} {
		ds, err := op.History(w.ctx, operate.HistoryQuery{Kinds: []operate.DecisionKind{kind}})
		w.Wantf(err == nil && len(ds) >= least, "%d decisions are a %s, want %d: %v", len(ds), kind, least, err)
	}
}

func read(w *world) {
	w.starts("a", w.store, consumer.Each(func(ctx context.Context, tx *cassink.Tx, m consumer.Message, _ epoch.Epoch) error {
		_, err := tx.Update(ctx, m, w.item(0), func(guard.State) (guard.State, []byte, error) {
			return guard.State{Exists: string(m.Value) != "0:1", Value: []byte("value " + string(m.Value))}, nil, nil
		})
		return err
	}))
	for _, want := range []guard.State{guard.Text("value 0:0"), {}, guard.Text("value 0:2")} {
		w.sends(1)
		w.drains()
		state, err := guard.Read(w.ctx, w.store, w.item(0))
		w.Wantf(err == nil && state.Exists == want.Exists && bytes.Equal(state.Value, want.Value), "%+v, %v, want %+v", state, err, want)
		stored, err := w.store.Get(w.ctx, w.item(0))
		w.Wantf(err == nil && bytes.Equal(stored.Value, want.Value), "the store has %q, %v, want %q", stored.Value, err, want.Value)
		if w.rig.Native == nil {
			continue
		}
		got := w.rig.Native(w, w.item(0))
		w.Wantf(bytes.Equal(got, want.Value), "another program reads %q, want %q", got, want.Value)
	}
}
