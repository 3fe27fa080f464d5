package sinktest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/suites/verdict"
	"github.com/epochfence/epochfence/operate"
)

// patience limits each history. A correct sink needs a small part of it.
const patience = 3 * time.Minute

// world is the scene of a history: one database, named processes, and a source that grants whatever
// leases the history needs.
type world struct {
	verdict.TB
	ctx      context.Context // ends with patience
	patience time.Duration
	create   func(testing.TB) Database[any]
	db       Database[any]
	held     bool // handlers' transactions are claim-only
	crowd    []*process
}

func (h history) playOn(t testing.TB, patience time.Duration, create func(testing.TB) Database[any]) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	h.play(&world{TB: verdict.TB{TB: t}, ctx: ctx, patience: patience, create: create, db: create(t)})
}

func (w *world) elsewhere() *world {
	w.Helper()
	return &world{TB: w.TB, ctx: w.ctx, patience: w.patience, create: w.create, db: w.create(w), held: w.held}
}

var (
	orders0 = epoch.Partition{Group: "billing", Topic: "orders", Number: 0}
	orders1 = epoch.Partition{Group: "billing", Topic: "orders", Number: 1}
	orders2 = epoch.Partition{Group: "billing", Topic: "orders", Number: 2}
)

func origin(p epoch.Partition) epoch.Origin {
	return epoch.Origin{Partition: p, Log: "cluster-1/topic-1", Source: "cluster-1"}
}

func lease(p epoch.Partition, generation int64, owner string) epoch.Lease {
	return epoch.Lease{Origin: origin(p), Generation: generation, Owner: owner}
}

func (w *world) seed(ps ...epoch.Partition) {
	w.Helper()
	w.seedAt(0, ps...)
}

func (w *world) seedAt(next epoch.Offset, ps ...epoch.Partition) {
	w.Helper()
	var starts []epoch.Start
	for _, p := range ps {
		at := epoch.Position{Offset: next, Mark: epoch.NoMark}
		starts = append(starts, epoch.Start{Origin: origin(p), Next: at, Earliest: at})
	}
	w.NoErrorf(w.db.Open(w).Seed(w.ctx, starts), "seed %v", ps)
}

type process struct {
	w    *world
	name string
	sink epoch.Sink[any]
}

func (w *world) process(name string) *process {
	w.Helper()
	return &process{w: w, name: name, sink: w.db.Open(w)}
}

// owned seeds orders0, and returns the first claim of it, which is A's.
func (w *world) owned(generation int64) *tenure {
	w.Helper()
	w.seed(orders0)
	return w.process("A").claims(orders0, generation)
}

// fit returns the advances that one transaction can have.
func (a *process) fit(as []epoch.Advance) []epoch.Advance {
	if most := a.sink.Facts().Partitions; most > 0 {
		return as[:min(len(as), most)]
	}
	return as
}

// withEffects returns the advances that can have effects. If the sink commits each item by itself, the
// effects are those of messages.
func (a *process) withEffects(as []epoch.Advance) (with []epoch.Advance) {
	for _, one := range as {
		if one.From != one.To || a.sink.Facts().Guarantee == epoch.Transactional {
			with = append(with, one)
		}
	}
	return with
}

func (a *process) reads(p epoch.Partition) epoch.Fence {
	a.w.Helper()
	f, err := epoch.FenceOf(a.w.ctx, a.sink, p)
	a.w.NoErrorf(err, "%s reads the fence of %s", a.name, p)
	return f
}

// swaps puts a claim under l into the fence that was read. It must succeed.
func (a *process) swaps(seen epoch.Fence, l epoch.Lease) *tenure {
	a.w.Helper()
	c := epoch.NewClaim(l)
	f, err := a.sink.Claim(a.w.ctx, seen, c)
	a.w.NoErrorf(err, "%s claims %s under lease generation %d", a.name, l.Partition, l.Generation)
	want, err := seen.Claimed(c)
	a.w.NoErrorf(err, "the history itself is wrong")
	// Between read and swap only the position may have moved.
	if want.Next, want.Mark, want.Applied = f.Next, f.Mark, f.Applied; f != want {
		a.w.Fatalf("%s claims %s under lease generation %d: the fence is\n%+v, want\n%+v", a.name, l.Partition, l.Generation, f, want)
	}
	return &tenure{process: a, Fence: f}
}

// claims reads the fence of p and swaps in a claim under its lease of that generation. It must
// succeed.
func (a *process) claims(p epoch.Partition, generation int64) *tenure {
	a.w.Helper()
	return a.swaps(a.reads(p), lease(p, generation, a.name))
}

// tenure is a process's knowledge of a partition that it has claimed. Its fence may be out of date.
type tenure struct {
	*process
	epoch.Fence
}

func (t *tenure) advance(messages int) epoch.Advance {
	return epoch.Advance{
		Partition: t.Partition,
		Claim:     t.Claim,
		From:      t.Next,
		To:        t.Next + epoch.Offset(messages),
		Mark:      epoch.Mark(t.Next & 0xff), // any number that changes
	}
}

// effects does a handler's work for an advance: it appends each message's offset and the epoch to
// the partition's list.
func (w *world) effects(ctx context.Context, tx any, a epoch.Advance, e epoch.Epoch) error {
	for o := a.From; o < a.To; o++ {
		if err := w.db.Append(ctx, tx, a.Partition.String(), effect(o, e)); err != nil {
			return err
		}
	}
	return nil
}

// writes returns a handler that does its work for an advance, and then, unless it is nil, then.
func (t *tenure) writes(a epoch.Advance, then func() error) func(ctx context.Context, tx any) error {
	return func(ctx context.Context, tx any) error {
		if err := t.w.effects(ctx, tx, a, t.Epoch); err != nil || then == nil {
			return err
		}
		return then()
	}
}

func effect(o epoch.Offset, e epoch.Epoch) string { return fmt.Sprintf("%d@%d", o, e) }

func (a *process) commit(as []epoch.Advance, apply func(ctx context.Context, tx any) error) error {
	a.w.Helper()
	return a.once(as, apply, func(apply func(context.Context, any) error) error {
		return a.sink.Commit(a.w.ctx, as, epoch.TxOptions{}, apply)
	})
}

// once fails the test if commit calls apply twice.
func (a *process) once(what any, apply func(context.Context, any) error, commit func(func(context.Context, any) error) error) error {
	a.w.Helper()
	var calls atomic.Int32
	err := commit(func(ctx context.Context, tx any) error {
		calls.Add(1)
		return apply(ctx, tx)
	})
	n := calls.Load()
	a.w.Wantf(n <= 1, "%s commits %v: apply was called %d times", a.name, what, n)
	return err
}

// runs makes one transaction under the claim of a: claim-only if the world says so, otherwise an
// advance.
func (t *tenure) runs(ctx context.Context, a epoch.Advance, apply func(ctx context.Context, tx any) error) error {
	t.w.Helper()
	return t.runsWith(ctx, a, epoch.TxOptions{}, apply)
}

func (t *tenure) runsWith(ctx context.Context, a epoch.Advance, o epoch.TxOptions, apply func(ctx context.Context, tx any) error) error {
	t.w.Helper()
	if t.w.held {
		return t.holdsWith(ctx, o, apply)
	}
	return t.once(a, apply, func(apply func(context.Context, any) error) error {
		return t.sink.Commit(ctx, []epoch.Advance{a}, o, apply)
	})
}

func (t *tenure) holds(ctx context.Context, apply func(ctx context.Context, tx any) error) error {
	t.w.Helper()
	return t.holdsWith(ctx, epoch.TxOptions{}, apply)
}

func (t *tenure) holdsWith(ctx context.Context, o epoch.TxOptions, apply func(ctx context.Context, tx any) error) error {
	t.w.Helper()
	h := epoch.Hold{Partition: t.Partition, Claim: t.Claim}
	return t.once(h, apply, func(apply func(context.Context, any) error) error { return epoch.CommitHeld(ctx, t.sink, h, o, apply) })
}

func (t *tenure) writesHeld(value string) error {
	t.w.Helper()
	return t.holds(t.w.ctx, func(ctx context.Context, tx any) error { return t.w.db.Append(ctx, tx, "outbox", value) })
}

// tries applies some messages from the tenure's position. If it succeeds, the tenure has advanced.
func (t *tenure) tries(messages int) error {
	t.w.Helper()
	a := t.advance(messages)
	err := t.commit([]epoch.Advance{a}, t.writes(a, nil))
	if err == nil {
		t.moves(a)
	}
	return err
}

func (t *tenure) moves(a epoch.Advance) {
	t.Next = a.To
	if a.To > a.From {
		t.Mark, t.Applied = a.Mark, true
	}
}

// applies is tries, and must succeed.
func (t *tenure) applies(messages int) {
	t.w.Helper()
	from := t.Next
	if err := t.tries(messages); err != nil {
		t.w.Fatalf("%s applies %s from offset %d to %d under epoch %d: %v",
			t.name, t.Partition, from, from+epoch.Offset(messages), t.Epoch, err)
	}
}

// refused is tries, and must fail with want and no other refusal.
func (t *tenure) refused(want error, messages int) {
	t.w.Helper()
	from := t.Next
	t.w.wantOnly(t.tries(messages), want, "%s applies %s from offset %d to %d under epoch %d",
		t.name, t.Partition, from, from+epoch.Offset(messages), t.Epoch)
}

var refusals = []error{
	epoch.ErrStale, epoch.ErrMoved, epoch.ErrMissing, epoch.ErrLogChanged,
	epoch.ErrForeignLease, epoch.ErrNoLease, epoch.ErrInDoubt, epoch.ErrTxEndedByHandler, operate.ErrRowChanged,
}

func class(err error) []error {
	var is []error
	for _, r := range refusals {
		if errors.Is(err, r) {
			is = append(is, r)
		}
	}
	return is
}

// wantOnly fails the test unless err is want and no other refusal.
func (w *world) wantOnly(err, want error, what string, args ...any) {
	w.Helper()
	if !w.isOnly(err, want, what, args...) {
		w.FailNow()
	}
}

// isOnly is wantOnly for goroutines other than the test's.
func (w *world) isOnly(err, want error, what string, args ...any) bool {
	w.Helper()
	is := class(err)
	if !slices.Equal(is, []error{want}) {
		w.Errorf("%s: err = %v, which is %q; want %q and no other refusal", fmt.Sprintf(what, args...), err, is, want)
		return false
	}
	return true
}

// wantRefused fails the test unless err is a refusal that a process may get if its transaction was
// open during the next claim.
func (w *world) wantRefused(err error, what string) {
	w.Helper()
	w.Mustf(errors.Is(err, epoch.ErrStale) || errors.Is(err, epoch.ErrInDoubt), "%s: err = %v, want %q or %q", what, err, epoch.ErrStale, epoch.ErrInDoubt)
}

func (w *world) wantList(list string, want ...string) {
	w.Helper()
	got, err := w.db.List(w.ctx, list)
	w.NoErrorf(err, "list %q", list)
	w.Mustf(slices.Equal(got, want), "effects of %s:\n%q, want\n%q", list, got, want)
}

// wantEffects fails the test unless the effects of p are exactly those in story, such as "0-2@5
// 3@7": offsets 0 to 2 under epoch 5, then 3 under epoch 7.
func (w *world) wantEffects(p epoch.Partition, story string) {
	w.Helper()
	var want []string
	for run := range strings.FieldsSeq(story) {
		offsets, under, _ := strings.Cut(run, "@")
		first, last, ranged := strings.Cut(offsets, "-")
		if !ranged {
			last = first
		}
		e := w.number(under)
		for o := w.number(first); o <= w.number(last); o++ {
			want = append(want, effect(epoch.Offset(o), epoch.Epoch(e)))
		}
	}
	w.wantList(p.String(), want...)
}

func (w *world) number(s string) int64 {
	w.Helper()
	n, err := strconv.ParseInt(s, 10, 64)
	w.NoErrorf(err, "the history itself is wrong")
	return n
}

func (t *tenure) wantFence() {
	t.w.Helper()
	f := t.process.reads(t.Partition)
	t.w.Mustf(f == t.Fence, "the fence is\n%+v, want\n%+v", f, t.Fence)
}

func (t *tenure) wantEpoch(e epoch.Epoch) {
	t.w.Helper()
	t.w.Mustf(t.Epoch == e, "%s holds %s under epoch %d, want %d", t.name, t.Partition, t.Epoch, e)
}
