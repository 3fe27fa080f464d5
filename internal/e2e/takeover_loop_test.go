package e2e_test

import (
	"context"
	"time"

	"github.com/epochfence/epochfence/consumer/kafkasource"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

// watchPeers is what consumer.Run does with a Watch and a Remover, without its caps.
func watchPeers(ctx context.Context, sink *pgsink.Sink, source *kafkasource.Source, name string) {
	var vigil operate.Vigil
	gone, removed := map[string]time.Duration{}, map[string]bool{}
	self := operate.Peer{Group: "", Run: name, Name: name, Host: name, Patience: 1500 * time.Millisecond}
	self.Group, _ = source.Identity()
	for tick := time.NewTicker(200 * time.Millisecond); ctx.Err() == nil; <-tick.C {
		self.Member, _, _ = source.Member()
		if vigil == nil {
			var err error
			if vigil, err = sink.Attend(ctx, self); err != nil {
				vigil = nil
				continue
			}
		}
		look, err := vigil.Look(ctx, self)
		if err != nil {
			vigil.Close(ctx)
			vigil = nil
			continue
		}
		still := map[string]time.Duration{}
		for _, p := range look.Peers {
			before, twice := gone[p.Run]
			if p.Gone {
				still[p.Run] = p.Silent
			}
			suspected := p.Suspected == p.Member
			if !suspected && self.Member != "" && p.Patience > 0 && look.Silent*2 <= look.Members && (p.Silent > p.Patience || p.Gone && twice && p.Silent >= before) {
				suspected, _ = vigil.Suspect(ctx, self, p)
			}
			if suspected && p.Member != "" && !removed[p.Member] {
				removed[p.Member] = true
				go func() { _ = source.Remove(ctx, p.Member, "no sign of life") }()
			}
		}
		gone = still
	}
	if vigil != nil {
		vigil.Close(context.WithoutCancel(ctx))
	}
}
