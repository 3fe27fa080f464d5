package consumer_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/memsink"
)

// logged keeps what a logger writes.
type logged struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logged) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// lines returns the lines so far that hold word, and forgets all.
func (l *logged) lines(word string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var found []string
	for line := range strings.Lines(l.buf.String()) {
		if strings.Contains(line, word) {
			found = append(found, line)
		}
	}
	l.buf.Reset()
	return found
}

func TestAnOutageIsALineAndThenACount(t *testing.T) {
	const partitions = 20
	for name, down := range map[string]error{
		"the connection is lost": fmt.Errorf("%w: dial tcp: %w", epoch.ErrInDoubt, errors.New("connection refused")),
		"it refuses for now":     fmt.Errorf("%w: %w", epoch.ErrTransient, errors.New("too many connections")),
		"it is unhealthy":        fmt.Errorf("%w: %w", epoch.ErrUnhealthy, errors.New("no such table")),
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, partitions, func(r *rig) {
				var out atomic.Bool
				var log logged
				p := r.start("a", each(record), options{Logger: log.logger()}, memsink.Hooks{
					Fence: func(_ context.Context, p epoch.Partition, do func() error) error {
						if out.Load() && errors.Is(down, epoch.ErrInDoubt) {
							return fmt.Errorf("read %s: %w", p, down)
						}
						return do()
					},
					Commit: func(_ context.Context, as []epoch.Advance, do func() error) error {
						if out.Load() {
							return fmt.Errorf("commit %s: %w", as[0].Partition, down)
						}
						return do()
					},
				})
				synctest.Wait()
				log.lines("")
				out.Store(true)
				var want [][]string
				for n := range int32(partitions) {
					want = append(want, r.fill(n, 5))
				}
				r.pass(15 * time.Second)
				if lines := log.lines("level=WARN"); len(lines) > 6 {
					t.Errorf("%d warnings in the first 15 s:\n%s", len(lines), strings.Join(lines, ""))
				}
				r.pass(10 * time.Minute)
				if lines := log.lines("refused"); len(lines) > 20 {
					t.Errorf("%d lines in ten minutes:\n%s", len(lines), strings.Join(lines, ""))
				}
				out.Store(false)
				r.pass(2 * time.Minute)
				if lines := log.lines("over: "); len(lines) < 1 || len(lines) > 5 {
					t.Errorf("%d lines say that it is over:\n%s", len(lines), strings.Join(lines, ""))
				}
				p.end()
				for n := range int32(partitions) {
					r.wantEffects(n, want[n]...)
				}
			})
		})
	}
}

func TestFailuresWithinTenSecondsShareALineOnlyIfTheyAreEqual(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		r.fill(0, 4)
		var log logged
		fail := map[string]string{"0/0": "no such item", "0/1": "out of stock", "0/2": "out of stock"}
		p := r.start("a", letters(r, func(m consumer.Message) error {
			if why := fail[string(m.Value)]; why != "" {
				return consumer.Permanent(errors.New(why))
			}
			return nil
		}), options{Logger: log.logger()})
		r.applied()
		lines := log.lines("failed for good")
		if len(lines) != 3 || !strings.Contains(lines[0], "no such item") || !strings.Contains(lines[1], "out of stock") || !strings.Contains(lines[2], "over: ") || !strings.Contains(lines[2], "times=2") {
			t.Errorf("the lines are\n%s", strings.Join(lines, ""))
		}
		p.end()
	})
}

// An outbox that sends has a transaction under way when its partition is revoked. The end of the
// claim cuts it off, perhaps in its COMMIT.
func TestATransactionInDoubtInAnOrdinaryRebalanceIsNoWarning(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		g := r.group()
		g.Script()
		var log logged
		p := r.start("a", each(record).Background(func(ctx context.Context, b consumer.Background[tx]) {
			_ = b.Do(ctx, func(context.Context, tx) error { return nil })
		}), options{Logger: log.logger()}, memsink.Hooks{CommitHeld: func(ctx context.Context, _ epoch.Hold, do func() error) error {
			<-ctx.Done()
			return errors.Join(epoch.ErrInDoubt, do())
		}})
		synctest.Wait()
		g.Grant(p.member, r.log.Name(), 0)
		r.pass(time.Second)
		g.Drain(p.member, r.log.Name(), 0)
		r.pass(time.Second)
		if lines := log.lines("in doubt"); len(lines) != 1 || !strings.Contains(lines[0], "level=INFO") {
			t.Errorf("the lines are\n%s", strings.Join(lines, ""))
		}
		p.end()
	})
}

func TestARunThatIsToEndSaysWhatItWaitsFor(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		var log logged
		r.group().SetTerm(time.Minute)
		p := r.start("a", each(func(ctx context.Context, tx tx, m consumer.Message, e epoch.Epoch) error {
			<-time.After(20 * time.Second)
			return record(ctx, tx, m, e)
		}), options{Logger: log.logger(), MaxBatch: 1})
		synctest.Wait()
		want := r.fill(0, 1)
		synctest.Wait()
		r.pass(time.Second)
		p.stop()
		r.pass(3 * time.Second)
		lines := log.lines("stopping")
		if len(lines) != 1 {
			t.Fatalf("%d lines in three seconds: %v", len(lines), lines)
		}
		for _, word := range []string{"partition=0", "from=0", "for=3s", "batch_timeout=30s"} {
			if !strings.Contains(lines[0], word) {
				t.Errorf("%q does not say %s", lines[0], word)
			}
		}
		if err := <-p.done; err != nil {
			t.Error(err)
		}
		if lines := log.lines("stopping"); len(lines) > 4 {
			t.Errorf("%d more lines in 16 s", len(lines))
		}
		r.wantEffects(0, want...)
	})
}
