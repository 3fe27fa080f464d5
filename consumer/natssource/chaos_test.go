package natssource

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/servers/natstest"
	"github.com/epochfence/epochfence/internal/waits"
)

// Messages are published to all partitions, deleted one by one, and purged by
// partition, while connections break and readers start again from where they
// were. What was not deleted is read once, in order; where a position without a message
// lets the position pass, there is nothing.
func TestNothingIsSkippedWhileMessagesAreDeletedAndConnectionsBreak(t *testing.T) {
	t.Parallel()
	for seed := range uint64(3) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			playLogChaos(t, rand.New(rand.NewPCG(seed, 5)))
		})
	}
}

func playLogChaos(t *testing.T, random *rand.Rand) {
	server := natstest.Start(t)
	r := newLogRig(t, server.JetStream(t))
	l := newLink()
	r.log = r.open(l.connect(t, server))
	r.log.skipEvery = 20 * time.Millisecond
	r.log.budget = newBudget(300_000)

	var (
		mu      sync.Mutex
		sent    [3]map[uint64]string
		deleted = map[uint64]bool{}
		got     [3][]consumer.Message
	)
	for n := range sent {
		sent[n] = map[uint64]string{}
	}
	const messages = 3000
	over := make(chan struct{})
	var readers sync.WaitGroup
	for n := range int32(3) {
		slow := n == 2
		readers.Go(func() {
			from := r.fence(n, 1)
			for done := false; !done; {
				limit := 20 + rand.IntN(200)
				for b, err := range r.log.read(r.ctx, r.log.incarnation(), from.Partition, &from) {
					if err != nil {
						t.Errorf("partition %d at %d: %v", n, from.Next, err)
						return
					}
					mu.Lock()
					got[n] = append(got[n], b.Messages...)
					mu.Unlock()
					from.Next, from.Mark = b.Next, b.Mark
					if slow {
						waits.Sleep(r.ctx, time.Millisecond)
					}
					select {
					case <-over:
						mu.Lock()
						done = int64(from.Next) > messages
						mu.Unlock()
					default:
					}
					if limit--; limit < 0 || done {
						break
					}
				}
				if r.ctx.Err() != nil {
					t.Errorf("partition %d is at %d of %d when time is over", n, from.Next, messages)
					return
				}
			}
		})
	}
	s := r.stream()
	for i := range messages {
		n := random.IntN(3)
		if random.IntN(4) > 0 {
			n = random.IntN(2) // the last is rather quiet
		}
		v := strconv.Itoa(i) + string(make([]byte, random.IntN(2000)))
		seq := r.publish(n, v)
		mu.Lock()
		sent[n][seq] = v
		mu.Unlock()
		switch at := 2 + random.Uint64N(seq); random.IntN(200) {
		case 0, 1, 2, 3:
			mu.Lock()
			deleted[at] = true
			mu.Unlock()
			_ = s.DeleteMsg(r.ctx, at)
		case 4:
			// A purge by subject; the beginning stays, as its first message is
			// not deleted.
			mu.Lock()
			for q := range sent[n] {
				if q > 1 && q < at {
					deleted[q] = true
				}
			}
			mu.Unlock()
			if n != firstPartition(sent) {
				must(t, s.Purge(r.ctx, jetstream.WithPurgeSubject("log."+strconv.Itoa(n)), jetstream.WithPurgeSequence(at)))
			}
		case 5:
			l.cut()
		}
	}
	close(over)
	for n := range 3 { // whoever was at the end before that gets another batch
		r.publish(n, "the end")
	}
	readers.Wait()

	for n := range got {
		var next epoch.Offset
		var seen []uint64
		for _, m := range got[n] {
			if m.Offset > messages {
				break
			}
			if m.Offset < next {
				t.Errorf("partition %d: %d came after %d", n, m.Offset, next-1)
			}
			next = m.Offset + 1
			seen = append(seen, uint64(m.Offset))
			if want, ok := sent[n][uint64(m.Offset)]; !ok || want != string(m.Value) {
				t.Errorf("partition %d: %d is not what was sent there", n, m.Offset)
			}
		}
		for seq := range sent[n] {
			if _, ok := slices.BinarySearch(seen, seq); !ok && !deleted[seq] {
				t.Errorf("partition %d: %d was sent, not deleted and not read", n, seq)
			}
		}
	}
}

func firstPartition(sent [3]map[uint64]string) int {
	for n := range sent {
		if _, ok := sent[n][1]; ok {
			return n
		}
	}
	return -1
}
