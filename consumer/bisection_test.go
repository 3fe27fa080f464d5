package consumer

import (
	"math/bits"
	"testing"

	"pgregory.net/rapid"
)

// The probe is played against a batch in which some messages fail whenever they
// are in a transaction.
func TestTheProbeFindsEachFaultyMessageInLogarithmicTime(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 300).Draw(t, "batch")
		faulty := rapid.SliceOfNDistinct(rapid.IntRange(0, n-1), 1, min(n, 4), rapid.ID).Draw(t, "faulty")
		known := rapid.Bool().Draw(t, "the handler says which one failed")
		isFaulty := map[int]bool{}
		for _, i := range faulty {
			isFaulty[i] = true
		}

		p := newBisection(1, 1)
		transactions, found := 0, 0
		for done := 0; done < n; {
			transactions++
			size := n - done
			if p.suspects > 0 {
				size = min(p.try, size)
			}
			at := -1
			for i := done; i < done+size && at < 0; i++ {
				if isFaulty[i] {
					at = i - done
				}
			}
			switch {
			case at < 0:
				p.passed(size)
				done += size
			case size == 1 && p.suspects > 0:
				found++
				p.passed(1) // given to OnFailure
				done++
			case known:
				p.narrow(size, at)
			default:
				p.narrow(size, -1)
			}
		}
		if found != len(faulty) {
			t.Fatalf("found %d faulty messages of %d", found, len(faulty))
		}
		// Halving takes two transactions a level at most, one failing and one passing.
		if limit := 1 + len(faulty)*(2*bits.Len(uint(n))+3); transactions > limit {
			t.Fatalf("%d transactions for %d faulty messages among %d; want at most %d", transactions, len(faulty), n, limit)
		}
	})
}

// Messages that need transactions of their own get them, and few begin in vain.
func TestMessagesThatNeedTheirOwnTransactionsCostFewInVain(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 3000).Draw(t, "messages")
		every := rapid.IntRange(1, 50).Draw(t, "one in so many")
		capacity := rapid.IntRange(2, 600).Draw(t, "room")
		own := func(i int) bool { return i%every == 0 }

		p := newBisection(1, 1)
		vain := 0
		for done := 0; done < n; {
			size := min(capacity, n-done)
			if p.active() {
				size = p.size(size)
			}
			at := -1
			for i := done; i < done+size && at < 0; i++ {
				if own(i) && size > 1 {
					at = i - done
				}
			}
			if at < 0 {
				p.passed(size)
				done += size
				continue
			}
			vain++
			p.learn(verdict{finding: needsOwn, at: at}, trial{messages: size}, true, false)
		}
		limit := 2*(n/every+1) + 2
		if every == 1 { // all of them do: the more there are, the rarer it is tried
			limit = 12 + n/maxStreak
		}
		if vain > limit {
			t.Fatalf("%d transactions in vain for %d messages of which one in %d needs its own; want at most %d", vain, n, every, limit)
		}
	})
}
