package main

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

func figureOf(of measure, low, median, high float64) result {
	return result{Row: "ci/fence/batch=1", Ours: "fenced", Peer: "plain", Of: of, Ratio: median, Low: low, High: high, sure: [2]float64{low, high}, Rounds: 9}
}

func TestAFigureHasFallenWhenItHasLostAFifthOrFourFifthsOfWork(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name              string
		of                measure
		committed         float64
		low, median, high float64
		want              state
		fell              bool // once all rounds were played
	}{
		{"as it was", throughput, 1, 0.95, 1, 1.05, fine, false},
		{"better", throughput, 1, 1.4, 1.5, 1.6, fine, false},
		{"a tenth less", throughput, 0.5, 0.43, 0.45, 0.47, fine, false},
		{"the lower bound is at the limit", throughput, 1, 0.8, 0.9, 1, fine, false},
		{"noise, whose median is above the limit", throughput, 1, 0.7, 0.9, 1.1, unclear, false},
		{"noise, whose median is below it", throughput, 1, 0.6, 0.79, 0.81, unclear, true},
		{"the upper bound is at the limit", throughput, 1, 0.6, 0.7, 0.8, unclear, true},
		{"surely below", throughput, 1, 0.6, 0.7, 0.79, fallen, true},
		{"half", throughput, 2.8, 1.3, 1.4, 1.5, fallen, true},
		{"three times the work", work, 1, 0.3, 0.33, 0.4, fine, false},
		{"surely more than five times the work", work, 1, 0.15, 0.17, 0.19, fallen, true},
		{"as late as it was", p99, 1, 0.9, 1, 1.1, fine, false},
		{"sooner", p99, 1, 0.1, 0.2, 0.3, fine, false},
		{"at the upper bound a quarter later", p50, 1, 1, 1.1, 1.25, fine, false},
		{"now and then much later", p50, 1, 1, 1.1, 1.3, unclear, false},
		{"later more often than not", p50, 1, 1.2, 1.3, 1.4, unclear, true},
		{"surely later", p99, 1, 1.26, 1.4, 2, fallen, true},
	} {
		got, before := figureOf(c.of, c.low, c.median, c.high), figureOf(c.of, 0, c.committed, 0)
		if is := got.against(before); is != c.want {
			t.Errorf("%s: state %d, want %d", c.name, is, c.want)
		}
		if fell := got.fell(before); fell != c.fell {
			t.Errorf("%s: fell is %t, want %t", c.name, fell, c.fell)
		}
	}
}

func TestHowSureTheMedianIs(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ rounds, low, high int }{ // places among the sorted ratios
		{1, 0, 0}, {2, 0, 1}, {3, 0, 2}, {9, 2, 6}, {18, 6, 11}, {36, 14, 21}, {100, 43, 56},
	} {
		ratios := make([]float64, c.rounds)
		for i := range ratios {
			ratios[i] = float64(i)
		}
		if got, want := sure(ratios), [2]float64{float64(c.low), float64(c.high)}; got != want {
			t.Errorf("%d rounds: %v, want %v", c.rounds, got, want)
		}
	}
}

func TestRoundsArePlayedUntilItIsClear(t *testing.T) {
	t.Parallel()
	before := committed{file: "f", figures: results{figureOf(throughput, 0, 1, 0)}}
	noisy, calm, gone := figureOf(throughput, 0.7, 0.9, 1), figureOf(throughput, 0.9, 1, 1), figureOf(throughput, 0.3, 0.4, 0.5)
	other := calm
	other.Peer = "piped" // which is not committed: no round would tell more
	for _, c := range []struct {
		name string
		rs   results
		want bool
	}{
		{"fine", results{calm}, false}, {"fallen", results{gone}, false}, {"noisy", results{noisy}, true},
		{"one of them is noisy", results{calm, noisy}, true}, {"nothing to compare with", results{other}, false},
	} {
		if got := before.unclear(c.rs); got != c.want {
			t.Errorf("%s: unclear is %t, want %t", c.name, got, c.want)
		}
	}
}

func TestAFallSaysWhatWasExpectedAndWhatToDo(t *testing.T) {
	t.Parallel()
	before := committed{file: "internal/contrib/bench/ratios.json", figures: results{figureOf(throughput, 0, 0.5, 0)}}
	err := before.compare(results{figureOf(throughput, 0.31, 0.32, 0.33)})
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"ci/fence/batch=1", "fenced ÷ plain", "0.320", "9 rounds", "0.310 and 0.330", "0.500", "internal/contrib/bench/ratios.json", "0.400", "-profiles", "make figures WHAT=ratios"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in: %v", want, err)
		}
	}
	if err := before.compare(results{figureOf(throughput, 0.4, 0.41, 0.42)}); err != nil {
		t.Errorf("a figure that has not fallen: %v", err)
	}
	more := figureOf(throughput, 0.4, 0.5, 0.6)
	more.Allocs = 12
	before.figures[0].Allocs = 11
	if err := before.compare(results{more}); err != nil {
		t.Errorf("a tenth more allocations: %v", err)
	}
	before.figures[0].Allocs = 10
	if err := before.compare(results{more}); err == nil || !strings.Contains(err.Error(), "12.0 allocations") || !strings.Contains(err.Error(), "make figures WHAT=ratios") {
		t.Errorf("a fifth more allocations: %v", err)
	}
	if err := before.compare(results{figureOf(p50, 1, 1, 1)}); err == nil || !strings.Contains(err.Error(), "make figures WHAT=ratios") {
		t.Errorf("a figure that is not committed: %v", err)
	}
}

func TestWhatCIComparesWithIsCommitted(t *testing.T) {
	t.Parallel()
	before, err := readCommitted("ratios.json")
	if err != nil {
		t.Fatal(err)
	}
	known := 0
	for _, r := range ciRows() {
		for _, f := range r.figures {
			got, ok := before.figure(result{Row: r.name, Ours: f.ours, Peer: f.peer, Of: f.of})
			if !ok || got.Ratio <= 0 {
				t.Errorf("%s: %s ÷ %s: run make figures WHAT=ratios and commit internal/contrib/bench/ratios.json", r.name, f.ours, f.peer)
				continue
			}
			known++
		}
	}
	if known != len(before.figures) {
		t.Errorf("%d figures are committed and %d are measured: run make figures WHAT=ratios and commit internal/contrib/bench/ratios.json", len(before.figures), known)
	}
}

// A peer without a guard may apply messages twice where the machine is starved; nothing
// else may, and nothing may lose one.
func TestOnlyAPeerWithoutAGuardIsRunAgain(t *testing.T) {
	t.Parallel()
	lost := errors.New("messages are missing")
	for _, c := range []struct {
		name, variant string
		errs          []error // of the attempts
		doubled       int
		err           error
	}{
		{"at once", "kafka/each", []error{nil}, 0, nil},
		{"the second time", "kafka/each", []error{errDoubled, nil}, 1, nil},
		{"the last time", "nats/set", []error{errDoubled, errDoubled, errDoubled, nil}, 3, nil},
		{"never", "kafka/set", []error{errDoubled, errDoubled, errDoubled, errDoubled, nil}, 3, errDoubled},
		{"a loss", "kafka/each", []error{lost, nil}, 0, lost},
		{"a loss after that", "kafka/each", []error{errDoubled, lost, nil}, 1, lost},
		{"ours", "kafka/run-batches", []error{errDoubled, nil}, 0, errDoubled},
		{"a table of ids", "kafka/set-dedupe", []error{errDoubled, nil}, 0, errDoubled},
	} {
		attempt := 0
		_, err := undoubled(c.variant, func() (outcome, error) {
			attempt++
			return outcome{}, c.errs[attempt-1]
		})
		if !errors.Is(err, c.err) || attempt != c.doubled+1 {
			t.Errorf("%s: error %v after %d attempts; want %v after %d", c.name, err, attempt, c.err, c.doubled+1)
		}
	}
}

func TestEachPeerThatMayDoubleIsAVariant(t *testing.T) {
	t.Parallel()
	for _, v := range atLeastOnce {
		if variants[v] == nil {
			t.Errorf("there is no variant %q", v)
		}
	}
}

// The noise of a round is what was seen on two cores with a load of 4 and of 20.
func TestTheRuleTellsNoiseFromAFall(t *testing.T) {
	t.Parallel()
	const times, asked = 10_000, 9
	for _, c := range []struct {
		noise       float64 // a round's ratio is off by a factor of e to this, or more, in one of three
		left        float64 // of the committed ratio
		least, most float64 // how often it is to be said to have fallen
	}{
		{0.1, 1, 0, 0}, {0.1, 0.9, 0, 0.001}, {0.1, 0.75, 0.9, 1}, {0.1, 0.7, 0.999, 1},
		{0.28, 1, 0, 0.003}, {0.28, 0.7, 0.9, 1}, {0.28, 0.6, 0.999, 1},
	} {
		random := rand.New(rand.NewPCG(1, 2))
		before := committed{figures: results{figureOf(throughput, 0, 1, 0)}}
		fell, rounds := 0, 0
		for range times {
			var ratios []float64
			unclear := func() bool { return before.unclear(results{judged(ratios)}) }
			for another(len(ratios), asked, unclear) {
				ratios = append(ratios, c.left*math.Exp(c.noise*random.NormFloat64()))
			}
			rounds += len(ratios)
			if before.compare(results{judged(ratios)}) != nil {
				fell++
			}
		}
		share := float64(fell) / times
		t.Logf("noise %.2f, %.2f of the ratio is left: fallen in %.3f %% of runs, which have %.1f rounds", c.noise, c.left, 100*share, float64(rounds)/times)
		if share < c.least || share > c.most {
			t.Errorf("noise %.2f, %.2f of the ratio is left: fallen in %.4f of runs, want %v to %v", c.noise, c.left, share, c.least, c.most)
		}
	}
}

func judged(ratios []float64) result {
	sorted := slices.Sorted(slices.Values(ratios))
	r := figureOf(throughput, quantile(sorted, 0.25), quantile(sorted, 0.5), quantile(sorted, 0.75))
	r.sure = sure(sorted)
	return r
}
