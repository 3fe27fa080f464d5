package outbox_test

import "context"

// turns is a claim, and a relay under it, that calls before and after around
// each transaction, if they are set.
type turns struct {
	*running
	calls         int
	before, after func(run *turns, n int)
	panics        any // what the relay must end with, if it must panic
}

func (r *rig) relayInTurns(panics any, before, after func(run *turns, n int)) *turns {
	c := &claim{db: r.db, epoch: 1, applied: make(chan struct{}, 1)}
	ctx, cancel := context.WithCancel(r.Context())
	s := &turns{running: &running{c, cancel, make(chan struct{})}, before: before, after: after, panics: panics}
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

func (s *turns) Do(ctx context.Context, apply func(context.Context, *tx) error) error {
	s.calls++
	if s.before != nil {
		s.before(s, s.calls)
	}
	if s.after != nil {
		defer s.after(s, s.calls)
	}
	return s.claim.Do(ctx, apply)
}
