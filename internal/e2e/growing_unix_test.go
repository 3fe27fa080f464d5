package e2e_test

import (
	"context"
	"flag"
	"os"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/kafkasource"
	"github.com/epochfence/epochfence/consumer/natssource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/servers/kafkatest"
	"github.com/epochfence/epochfence/internal/servers/natstest"
	"github.com/epochfence/epochfence/sinks/memsink"
)

var growingMost = flag.Duration("most", 2*time.Minute, "within which one member of 1,000 partitions becomes four; make long WHAT=balance has 5 s, which takes an idle machine")

// deployment is a group whose members share one sink.
type deployment struct {
	t       *testing.T
	open    func() consumer.Source
	sink    *memsink.Sink
	running sync.WaitGroup
	ctx     context.Context
	stop    func()

	mu      sync.Mutex
	holders map[epoch.Partition]int
	claims  int
	changed chan struct{}
}

func deploy(t *testing.T, open func() consumer.Source) *deployment {
	d := &deployment{t: t, open: open, sink: memsink.New(), holders: map[epoch.Partition]int{}, changed: make(chan struct{}, 1)}
	ctx, stop := context.WithCancel(context.Background())
	d.ctx = ctx
	d.stop = func() { stop(); d.running.Wait() }
	return d
}

func (d *deployment) start(member int) {
	source := d.open()
	d.running.Go(func() {
		observe := func(e consumer.Event) {
			if e, ok := e.(consumer.Claimed); ok {
				d.mu.Lock()
				d.holders[e.Fence.Partition] = member
				d.claims++
				d.mu.Unlock()
				select {
				case d.changed <- struct{}{}:
				default:
				}
			}
		}
		handle := func(context.Context, *memsink.Tx, []consumer.Message, epoch.Epoch) error { return nil }
		// What the members cost that see each other grows with time, and not with moves.
		if err := consumer.Run(d.ctx, source, d.sink, consumer.Batches(handle), consumer.Options{Logger: quiet(), Observe: observe, Patience: -1}); err != nil {
			d.t.Errorf("Run: %v", err)
		}
	})
}

// shared waits until the members have claimed equal shares, and returns how long that took.
func (d *deployment) shared(members, partitions int) (took time.Duration, claims int) {
	d.t.Helper()
	began, limit := time.Now(), time.After(2*time.Minute)
	for {
		d.mu.Lock()
		loads := make([]int, members)
		for _, m := range d.holders {
			loads[m]++
		}
		equal := len(d.holders) == partitions
		for _, n := range loads {
			equal = equal && n >= partitions/members
		}
		claims = d.claims
		d.mu.Unlock()
		if equal {
			return time.Since(began), claims
		}
		select {
		case <-d.changed:
		case <-limit:
			d.t.Fatalf("the members have claimed %v", loads)
		}
	}
}

// cost is that of one move.
type cost struct {
	requests  float64
	processor time.Duration // of this process, with an embedded server
}

func processor() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// growth measures how one member becomes four. sent counts the requests of the group.
func growth(t *testing.T, partitions int, sent func() int64, open func() consumer.Source) (c cost) {
	t.Helper()
	d := deploy(t, open)
	defer d.stop() // before the connections are closed
	d.start(0)
	first, _ := d.shared(1, partitions)
	before, spent := sent(), processor()
	for m := range 3 {
		d.start(m + 1)
	}
	took, claims := d.shared(4, partitions)
	moves := claims - partitions
	spent = processor() - spent
	c = cost{float64(sent()-before) / float64(moves), spent / time.Duration(moves)}
	t.Logf("%d partitions: claimed by one member after %v; by four after %v and %v of processor time, in %d moves, each of %.1f requests and %v",
		partitions, first.Round(time.Millisecond), took.Round(time.Millisecond), spent.Round(time.Millisecond), moves, c.requests, c.processor.Round(10*time.Microsecond))
	if took > *growingMost {
		t.Errorf("four members have their shares after %v, want %v", took, *growingMost)
	}
	return c
}

// TestOneMemberBecomesFour measures how long that takes. On NATS, where members share the partitions
// themselves, each move costs about what it costs in a smaller group. With EPOCHFENCE_LONG there are
// 1,000 partitions, and all protocols of Kafka.
func TestOneMemberBecomesFour(t *testing.T) {
	long := os.Getenv("EPOCHFENCE_LONG") != ""
	few, many := 64, 250
	if long {
		few, many = 256, 1000
	}
	t.Run("NATS", func(t *testing.T) {
		var costs []cost
		for _, partitions := range []int{few, many} {
			t.Run(strconv.Itoa(partitions), func(t *testing.T) {
				server := natstest.Start(t)
				js := server.JetStream(t)
				stream := natssource.Stream{Name: topic}
				for i := range partitions {
					stream.Filters = append(stream.Filters, topic+"."+strconv.Itoa(i))
				}
				if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: topic, Subjects: []string{topic + ".*"}}); err != nil {
					t.Fatal(err)
				}
				sent := func() int64 {
					v, err := server.Embedded().Varz(nil)
					if err != nil {
						t.Fatal(err)
					}
					return v.InMsgs
				}
				costs = append(costs, growth(t, partitions, sent, func() consumer.Source {
					s, err := natssource.New(natssource.Options{Group: group, JetStream: server.JetStream(t), Streams: []natssource.Stream{stream}, Logger: quiet()})
					if err != nil {
						t.Fatal(err)
					}
					return s
				}))
			})
		}
		if a, b := costs[0], costs[1]; b.requests > 1.3*a.requests || b.processor > 5*a.processor/2 {
			t.Errorf("a move takes %+v with %d partitions, and %+v with %d", a, few, b, many)
		}
	})
	for name, opts := range map[string][]kgo.Opt{
		"cooperative": nil, "eager": {kgo.Balancers(kgo.RangeBalancer())}, "KIP-848": {kgo.ServerSideBalancer()},
	} {
		t.Run("Kafka "+name, func(t *testing.T) {
			if name != "cooperative" && !long {
				t.Skip("set EPOCHFENCE_LONG=1")
			}
			// Under KIP-848 a member hears of its new assignment at its next heartbeat, by default every 5 s.
			often := kfake.BrokerConfigs(map[string]string{"group.consumer.heartbeat.interval.ms": "2000"})
			cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(int32(many), topic), often)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(cluster.Close)
			growOnKafka(t, group, many, append(opts, kgo.SeedBrokers(cluster.ListenAddrs()...)))
		})
	}
}

func uncounted() int64 { return 0 }

func growOnKafka(t *testing.T, group string, partitions int, client []kgo.Opt) {
	t.Helper()
	growth(t, partitions, uncounted, func() consumer.Source {
		return newSource(t, func(o *kafkasource.Options) {
			o.Client, o.Group, o.Topics, o.Logger = client, group, []string{topic}, quiet()
		})
	})
}

func TestRealOneMemberBecomesFour(t *testing.T) {
	b := kafkatest.Start(t, kafkatest.Config{})
	createTopic(t, []kgo.Opt{kgo.SeedBrokers(b.Addr)}, topic, nil, 1000)
	for name, opts := range map[string][]kgo.Opt{"cooperative": nil, "KIP-848": {kgo.ServerSideBalancer()}} {
		t.Run(name, func(t *testing.T) { growOnKafka(t, group+" "+name, 1000, append(opts, kgo.SeedBrokers(b.Addr))) })
	}
}
