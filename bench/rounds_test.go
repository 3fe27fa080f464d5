package bench

import (
	"slices"
	"testing"
	"time"
)

// variant is one way to do the work of a round.
type variant struct {
	name string
	run  func()
}

// rounds plays the variants in each iteration of b, in turn first, and returns
// how long each took in each round.
func rounds(b *testing.B, variants ...variant) map[string][]time.Duration {
	took := map[string][]time.Duration{}
	for _, v := range variants {
		v.run() // warm caches, plans and connections
	}
	for first := 0; b.Loop(); first++ {
		for i := range variants {
			v := variants[(first+i)%len(variants)]
			began := time.Now()
			v.run()
			took[v.name] = append(took[v.name], time.Since(began))
		}
	}
	return took
}

// speed is the median over the rounds of how many times as fast as other name
// was: over one, name is the faster.
func speed(took map[string][]time.Duration, name, other string) float64 {
	ratios := make([]float64, len(took[name]))
	for i := range ratios {
		ratios[i] = float64(took[other][i]) / float64(took[name][i])
	}
	slices.Sort(ratios)
	return ratios[len(ratios)/2]
}

// rate is the median over the rounds of how many messages a second name applied.
// Unlike a ratio it is about the machine, too.
func rate(took map[string][]time.Duration, name string, messages int) float64 {
	all := slices.Sorted(slices.Values(took[name]))
	return float64(messages) / all[len(all)/2].Seconds()
}
