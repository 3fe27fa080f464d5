package sourcetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/waits"
)

// group is the default group of a history's processes. Topics are new, and make its name unique.
const group = "g"

type world struct {
	Harness
	t        testing.TB
	ctx      context.Context // ends when patience does
	patience time.Duration

	mu         sync.Mutex
	processes  []*process
	violations []error // of what holds in every history
	clock      int
	changed    chan struct{}
}

func (w *world) fail(format string, args ...any) {
	panic(failure{fmt.Errorf(format, args...)})
}

func (w *world) must(ok bool, format string, args ...any) {
	if !ok {
		w.fail(format, args...)
	}
}

func (w *world) check(err error, what string, args ...any) {
	if err != nil {
		w.fail("%s: %w", fmt.Sprintf(what, args...), err)
	}
}

// note changes something under the lock and wakes all who await.
func (w *world) note(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.clock++
	f()
	if w.changed != nil {
		close(w.changed)
		w.changed = nil
	}
}

// await waits until cond is true. It calls cond under the lock, after each note. It fails the story
// when patience ends, or when there is a violation.
func (w *world) await(what string, cond func() bool) {
	for {
		w.mu.Lock()
		if w.changed == nil {
			w.changed = make(chan struct{})
		}
		changed, ok, bad := w.changed, cond(), len(w.violations) > 0
		w.mu.Unlock()
		switch {
		case bad:
			w.fail("which was found while waiting for this: %s", what) // end reports it
		case ok:
			return
		}
		select {
		case <-changed:
		case <-w.ctx.Done():
			w.fail("did not happen within %v: %s", w.patience, what)
		}
	}
}

// poll is await for what nobody notes: it calls cond from time to time.
func (w *world) poll(what string, cond func() bool) {
	w.must(waits.Until(w.ctx, 5*time.Millisecond, cond), "did not happen within %v: %s", w.patience, what)
}

// moment is how long to wait for what must not happen. It is shorter than a drain of g may take.
func moment(g *grant) <-chan time.Time {
	return time.After(min(200*time.Millisecond, g.Term()/4))
}

func (w *world) never(g *grant, what string, happened <-chan struct{}) {
	select {
	case <-happened:
		w.fail("must not happen: %s", what)
	case <-moment(g):
	}
}

func (w *world) end() error {
	ctx, cancel := context.WithTimeout(context.Background(), w.patience)
	defer cancel()
	w.mu.Lock()
	processes := w.processes
	w.mu.Unlock()
	for _, p := range processes {
		p.thaw()
	}
	for _, p := range processes {
		p.stop()
		p.follow()
	}
	var errs []error
	for _, p := range processes {
		select {
		case <-p.ended:
			if p.err != nil && !p.mayFail {
				errs = append(errs, fmt.Errorf("Run of %s: %w", p.name, p.err))
			}
		case <-ctx.Done():
			errs = append(errs, fmt.Errorf("Run of %s has not returned %v after it was told to", p.name, w.patience))
		}
	}
	w.leaveNothing(ctx, processes)
	w.mu.Lock()
	defer w.mu.Unlock()
	return errors.Join(append(w.violations, errs...)...)
}

func (w *world) leaveNothing(ctx context.Context, processes []*process) {
	for _, p := range processes {
		p.giveAll()
		for _, g := range w.grantsOf(p) {
			select {
			case <-g.done:
			case <-ctx.Done():
			}
		}
	}
}

func (w *world) newTopic(partitions int32) string { return w.NewTopic(w.t, partitions) }

func (w *world) produce(topic string, n int32, values ...string) {
	ms := make([]consumer.Message, len(values))
	for i, v := range values {
		ms[i].Value = []byte(v)
	}
	w.Produce(w.t, topic, n, ms...)
}

// numbered returns values that name their partition and index.
func numbered(n int32, from, to int) []string {
	var vs []string
	for i := from; i < to; i++ {
		vs = append(vs, fmt.Sprintf("%d:%04d", n, i))
	}
	return vs
}

// stall is a place where a process stops until it is told to continue.
type stall struct {
	w       *world
	once    sync.Once
	reached chan struct{}
	on      chan struct{}
}

func (w *world) newStall() *stall {
	return &stall{w: w, reached: make(chan struct{}), on: make(chan struct{})}
}

// stop ignores contexts, because its process is frozen. Later callers wait, too, and not for the
// lock of once: in a synctest bubble no time passes while a goroutine waits for a lock.
func (s *stall) stop() {
	s.once.Do(func() { close(s.reached) })
	select {
	case <-s.on:
	case <-s.w.ctx.Done(): // so that a story that failed ends
	}
}

func (s *stall) wait(what string) { s.w.awaitClosed(what, s.reached) }

func (s *stall) goOn() { close(s.on) }

// Harness creates what a history works with. Histories use topics and groups of their own, so that
// one broker may serve all of them. The methods report failures and clean up through t.
//
// Terms should be as short as the source allows: a frozen process's lease has to run out.
type Harness interface {
	// NewTopic creates a topic with empty partitions, under a new name, and returns the name.
	NewTopic(t testing.TB, partitions int32) string

	// Produce appends messages to a partition in the order given, with their
	// keys, values, headers and times. It returns when they can be read.
	Produce(t testing.TB, topic string, partition int32, ms ...consumer.Message)

	// NewSource returns one process's source: a member of the group, with connections and an
	// identity of its own. member is its name in failures. The topics need not exist.
	NewSource(t testing.TB, group string, topics []string, member string) consumer.Source
}

// Freezer can cut a process off from the source's side of the world.
type Freezer interface {
	// Freeze makes the source of a process neither hear nor say anything, as
	// if its network were cut or its process stopped, until thaw is called.
	// What the suite runs in own continues. The lease runs out in time.
	Freeze(t testing.TB, s consumer.Source) (thaw func())
}

// Retainer marks the harness of a source that moves only what has to move: a partition that stays
// with a member keeps its tenure when others join or leave.
type Retainer interface {
	// Retains does nothing.
	Retains()
}

// StaticMembers can start a process in the place of another, without the group
// noticing.
type StaticMembers interface {
	// NewStatic returns the source of a static member. A second one with the same group and
	// instance takes over the partitions at the same generation, and the first is fenced for good.
	NewStatic(t testing.TB, group string, topics []string, instance string) consumer.Source
}

// Regranter can take a partition from a process and grant it to the same one
// again under the same generation.
type Regranter interface {
	Regrant(t testing.TB, s consumer.Source, topic string, partition int32)
}

// Recreator can delete a topic and create it again, empty, under its old name.
type Recreator interface {
	RecreateTopic(t testing.TB, topic string, partitions int32)
}

// PartitionAdder can raise the number of a topic's partitions.
type PartitionAdder interface {
	AddPartitions(t testing.TB, topic string, total int32)
}

// Trimmer can delete the messages below an offset, as retention does. It returns
// when they are gone.
type Trimmer interface {
	Trim(t testing.TB, topic string, partition int32, begin epoch.Offset)
}

// SharedLog marks the harness of a source whose partitions share one log: trimming one trims all.
type SharedLog interface {
	// SharesLog does nothing.
	SharesLog()
}

// Deleter can delete one message inside the log, which leaves a gap that the source can explain.
type Deleter interface {
	Delete(t testing.TB, topic string, partition int32, offset epoch.Offset)
}

// Truncator can cut a log off above an offset, as an unclean election does. Offsets then repeat.
type Truncator interface {
	Truncate(t testing.TB, topic string, partition int32, end epoch.Offset)
}

// GroupDeleter can delete a group that has no live member, so that its generations
// start over.
type GroupDeleter interface {
	DeleteGroup(t testing.TB, group string)
}

// Positions can read and set the positions that the group has published, where lag tools look.
type Positions interface {
	// Position returns the position, and whether there is one.
	Position(t testing.TB, group, topic string, partition int32) (epoch.Offset, bool)

	// SetPosition publishes a position like another kind of consumer, even beside members.
	SetPosition(t testing.TB, group, topic string, partition int32, at epoch.Offset)
}

// Stalling is for the harness of a source whose leases run out on the machine's own clock. A
// machine that stands still for that long costs a history a tenure, and the source is not to blame.
// Such a history is played again, a few times at most.
type Stalling interface {
	// Stalled returns the longest time, since the harness was made, for which the broker has
	// answered nobody or this process has not run. A stall that continues counts until now.
	Stalled() time.Duration
}

// Carrier says what a log makes of a message that it cannot carry as it is, such as a log without
// keys, or one that orders headers itself. A harness without Carrier promises that key, value and
// headers come out as they went in, nil as nil and empty as empty, and the time to the millisecond.
// m has its topic and partition. If its time is zero, the log sets the time.
type Carrier interface {
	Carried(m consumer.Message) consumer.Message
}

// Timetable marks the harness of a source whose messages come from a clock and not from a log: each
// topic exists, messages have the time of the clock, and what is above the end has not come yet.
type Timetable interface {
	// ReadsClock does nothing.
	ReadsClock()
}

// Bounded says how many bytes of messages one source reads ahead at most, over all partitions.
type Bounded interface {
	Buffers() int
}
