package main

import (
	"context"
	"sync"
	"testing"
	"time"
)

// Whether somebody has taken over what a worker had is judged by what the others
// say that they hold. One that keeps a partition through a rebalance is told
// nothing of it by the client, and says it all the same.
func TestAWorkerOfTheUsualCodeSaysWhatItHoldsAfterEachRebalance(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	const session = 10 * time.Second
	brokers, stop, err := fakeBroker(session)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	k, err := connectKafka(ctx, brokers)
	if err != nil {
		t.Fatal(err)
	}
	defer k.client.Close()
	if err := k.createTopic(ctx, "reservations", 4); err != nil {
		t.Fatal(err)
	}

	var mu sync.Mutex
	holder, generation, changed := map[int32]string{}, map[int32]int64{}, make(chan struct{}, 1)
	join := func(name string) {
		client, err := joinAsUsual(config{Worker: name, Brokers: brokers, Topic: "reservations", Group: "g", Session: session},
			func(p int32, number int64) {
				mu.Lock()
				defer mu.Unlock()
				holder[p], generation[p] = name, number
				select {
				case changed <- struct{}{}:
				default:
				}
			})
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for ctx.Err() == nil {
				client.PollRecords(ctx, baselineBatch)
				client.AllowRebalance()
			}
		}()
		t.Cleanup(func() {
			cancel()
			<-ended
			client.CloseAllowingRebalance()
		})
	}
	await := func(what string, done func() bool) {
		t.Helper()
		for {
			mu.Lock()
			ok := done()
			mu.Unlock()
			if ok {
				return
			}
			select {
			case <-changed:
			case <-ctx.Done():
				t.Fatalf("not in time: %s; holders %v, generations %v", what, holder, generation)
			}
		}
	}
	held := func(name string) (n int) {
		for _, h := range holder {
			if h == name {
				n++
			}
		}
		return n
	}
	join("a")
	await("a has all partitions", func() bool { return held("a") == 4 })
	last := generation[0]
	join("b")
	await("both have said which half they have, since b joined", func() bool {
		for _, g := range generation {
			if g <= last {
				return false
			}
		}
		return held("a") == 2 && held("b") == 2
	})
}
