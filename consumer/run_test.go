package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/memsink"
)

func TestEachMessageIsAppliedOnceAndInOrder(t *testing.T) {
	for _, committers := range []int{1, 3} {
		inBubble(t, 5, func(r *rig) {
			want := map[int32][]string{}
			for n := range int32(5) {
				want[n] = r.fill(n, 700)
			}
			p := r.start("a", each(record), options{Committers: committers})
			synctest.Wait()
			p.end()
			for n := range int32(5) {
				r.wantEffects(n, want[n]...)
				r.wantNext(n, 700)
			}
		})
	}
}

func TestTheHandlerGetsTheEpochOfItsClaim(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		r.fill(0, 1)
		var got epoch.Epoch
		p := r.start("a", each(func(_ context.Context, _ tx, _ consumer.Message, e epoch.Epoch) error {
			got = e
			return nil
		}), options{})
		synctest.Wait()
		p.end()
		if claimed := wantOne[consumer.Claimed](p); got != claimed.Fence.Epoch || got < 1 {
			t.Errorf("the handler got epoch %d, the claim has %d", got, claimed.Fence.Epoch)
		}
	})
}

func TestOneTransactionTakesWhatIsReadyFromAllPartitionsAndNoMore(t *testing.T) {
	inBubble(t, 3, func(r *rig) {
		release := make(chan struct{})
		var transactions [][]epoch.Advance
		p := r.start("a", each(record), options{MaxBatch: 10}, memsink.Hooks{
			Commit: func(_ context.Context, as []epoch.Advance, do func() error) error {
				transactions = append(transactions, slices.Clone(as))
				<-release
				return do()
			},
		})
		synctest.Wait()
		r.fill(0, 1) // starts a transaction by itself
		synctest.Wait()
		for n := range int32(3) {
			r.log.Append(n, slices.Repeat([]string{"x"}, 14)...)
		}
		synctest.Wait()
		close(release)
		synctest.Wait()
		p.end()
		if len(transactions[0]) != 1 || transactions[0][0].To != 1 {
			t.Errorf("the first transaction waited for more: %v", transactions[0])
		}
		for _, as := range transactions {
			var n epoch.Offset
			for _, a := range as {
				n += a.To - a.From
			}
			if n > 10 {
				t.Errorf("%v takes more than MaxBatch", as)
			}
		}
		if most := slices.MaxFunc(transactions, func(a, b []epoch.Advance) int { return len(a) - len(b) }); len(most) < 2 {
			t.Errorf("no transaction was shared: %v", transactions)
		}
	})
}

func TestTransactionsAreLargerThanUsualOnlyWhereTheyAreBriefOrWereAskedFor(t *testing.T) {
	const usual, most = 4096, 16_384
	for name, c := range map[string]struct {
		o    options
		take time.Duration
		want int
	}{
		"brief":                     {options{}, 10 * time.Millisecond, most},
		"not brief":                 {options{}, 60 * time.Millisecond, usual},
		"not brief, but asked for":  {options{MaxBatch: most}, 60 * time.Millisecond, most},
		"brief, and not asked for":  {options{MaxBatch: usual}, 10 * time.Millisecond, usual},
		"brief, and less asked for": {options{MaxBatch: 300}, 10 * time.Millisecond, 300},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 100, func(r *rig) {
				for n := range int32(100) { // of each a Read yields 256 at once
					r.fill(n, 2000)
				}
				largest := 0
				p := r.start("a", consumer.Batches(func(context.Context, tx, []consumer.Message, epoch.Epoch) error { return nil }), c.o, memsink.Hooks{
					Commit: func(_ context.Context, as []epoch.Advance, do func() error) error {
						var n epoch.Offset
						for _, a := range as {
							n += a.To - a.From
						}
						largest = max(largest, int(n))
						r.pass(c.take)
						return do()
					},
				})
				r.applied()
				p.end()
				// The reads after a commit race with the next transaction, which waits for none of them.
				if largest > c.want || largest <= c.want/2 {
					t.Errorf("the largest transaction has %d messages, want %d, or more than half of that", largest, c.want)
				}
			})
		})
	}
}

func TestWrongArgumentsAreRefusedAtStart(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		m := r.group().Member("a")
		for what, err := range map[string]error{
			"nil source":  consumer.Run(r.Context(), nil, r.sink, consumer.Each(record), options{}),
			"nil sink":    consumer.Run(r.Context(), m, nil, each(record), options{}),
			"nil handler": consumer.Run(r.Context(), m, r.sink, each(nil), options{}),
			"no handler":  consumer.Run(r.Context(), m, r.sink, handlers{}, options{}),
			"nil batch":   consumer.Run(r.Context(), m, r.sink, consumer.Batches[tx](nil), options{}),
			"bad option":  consumer.Run(r.Context(), m, r.sink, consumer.Each(record), options{MaxBatch: -1}),
		} {
			if err == nil || !strings.HasPrefix(err.Error(), "consumer: ") {
				t.Errorf("%s: %v", what, err)
			}
		}
	})
}

// R13: a transaction must be over before the lease can be.
func TestR13BatchTimeoutMustBeShorterThanTheLease(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		r.group().SetTerm(5 * time.Second)
		p := r.start("a", each(record), options{BatchTimeout: 5 * time.Second})
		if err := <-p.done; err == nil || !strings.Contains(err.Error(), "want 3.333333333s at most") {
			t.Errorf("Run returned %v", err)
		}
	})
}

func TestStopDrainsCommitsTheTransactionUnderWayAndReturnsNil(t *testing.T) {
	inBubble(t, 2, func(r *rig) {
		first := r.fill(0, 30)
		entered, release := make(chan struct{}, 1), make(chan struct{})
		p := r.start("a", each(func(ctx context.Context, tx tx, m consumer.Message, e epoch.Epoch) error {
			if m.Offset == 0 {
				entered <- struct{}{}
				<-release
			}
			return record(ctx, tx, m, e)
		}), options{MaxBatch: 10})
		<-entered
		p.stop()
		synctest.Wait()
		select {
		case err := <-p.done:
			t.Fatalf("Run returned %v with a transaction under way", err)
		default:
		}
		close(release)
		if err := <-p.done; err != nil {
			t.Fatal(err)
		}
		r.wantEffects(0, first[:10]...) // and not the rest of what had been read
		r.wantNext(0, 10)
		if at, ok := r.group().Position(r.log.Name(), 0); !ok || at != 10 {
			t.Errorf("the position published to the source is %d, %v", at, ok)
		}
		for _, d := range seen[consumer.Drained](p) {
			if d.Partition == r.partition(0) && d.Next != 10 {
				t.Errorf("drained at %d", d.Next)
			}
		}
	})
}

func TestALostPartitionAbortsItsTransactionAtOnce(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		g := r.group()
		g.Script()
		g.SetGeneration(1)
		r.fill(0, 1)
		entered, cause := make(chan struct{}), make(chan error, 1)
		p := r.start("a", each(func(ctx context.Context, tx tx, m consumer.Message, e epoch.Epoch) error {
			close(entered)
			<-ctx.Done()
			cause <- context.Cause(ctx)
			return record(ctx, tx, m, e)
		}), options{})
		g.Grant(p.member, r.log.Name(), 0)
		<-entered
		g.Lose(p.member, r.log.Name(), 0, errors.New("the group moved on"))
		if err := <-cause; !errors.Is(err, consumer.ErrLost) || !strings.Contains(err.Error(), "moved on") {
			t.Errorf("the handler's context ended with %v", err)
		}
		synctest.Wait()
		r.wantEffects(0)
		r.wantNext(0, 0)
		p.end()
	})
}

func TestOneLostPartitionDoesNotDoubleTheOthersItSharedATransactionWith(t *testing.T) {
	inBubble(t, 2, func(r *rig) {
		g := r.group()
		g.Script()
		g.SetGeneration(1)
		entered := make(chan struct{}, 1)
		lost := false
		p := r.start("a", each(func(ctx context.Context, tx tx, m consumer.Message, e epoch.Epoch) error {
			if m.Partition.Number == 1 && !lost {
				lost = true
				entered <- struct{}{}
				<-ctx.Done()
				return ctx.Err()
			}
			return record(ctx, tx, m, e)
		}), options{})
		g.Grant(p.member, r.log.Name(), 0)
		g.Grant(p.member, r.log.Name(), 1)
		synctest.Wait()
		// A first transaction holds the committer until both have something ready.
		release := make(chan struct{})
		p.sink.Script(memsink.Hooks{Commit: func(_ context.Context, _ []epoch.Advance, do func() error) error {
			<-release
			return do()
		}})
		zero := r.fill(0, 1)
		synctest.Wait()
		r.log.Append(0, "more")
		r.fill(1, 1)
		synctest.Wait()
		close(release)
		<-entered
		g.Lose(p.member, r.log.Name(), 1, nil)
		synctest.Wait()
		r.wantEffects(0, append(zero, "more")...)
		r.wantEffects(1)
		p.end()
	})
}

func TestAPartitionWithoutAFenceStartsAsThePolicySays(t *testing.T) {
	for _, c := range []struct {
		policy    consumer.StartPolicy
		committed bool // by the group, at offset 4
		next      epoch.Offset
		begins    string
	}{
		{consumer.StartEarliest, true, 2, "as Options.Start says (earliest)"},
		{consumer.StartLatest, true, 9, "as Options.Start says (latest)"},
		{consumer.StartCommitted, true, 4, "where the group had committed"},
		{consumer.StartCommitted, false, 2, "at the earliest message, as the group had committed nothing"},
	} {
		t.Run(c.begins, func(t *testing.T) {
			inBubble(t, 1, func(r *rig) {
				r.fill(0, 9)
				r.log.Trim(0, 2)
				if c.committed {
					r.group().SetPosition(r.log.Name(), 0, 4)
				}
				var log logged
				p := r.start("a", each(record), options{Start: c.policy, Logger: log.logger()})
				synctest.Wait()
				p.end()
				if got := wantOne[consumer.Claimed](p).Fence.Next; got != c.next {
					t.Errorf("started at %d, want %d", got, c.next)
				}
				if lines := log.lines("msg=claimed"); len(lines) != 1 || !strings.Contains(lines[0], c.begins) {
					t.Errorf("it says %q", lines)
				}
			})
		})
	}
}

type describing struct{ consumer.Source }

type describingTenure struct{ consumer.Tenure }

func (s describing) Run(ctx context.Context, joined func(error), own func(context.Context, consumer.Tenure)) error {
	return s.Source.Run(ctx, joined, func(ctx context.Context, t consumer.Tenure) { own(ctx, describingTenure{t}) })
}

func (describingTenure) DescribeStart(first epoch.Fence) string {
	return fmt.Sprintf("with the news after %d", first.Next)
}

func TestTheLineOfAFirstClaimHasTheWordsOfItsTenure(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		r.fill(0, 9)
		r.log.Trim(0, 2)
		for n, want := range []bool{true, false} { // at the first claim alone
			var log logged
			p := r.process("a", nil)
			p.run(func(ctx context.Context) error {
				return consumer.Run(ctx, describing{p.member}, p.sink, each(record), p.watched(options{Logger: log.logger()}))
			})
			synctest.Wait()
			p.end()
			lines := log.lines("msg=claimed")
			if len(lines) != 1 || want != strings.Contains(lines[0], `begins="with the news after 2"`) || want != strings.Contains(lines[0], "begins=") {
				t.Errorf("claim %d says %q", n+1, lines)
			}
		}
	})
}

// What others had committed is not all that they may have applied.
func TestAClaimThatTakesThePositionOverFromTheGroupSaysThatADedupeTableStays(t *testing.T) {
	for policy, warns := range map[consumer.StartPolicy]bool{consumer.StartCommitted: true, consumer.StartEarliest: false} {
		t.Run(policy.String(), func(t *testing.T) {
			inBubble(t, 1, func(r *rig) {
				r.fill(0, 9)
				r.group().SetPosition(r.log.Name(), 0, 4)
				for n, want := range []bool{warns, false} { // at the first claim alone
					var log logged
					p := r.start("a", each(record), options{Start: policy, Logger: log.logger()})
					synctest.Wait()
					p.end()
					lines := log.lines("msg=claimed")
					if len(lines) != 1 || want != (strings.Contains(lines[0], "level=WARN") && strings.Contains(lines[0], "epochfence moveover")) {
						t.Errorf("claim %d says %q; a warning: want %t", n+1, lines, want)
					}
				}
			})
		})
	}
}

// R9: a partition that appears later starts at the earliest, whatever the policy.
func TestR9APartitionAddedLaterLosesNoMessages(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		r.fill(0, 5)
		p := r.start("a", each(record), options{Start: consumer.StartLatest})
		synctest.Wait()
		r.log.AddPartitions(2)
		late := r.fill(1, 3)
		r.log.Append(0, "new")
		p.end()
		p = r.start("a", each(record), options{Start: consumer.StartLatest})
		synctest.Wait()
		p.end()
		r.wantEffects(0, "new")
		r.wantEffects(1, late...)
	})
}

// R8: the source's idea of the position is never read back.
func TestR8ThePositionOfTheSinkIsTheTruth(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		want := r.fill(0, 6)
		p := r.start("a", each(record), options{MaxBatch: 3})
		synctest.Wait()
		p.end()
		r.group().SetPosition(r.log.Name(), 0, 1) // somebody resets the group's offsets
		r.log.Append(0, "next")
		p = r.start("a", each(record), options{Start: consumer.StartCommitted})
		synctest.Wait()
		p.end()
		r.wantEffects(0, append(want, "next")...)
	})
}

// belated is a source that grants its partition once more after its Run has
// returned, which no source may.
type belated struct {
	consumer.Source
	again chan bool // whether that tenure was looked at
}

func (s belated) Run(ctx context.Context, joined func(error), own func(context.Context, consumer.Tenure)) error {
	var tenure touchy
	err := s.Source.Run(ctx, joined, func(ctx context.Context, t consumer.Tenure) { tenure.Tenure = t; own(ctx, t) })
	go func() {
		<-time.After(time.Second)
		own(context.Background(), &tenure)
		s.again <- tenure.touched
	}()
	return err
}

type touchy struct {
	consumer.Tenure
	touched bool
}

func (t *touchy) Origin() epoch.Origin { t.touched = true; return t.Tenure.Origin() }

func TestNothingBeginsAfterRun(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		source := belated{r.group().Member("a"), make(chan bool)}
		ctx, stop := context.WithCancel(r.Context())
		ended := make(chan error, 1)
		go func() { ended <- consumer.Run(ctx, source, r.sink, consumer.Each(record), options{}) }()
		synctest.Wait()
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if <-source.again {
			t.Error("a tenure was begun after Run had returned")
		}
	})
}
