package browser

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/memsource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/operate/stats"
	"github.com/epochfence/epochfence/operate/statusz"
	"github.com/epochfence/epochfence/sinks/memsink"
)

// scene is a group in memory, and the status page of its second process.
type scene struct {
	broker *memsource.Broker
	log    *memsource.Log
	group  *memsource.Group
	sink   *memsink.Sink
	stats  *stats.Stats
	first  *memsource.Member // the process that takeover freezes
	page   *httptest.Server

	ctx  context.Context
	stop context.CancelFunc
	done sync.WaitGroup
}

type setting struct {
	topic, group  string
	owners        [2]string
	partitions    int32
	fails, poison func(consumer.Message) error // errors that dead-letter a message, and that halt its partition; may be nil
	mayAct        func(*http.Request) (string, bool)
	outbox        bool // an entry waits
	title         string
}

// term is the term of the leases: a frozen process keeps its partitions that long.
const term = time.Second

func open(t *testing.T, s setting) *scene {
	t.Helper()
	if s.topic == "" {
		s.topic, s.group, s.owners = "orders", "billing", [2]string{"worker-1", "worker-2"}
	}
	broker := memsource.NewBroker()
	c := &scene{broker: broker, log: broker.Create(s.topic, s.partitions), sink: memsink.New(), stats: stats.New()}
	c.group = broker.Group(s.group, s.topic)
	c.group.SetTerm(term)
	c.ctx, c.stop = context.WithCancel(t.Context())
	op := c.sink.Operator()
	if s.outbox {
		op = waiting{op}
	}
	page, err := statusz.New(statusz.Options{
		Title: s.title, Stats: c.stats, Operator: op, MayAct: s.mayAct,
		Logs: c.logs, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/status/", http.StripPrefix("/status", page))
	c.page = httptest.NewServer(mux)
	for i, name := range s.owners {
		member := c.group.Member(name)
		o := consumer.Options{MaxAttempts: 1, Logger: slog.New(slog.DiscardHandler)}
		if i == 0 {
			c.first = member
		} else {
			o.Observe = c.stats.Observe
		}
		c.done.Go(func() { _ = consumer.Run(c.ctx, member, c.sink.Open(), c.handlers(s), o) })
	}
	t.Cleanup(c.close)
	c.await(t, "each partition has an owner", func() bool {
		owned := 0
		for _, f := range c.sink.Fences() {
			if f.Epoch > 0 {
				owned++
			}
		}
		return owned >= int(s.partitions)
	})
	return c
}

func (c *scene) handlers(s setting) consumer.Handlers[*memsink.Tx] {
	h := consumer.Each(func(_ context.Context, tx *memsink.Tx, m consumer.Message, _ epoch.Epoch) error {
		for _, why := range []func(consumer.Message) error{s.fails, s.poison} {
			if why != nil {
				if err := why(m); err != nil {
					return consumer.Permanent(err)
				}
			}
		}
		tx.Append(m.Partition.Topic, string(m.Value))
		return nil
	})
	return h.OnFailure(func(ctx context.Context, tx *memsink.Tx, m consumer.Message, e epoch.Epoch, cause error) error {
		if s.poison != nil {
			if err := s.poison(m); err != nil {
				return errors.New("the table of dead letters has no room for it")
			}
		}
		return c.sink.DeadLetter(ctx, tx, m, e, cause)
	})
}

func (c *scene) logs(_ context.Context, fences []epoch.Fence) (map[epoch.Partition]operate.Extent, error) {
	logs := map[epoch.Partition]operate.Extent{}
	for _, f := range fences {
		begin, end := c.log.Bounds(f.Partition.Number)
		logs[f.Partition] = operate.Extent{Begin: begin, End: end, Lag: max(int64(end-f.Next), 0)}
	}
	return logs, nil
}

func (c *scene) url() string { return c.page.URL + "/status/" }

func (c *scene) await(t *testing.T, what string, cond func() bool) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-deadline:
			t.Fatal("not within 20 s: ", what)
		case <-tick.C:
		}
	}
}

// takeover freezes the first process, and waits until the other process has all partitions.
func (c *scene) takeover(t *testing.T) {
	t.Helper()
	c.first.Freeze()
	c.await(t, "the other process has all partitions", func() bool {
		for _, f := range c.sink.Fences() {
			if f.Epoch > 0 && f.Owner == c.first.Name() {
				return false
			}
		}
		return true
	})
}

func (c *scene) close() {
	c.page.CloseClientConnections()
	c.page.Close()
	c.first.Thaw()
	c.stop()
	c.done.Wait()
}
