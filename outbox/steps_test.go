package outbox_test

import "context"

// steps is a claim, and a relay under it, that calls before and after around
// each transaction, if they are set.
type steps struct {
	*running
	calls         int
	before, after func(run *steps, n int)
	panics        any // what the relay must end with, if it must panic
}

func (r *rig) relayBySteps(panics any, before, after func(run *steps, n int)) *steps {
	c := &claim{db: r.db, epoch: 1, applied: make(chan struct{}, 1)}
	ctx, cancel := context.WithCancel(r.Context())
	s := &steps{running: &running{c, cancel, make(chan struct{})}, before: before, after: after, panics: panics}
	go func() {
		defer close(s.done)
		defer func() {
			if v := recover(); v != s.panics {
				r.Errorf("the relay ended with the panic %v, want %v", v, s.panics)
			}
		}()
		r.box.Relay(ctx, s)
	}()
	r.Cleanup(func() { r.stop(s.running) })
	return s
}

func (s *steps) Do(ctx context.Context, apply func(context.Context, *tx) error) error {
	s.calls++
	if s.before != nil {
		s.before(s, s.calls)
	}
	if s.after != nil {
		defer s.after(s, s.calls)
	}
	return s.claim.Do(ctx, apply)
}
