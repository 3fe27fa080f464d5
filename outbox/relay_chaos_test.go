package outbox_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/suites/bubble"
	"github.com/epochfence/epochfence/outbox"
)

// TestARelayInChaosLosesNothing has one relay, under one claim, go through storms of
// all kinds, while entries are added and people delete some. What the relay tells is
// what it has settled, once each; when all is settled, it is quiet.
func TestARelayInChaosLosesNothing(t *testing.T) {
	storms := uint64(bubble.Rounds(20))
	if os.Getenv("EPOCHFENCE_LONG") != "" {
		storms = 60
	}
	for seed := range storms {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			bubble.Test(t, func(t *testing.T) { goThroughAStorm(t, seed) })
		})
	}
}

func goThroughAStorm(t *testing.T, seed uint64) {
	luck := rand.New(rand.NewPCG(seed, 1))
	s := anyStorm(t, luck, seed)
	keys := pick(luck, 1, 3, 40, 200)
	someKeys := func(n int) []string {
		all := make([]string, n)
		for i := range all {
			if luck.IntN(3) > 0 {
				all[i] = fmt.Sprintf("k%d", luck.IntN(keys))
			}
		}
		return all
	}
	s.add(someKeys(pick(luck, 0, 1, 63, 64, 65, 200))...)
	run := s.relay()
	people := luck.IntN(2) == 0
	pause := luck.Int64N(int64(time.Second)/3) + 1
	for range luck.IntN(30) {
		<-time.After(time.Duration(luck.Int64N(pause)) + 1)
		s.add(someKeys(1 + luck.IntN(10))...)
		if people && luck.IntN(2) == 0 {
			s.takeSome(luck)
		}
	}
	switch luck.IntN(9) {
	case 0:
		s.claim.lose()
		s.add("")
		s.wantOver(run, 12*time.Hour)
	case 1, 2: // the claim ends in the midst of it
	default:
		s.wantEmpty(24 * time.Hour)
		s.wantQuiet()
	}
	run.end()
	s.wantOver(run, time.Hour)
	s.wantNothingUnderWay()
	s.wantEventsOfWhatWasDeleted()
	s.wantDeletedWhatWasAnswered()
	s.wantEachAnswerNotedOnce()
}

func pick(luck *rand.Rand, of ...int) int { return of[luck.IntN(len(of))] }

func anyStorm(t *testing.T, luck *rand.Rand, seed uint64) *storm {
	t.Helper()
	ms := func(of ...int) time.Duration { return time.Duration(pick(luck, of...)) * time.Millisecond }
	is := odds{
		transient: pick(luck, 0, 0, 3, 10), fails: pick(luck, 0, 0, 3, 10), doubt: pick(luck, 0, 0, 10),
		lost: pick(luck, 0, 4), unavailable: pick(luck, 0, 2, 10), refused: pick(luck, 0, 5),
		own:     pick(luck, 0, 0, 3, 50),
		request: ms(0, 1, 10, 300), transaction: ms(0, 1, 10, 300, 5000),
	}
	o := outbox.Options[*tx]{
		Concurrency: pick(luck, 1, 2, 8, 100), RequestTimeout: ms(50, 1000),
		RetryMin: time.Millisecond, RetryMax: ms(5, 1000),
	}
	var s *storm
	own := func(_ context.Context, t *tx, e outbox.Sent, _ outbox.Answer) error { return s.note(t, e) }
	if is.own > 0 || luck.IntN(2) == 0 {
		o.OnAnswer = own
	}
	if luck.IntN(2) == 0 {
		o.OnRefused = own
	}
	s = newStorm(t, seed, is, o)
	return s
}

// note is OnAnswer and OnRefused.
func (s *storm) note(t *tx, e outbox.Sent) error {
	switch {
	case !s.now(s.own):
		t.note(fmt.Sprint(e.ID))
		return nil
	case s.oneIn(4):
		panic("of OnAnswer")
	case s.oneIn(3):
		return fmt.Errorf("%w: a deadlock", epoch.ErrTransient)
	}
	return errTest
}

// takeSome is an operator who deletes entries.
func (s *storm) takeSome(luck *rand.Rand) {
	s.Helper()
	err := s.db.do(func(t *tx) error {
		for id := range t.rows {
			delete(t.rows, id)
			if luck.IntN(3) == 0 {
				break
			}
		}
		return nil
	})
	if err != nil {
		s.Fatal(err)
	}
}

func (s *storm) wantOver(run *running, within time.Duration) {
	s.Helper()
	select {
	case <-run.done:
	case <-time.After(within):
		s.Fatalf("the relay has not returned within %v", within)
	}
}

func (s *storm) wantEmpty(within time.Duration) {
	s.Helper()
	for end := time.Now().Add(within); len(s.db.left()) > 0; <-time.After(time.Minute) {
		if time.Now().After(end) {
			s.Fatalf("%d entries are left after %v and %d transactions", len(s.db.left()), within, s.countTransactions())
		}
	}
}

// wantQuiet wants no transactions when there is nothing to do, once the relay has
// noticed that.
func (s *storm) wantQuiet() {
	s.Helper()
	<-time.After(time.Hour)
	before := s.countTransactions()
	<-time.After(24 * time.Hour)
	if n := s.countTransactions() - before; n > 0 {
		s.Errorf("%d transactions in a day without entries", n)
	}
}

func (s *storm) countTransactions() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.transactions
}

func (s *storm) wantNothingUnderWay() {
	s.Helper()
	if len(s.under) > 0 || s.inTransaction {
		s.Errorf("the relay has returned, but not its requests of %v, or its transaction: %v", s.under, s.inTransaction)
	}
	if s.most > s.o.Concurrency {
		s.Errorf("up to %d requests at a time, want %d", s.most, s.o.Concurrency)
	}
}

func (s *storm) wantEventsOfWhatWasDeleted() {
	s.Helper()
	observed := map[int64]int{}
	for _, e := range s.events {
		if e.Kind == outbox.Delivered || e.Kind == outbox.Refused && e.Err == nil {
			observed[e.ID]++
		}
	}
	for id, n := range observed {
		if n != 1 || !s.deleted[id] {
			s.Errorf("observed %d times of entry %d; deleted: %v", n, id, s.deleted[id])
		}
	}
	for id := range s.deleted {
		if observed[id] == 0 {
			s.Errorf("entry %d was deleted and nobody was told", id)
		}
	}
}

func (s *storm) wantDeletedWhatWasAnswered() {
	s.Helper()
	for _, gone := range []map[int64]bool{s.deleted, s.doubted} {
		for id := range gone {
			if !s.answered[id] {
				s.Errorf("entry %d was deleted without an answer", id)
			}
		}
	}
}

func (s *storm) wantEachAnswerNotedOnce() {
	s.Helper()
	notes := slices.Sorted(slices.Values(s.db.notes()))
	if once := slices.Compact(slices.Clone(notes)); len(once) < len(notes) {
		s.Errorf("noted %q", notes)
	}
}
