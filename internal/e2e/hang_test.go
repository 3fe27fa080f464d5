package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
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
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

// A handler hangs on one message: it has written, which takes SQLite's one write lock, and does
// not return, whatever its context says. `make long WHAT=hang` plays it on real brokers.

const hangs = 4 // partitions

// hangBroker is where messages come from.
type hangBroker struct {
	source  func(t *testing.T, name string) consumer.Source
	produce func(t *testing.T, partition int32, values ...string)
}

func TestAHandlerThatHangsOnKafkaInMemory(t *testing.T) {
	for _, k := range kafkaGroups {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			playHangs(t, func(t *testing.T) hangBroker {
				c := newCluster(t, kfake.SeedTopics(hangs, topic), kfake.GroupMinSessionTimeout(time.Second),
					kfake.BrokerConfigs(map[string]string{"group.consumer.heartbeat.interval.ms": "500", "group.consumer.session.timeout.ms": "6000"}))
				return onKafka(reach(c), k, topic)
			})
		})
	}
}

func TestRealAHandlerThatHangsOnKafka(t *testing.T) {
	for _, k := range kafkaGroups {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			addr := kafkatest.Shared(t)
			playHangs(t, func(t *testing.T) hangBroker {
				topic := fmt.Sprintf("hang-%d", time.Now().UnixNano())
				createTopic(t, []kgo.Opt{kgo.SeedBrokers(addr)}, topic, nil, hangs)
				return onKafka([]kgo.Opt{kgo.SeedBrokers(addr), kgo.RetryBackoffFn(soon)}, k, topic)
			})
		})
	}
}

// kafkaGroup is a kind of group.
type kafkaGroup struct {
	name   string
	opts   []kgo.Opt
	static bool // its members are
}

var kafkaGroups = []kafkaGroup{
	{name: "classic"},
	{name: "eager", opts: []kgo.Opt{kgo.Balancers(kgo.RangeBalancer())}},
	{name: "static", static: true},
	{name: "KIP-848", opts: []kgo.Opt{kgo.ServerSideBalancer()}},
	{name: "KIP-848, static", opts: []kgo.Opt{kgo.ServerSideBalancer()}, static: true},
}

func onKafka(client []kgo.Opt, k kafkaGroup, topic string) hangBroker {
	return hangBroker{
		source: func(t *testing.T, name string) consumer.Source {
			own := slices.Concat(client, k.opts, []kgo.Opt{
				kgo.ClientID(name), kgo.SessionTimeout(6 * time.Second), kgo.HeartbeatInterval(500 * time.Millisecond), kgo.RebalanceTimeout(10 * time.Second),
				kgo.MetadataMinAge(100 * time.Millisecond),
			})
			if k.static {
				own = append(own, kgo.InstanceID(name))
			}
			return newSource(t, func(o *kafkasource.Options) {
				o.Client, o.Topics, o.Group, o.MirrorInterval = own, []string{topic}, "group of "+topic, 100*time.Millisecond
			})
		},
		produce: func(t *testing.T, partition int32, values ...string) {
			var records []*kgo.Record
			for _, v := range values {
				records = append(records, &kgo.Record{Topic: topic, Partition: partition, Key: fmt.Append(nil, partition), Value: []byte(v)})
			}
			produce(t, client, records...)
		},
	}
}

func TestAHandlerThatHangsOnNATS(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	streams := 0
	playHangs(t, func(t *testing.T) hangBroker {
		streams++
		name := fmt.Sprint("orders", streams)
		_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: name, Subjects: []string{name + ".>"}})
		if err != nil {
			t.Fatal(err)
		}
		var filters []string
		for n := range hangs {
			filters = append(filters, fmt.Sprintf("%s.%d", name, n))
		}
		return hangBroker{
			source: func(t *testing.T, member string) consumer.Source {
				s, err := natssource.New(natssource.Options{
					JetStream: js, Group: "group-" + name, Name: member, LeaseTTL: 4 * time.Second, Logger: quiet(),
					Streams: []natssource.Stream{{Name: name, Filters: filters}},
				})
				if err != nil {
					t.Fatal(err)
				}
				return s
			},
			produce: func(t *testing.T, partition int32, values ...string) {
				for _, v := range values {
					if _, err := js.Publish(t.Context(), filters[partition], []byte(v)); err != nil {
						t.Fatal(err)
					}
				}
			},
		}
	})
}

// playHangs plays it with one process and with two, with one committer and with four.
func playHangs(t *testing.T, broker func(t *testing.T) hangBroker) {
	for _, committers := range []int{1, 4} {
		t.Run(fmt.Sprintf("one process, %d committers", committers), func(t *testing.T) { playHangAlone(t, broker(t), committers) })
		t.Run(fmt.Sprintf("two processes, %d committers", committers), func(t *testing.T) { playHangWithTwo(t, broker(t), committers) })
	}
}

// hangPlay is a database, what was sent, and a process whose handler hangs on the message 1/2.
type hangPlay struct {
	*testing.T
	broker     hangBroker
	committers int
	d          *onSQLite
	sent       [hangs]int
	hung       atomic.Int32  // calls that have hung
	at         atomic.Int64  // the offset of the message
	free       chan struct{} // closed to let them go
	late       chan error    // what their late writes came to
}

const (
	hangBatchTimeout = time.Second

	// A claim has hangBatchTimeout too. On a machine that has eight others to run, many time out before one is quick enough.
	drains = 3 * time.Minute
)

func newHangPlay(t *testing.T, b hangBroker, committers int) *hangPlay {
	d := newSQLite(t)
	d.db.SetMaxOpenConns(0) // or nobody could look while a handler has the connection
	return &hangPlay{T: t, broker: b, committers: committers, d: d, free: make(chan struct{}), late: make(chan error, 10)}
}

func (h *hangPlay) round() {
	h.Helper()
	for n := range int32(hangs) {
		var values []string
		for range 5 {
			values = append(values, fmt.Sprintf("%d/%d", n, h.sent[n]))
			h.sent[n]++
		}
		h.broker.produce(h.T, n, values...)
	}
}

func (h *hangPlay) start(name string, handle consumer.Handler[*sqlsink.Tx]) *running {
	h.Helper()
	return start(h.T, h.broker.source(h.T, name), h.d.sink, consumer.Each(handle), func(o *consumer.Options) {
		o.BatchTimeout, o.Committers = hangBatchTimeout, h.committers
	})
}

func (h *hangPlay) hangs(ctx context.Context, tx *sqlsink.Tx, m consumer.Message, e epoch.Epoch) error {
	if err := h.d.handle(ctx, tx, m, e); err != nil {
		return err
	}
	if string(m.Value) != "1/2" {
		return nil
	}
	h.at.Store(int64(m.Offset))
	if h.hung.Add(1) > 1 {
		return nil
	}
	<-h.free
	err := h.d.handle(context.Background(), tx, m, e)
	h.late <- err
	return err
}

// applied waits until each partition has applied everything that was sent, but those not wanted.
func (h *hangPlay) applied(within time.Duration, but ...int32) {
	h.Helper()
	limit := time.Now().Add(within)
	for {
		lacks := ""
		for n := range int32(hangs) {
			if got := h.effects(n); len(got) < h.sent[n] && !slices.Contains(but, n) {
				lacks += fmt.Sprintf("partition %d: %v; ", n, got)
			}
		}
		if lacks == "" {
			return
		}
		if time.Now().After(limit) {
			h.Fatalf("not applied within %v: %s", within, lacks)
		}
		<-time.After(20 * time.Millisecond)
	}
}

func (h *hangPlay) effects(n int32) (values []string) {
	for _, e := range h.d.applied() {
		if strings.HasPrefix(e.value, fmt.Sprint(n, "/")) {
			values = append(values, e.value)
		}
	}
	return values
}

func (h *hangPlay) wantExactlyOnce() {
	h.Helper()
	for n := range int32(hangs) {
		var want []string
		for i := range h.sent[n] {
			want = append(want, fmt.Sprintf("%d/%d", n, i))
		}
		if got := h.effects(n); !slices.Equal(got, want) {
			h.Errorf("partition %d: effects %v, want %v", n, got, want)
		}
	}
}

// release lets the handler continue, and wants its late write refused.
func (h *hangPlay) release() {
	h.Helper()
	close(h.free)
	select {
	case err := <-h.late:
		if !errors.Is(err, epoch.ErrAbandoned) {
			h.Errorf("the late write came to %v, want ErrAbandoned", err)
		}
	case <-time.After(patience):
		h.Fatal("the handler that hung did not continue")
	}
}

func wantHung(t *testing.T, r *running, within time.Duration) {
	t.Helper()
	r.cancel()
	select {
	case <-r.done:
	case <-time.After(within):
		t.Fatalf("Run has not returned %v after it was told to stop", within)
	}
	var hung *consumer.HungError
	if !errors.As(r.err, &hung) || len(hung.Calls) != 1 || hung.Calls[0].Partition.Number != 1 || !strings.Contains(r.err.Error(), "hang_test.go") {
		t.Errorf("Run returned %v, want what hangs and where", r.err)
	}
}

// With one process the other partitions continue beside the handler that hangs, and its own once it
// has returned. Told to stop, Run returns and says what hangs.
func playHangAlone(t *testing.T, b hangBroker, committers int) {
	h := newHangPlay(t, b, committers)
	h.round()
	a := h.start("a", h.hangs)
	a.until("the call was abandoned", func(es []consumer.Event) bool {
		return slices.ContainsFunc(es, func(e consumer.Event) bool { // and none that was only late, as the machine stood
			o, is := e.(consumer.Overdue)
			return is && o.Partition.Number == 1 && h.hung.Load() > 0 && int64(o.Offset) == h.at.Load()
		})
	})
	h.applied(drains, 1)
	h.round()
	h.applied(drains, 1)
	if n := len(h.effects(1)); n > 2 {
		t.Errorf("%d effects of the partition that hangs, want at most those before the message", n)
	}
	h.release()
	h.applied(drains)
	a.stop()
	h.wantExactlyOnce()
}

// With two processes the other one has the partition soon, while the handler hangs still.
func playHangWithTwo(t *testing.T, b hangBroker, committers int) {
	h := newHangPlay(t, b, committers)
	a := h.start("a", h.hangs)
	h.round()
	for began := time.Now(); h.hung.Load() == 0; <-time.After(10 * time.Millisecond) {
		if time.Since(began) > patience {
			t.Fatal("the handler was not called")
		}
	}
	began := time.Now()
	other := h.start("b", h.d.handle)
	h.applied(drains)
	t.Logf("the other process had applied everything %v after it was started", time.Since(began).Round(100*time.Millisecond))
	h.round()
	h.applied(drains)
	wantHung(t, a, patience)
	h.release()
	h.round()
	h.applied(drains)
	other.stop()
	h.wantExactlyOnce()
}
