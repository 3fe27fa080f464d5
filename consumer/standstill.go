package consumer

import "time"

// This file decides when a partition whose transactions keep failing is reported as halted (L5). It
// stops nothing: the partition is tried again as bisection.go says. report.go writes the report.

// standstill distinguishes a partition that does not move for long from one that is retried now and then.
type standstill struct {
	since time.Time // begin of the first failed attempt; zero while the partition moves
	said  bool
}

// failed records an attempt that began at began and failed at now. The next one follows after in.
// failed returns true once, within the term of the lease, of which an attempt may take two thirds.
func (s *standstill) failed(began, now time.Time, in, term time.Duration) (say bool) {
	if s.since.IsZero() {
		s.since = began
	}
	if s.said || now.Sub(s.since)+in < term/3 {
		return false
	}
	s.said = true
	return true
}

// moved ends the standstill. The next one is reported again.
func (s *standstill) moved() { *s = standstill{} }
