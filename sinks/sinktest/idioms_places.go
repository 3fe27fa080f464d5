package sinktest

import "testing"

// playPlaces plays the idioms that have to do with transactions where there are some
// besides the handler's.
func playPlaces(t *testing.T, m mode, table *table) {
	for _, place := range []string{inBatches, inOnFailure} {
		t.Run(place, func(t *testing.T) {
			for _, i := range m.idioms() {
				if !i.Places || i.Everybody {
					continue
				}
				t.Run(i.Name, func(t *testing.T) {
					t.Parallel()
					table.note(m.Mode, place, i.Name, playIn(t, &m, &i, place))
				})
			}
		})
	}
}
