package shardsink

import (
	"reflect"
	"sync"

	"github.com/epochfence/epochfence/epoch"
)

// This file joins the signals of the shards that a database was taken over. Each shard decides
// when to give one.

type replaced struct {
	mu      sync.Mutex
	channel chan struct{}
}

// ReplacedIn implements [epoch.Sharded].
func (s *Sink[TX]) ReplacedIn(shard int) <-chan struct{} { return epoch.Replaced(s.shards[shard]) }

// Replaced returns a channel that is closed when that of any shard is, or nil if no shard has one.
// From the first call on, a single goroutine waits for the shards' channels. consumer.Run uses
// [Sink.ReplacedIn] instead.
func (s *Sink[TX]) Replaced() <-chan struct{} {
	r := &s.replaced
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.channel != nil {
		return r.channel
	}
	var of []reflect.SelectCase
	for _, shard := range s.shards {
		if c := epoch.Replaced(shard); c != nil {
			of = append(of, reflect.SelectCase{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(c)})
		}
	}
	if len(of) == 0 {
		return nil
	}
	channel := make(chan struct{})
	r.channel = channel
	go func() {
		reflect.Select(of)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.channel = nil // later calls wait for the next replacement
		close(channel)
	}()
	return channel
}
