package consumer

import "time"

// standstill tells a partition that does not move for long, though nothing of it
// is given up, from one whose transaction has to be tried again now and then.
type standstill struct {
	since time.Time // when the first attempt began that failed; zero while it moves
	said  bool
}

// failed: an attempt that began then has failed at now, and the next one follows
// after in. It reports whether to say so: once, and within the term of the lease,
// of which an attempt may take two thirds.
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

// moved: the partition has.
func (s *standstill) moved() { *s = standstill{} }
