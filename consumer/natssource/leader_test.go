package natssource

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/jsapi"
	"github.com/epochfence/epochfence/internal/servers/natstest"
)

// answering returns a JetStream whose answers go through change, with what was
// asked for: "STREAM.INFO.log", or "CONSUMER.CREATE.KV_leases…" for the watch of a
// bucket. What it returns nil for is as the server has it.
func answering(t testing.TB, s *natstest.Server, change func(asked string, answer map[string]any) map[string]any) jetstream.JetStream {
	const prefix = "front.API"
	nc := s.Connect(t)
	must(t, second(nc.Subscribe(prefix+".>", func(m *nats.Msg) {
		asked := strings.TrimPrefix(m.Subject, prefix+".")
		subject := "$JS.API." + asked
		if strings.HasPrefix(asked, "$KV.") { // a key, to which nats.go gives the prefix as well
			subject = asked
		}
		if !strings.Contains(asked, ".INFO.") && !strings.HasPrefix(asked, "CONSUMER.CREATE.KV_") && !strings.HasPrefix(asked, "CONSUMER.CREATE.log.epochfence-") && !strings.HasPrefix(asked, "STREAM.MSG.GET.KV_") {
			_ = nc.PublishMsg(&nats.Msg{Subject: subject, Reply: m.Reply, Header: m.Header, Data: m.Data})
			return
		}
		data := []byte(nil)
		if a, err := nc.Request(subject, m.Data, 5*time.Second); err == nil {
			data = a.Data
		}
		var answer map[string]any
		if json.Unmarshal(data, &answer) == nil {
			if other := change(asked, answer); other != nil {
				data, _ = json.Marshal(other)
			}
		}
		_ = m.Respond(data)
	})))
	must(t, nc.FlushTimeout(10*time.Second))
	js, err := jetstream.NewWithAPIPrefix(s.Connect(t), prefix)
	must(t, err)
	return js
}

// TestAStartWaitsForAnElectionThatIsUnderWay, whichever of its requests meets with it:
// the watch of a bucket is made by nats.go's older package, whose errors are its own.
func TestAStartWaitsForAnElectionThatIsUnderWay(t *testing.T) {
	t.Parallel()
	r := newGroupRig(t, 2, 5*time.Second)
	var refused atomic.Int32
	js := answering(t, r.server, func(asked string, _ map[string]any) map[string]any {
		if !strings.HasPrefix(asked, "CONSUMER.CREATE.KV_leases") || refused.Add(1) > 3 {
			return nil
		}
		return map[string]any{
			"type":  "io.nats.jetstream.api.v1.consumer_create_response",
			"error": map[string]any{"code": 503, "err_code": 10008, "description": "JetStream system temporarily unavailable"},
		}
	})
	if err := r.joins(js); err != nil || refused.Load() <= 3 {
		t.Errorf("Run: %v, after %d refusals", err, min(refused.Load(), 3))
	}
}

// A watch of the bucket is placed on any replica, and after an election one may lag for longer than a watch waits.
func TestAStartWaitsForAReplicaThatLags(t *testing.T) {
	t.Parallel()
	r := newGroupRig(t, 2, 5*time.Second)
	var watches atomic.Int32
	js := answering(t, r.server, func(asked string, _ map[string]any) map[string]any {
		switch {
		case strings.HasPrefix(asked, "CONSUMER.CREATE.KV_leases"):
			watches.Add(1)
		case strings.HasPrefix(asked, "STREAM.MSG.GET.KV_leases") && watches.Load() < 2:
			return map[string]any{"message": map[string]any{"subject": "$KV.leases.other", "seq": 1000}}
		}
		return nil
	})
	if err := r.joins(js); err != nil || watches.Load() < 2 {
		t.Errorf("Run: %v, after %d watches", err, watches.Load())
	}
}

// joins runs a member until it has joined.
func (r *groupRig) joins(js jetstream.JetStream) error {
	o := r.options()
	o.JetStream = js
	s, err := New(o)
	must(r.t, err)
	ctx, stop := context.WithCancel(inTime(r.t))
	return s.Run(ctx, func(err error) {
		if err == nil {
			stop()
		}
	}, func(context.Context, consumer.Tenure) {})
}

// What servers say of a stream that they do not lead.
var noLeaders = map[string]map[string]any{
	"no leader":                     {"name": "c", "raft_group": "S-R3F", "replicas": []any{map[string]any{"name": "b"}, map[string]any{"name": "c"}}},
	"a leader among its replicas":   {"name": "c", "raft_group": "S-R3F", "leader": "b", "replicas": []any{map[string]any{"name": "b"}, map[string]any{"name": "c"}}},
	"itself, and has joined no one": {"name": "c", "leader": "a"},
}

// A server that has lost its disk.
func TestWhatServersSayThatDoNotLeadDecidesNothing(t *testing.T) {
	t.Parallel()
	for name, cluster := range noLeaders {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := natstest.Start(t)
			var led atomic.Bool
			led.Store(true)
			asked := make(chan struct{}, 1000)
			r := newLogRig(t, s.JetStream(t))
			r.publish(0, "a", "b", "c")
			r.log = r.open(answering(t, s, func(what string, answer map[string]any) map[string]any {
				if led.Load() || what != "STREAM.INFO.log" {
					return nil
				}
				asked <- struct{}{}
				answer["cluster"], answer["state"] = cluster, map[string]any{}
				answer["config"].(map[string]any)["num_replicas"] = 3
				return answer
			}))
			led.Store(false)
			for _, policy := range []consumer.StartPolicy{consumer.StartEarliest, consumer.StartLatest} {
				starts, err := r.log.starts(r.ctx, r.log.incarnation(), r.origin, policy)
				if !errors.Is(err, jsapi.ErrNoLeader) || !jsapi.Passing(err) {
					t.Errorf("%v: starts at %v, %v", policy, starts, err)
				}
			}
			g := r.read(r.fence(0, 4))
			for range 5 {
				<-asked
			}
			led.Store(true)
			r.publish(0, "d")
			g.values("d")
		})
	}
}

// The server places a consumer that counts on any replica.
func TestAReplicaThatLagsDoesNotSayWhatTheLagIs(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		leader, counter string
		replica         map[string]any
		counts          bool
	}{
		"the leader":           {"a", "a", map[string]any{"name": "b", "lag": 7}, true},
		"a replica":            {"a", "b", map[string]any{"name": "b", "current": true}, true},
		"one that lags":        {"a", "b", map[string]any{"name": "b", "current": true, "lag": 7}, false},
		"one that catches up":  {"a", "b", map[string]any{"name": "b", "current": false}, false},
		"one that is unknown":  {"a", "c", map[string]any{"name": "b", "current": true}, false},
		"one that was offline": {"a", "b", map[string]any{"name": "b", "current": true, "offline": true}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := natstest.Start(t)
			r := newLogRig(t, s.JetStream(t))
			r.publish(0, "a", "b", "c")
			r.log = r.open(answering(t, s, func(what string, answer map[string]any) map[string]any {
				switch {
				case what == "STREAM.INFO.log":
					answer["cluster"] = map[string]any{"name": "c", "raft_group": "S-R3F", "leader": c.leader, "replicas": []any{c.replica}}
				case strings.HasPrefix(what, "CONSUMER.CREATE.log."):
					answer["cluster"] = map[string]any{"name": "c", "leader": c.counter}
					if !c.counts {
						answer["num_pending"] = 0
					}
				}
				return answer
			}))
			n, err := r.log.behind(r.ctx, r.log.incarnation(), r.partition(0), 1)
			if c.counts && (n != 3 || err != nil) || !c.counts && err == nil {
				t.Errorf("the lag is %d, %v", n, err)
			}
		})
	}
}

func TestThePositionOfAConsumerIsItsLeadersToSay(t *testing.T) {
	t.Parallel()
	said := func(t *testing.T, change func(what string, answer map[string]any) map[string]any) (epoch.Offset, error) {
		s := natstest.Start(t)
		js := s.JetStream(t)
		r := newLogRig(t, js)
		r.publish(0, "a", "b", "c")
		c, err := r.stream().CreateConsumer(r.ctx, jetstream.ConsumerConfig{Durable: rigGroup, AckPolicy: jetstream.AckExplicitPolicy})
		must(t, err)
		m, err := c.Next()
		must(t, err)
		must(t, m.DoubleAck(r.ctx))
		r.log = r.open(answering(t, s, change))
		info, err := r.log.look(r.ctx)
		must(t, err)
		return r.log.acked(r.ctx, incarnationOf(info), 0)
	}
	own := map[string]any{"name": "c", "leader": "a", "raft_group": "S-R3F", "replicas": []any{map[string]any{"name": "b"}}}
	for name, cluster := range noLeaders {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			at, err := said(t, func(what string, answer map[string]any) map[string]any {
				answer["cluster"] = cluster
				if what == "STREAM.INFO.log" {
					answer["cluster"] = own
				}
				answer["config"].(map[string]any)["num_replicas"] = 3
				return answer
			})
			if !errors.Is(err, jsapi.ErrNoLeader) {
				t.Errorf("%d, %v", at, err)
			}
		})
	}
	t.Run("a server that knows of it, and has none", func(t *testing.T) {
		t.Parallel()
		at, err := said(t, func(what string, answer map[string]any) map[string]any {
			if what == "STREAM.INFO.log" {
				answer["cluster"] = own
			}
			return answer
		})
		if !errors.Is(err, jsapi.ErrNoLeader) {
			t.Errorf("%d, %v", at, err)
		}
	})
	t.Run("a server alone", func(t *testing.T) {
		t.Parallel()
		at, err := said(t, func(string, map[string]any) map[string]any { return nil })
		if err != nil || at != 2 {
			t.Errorf("%d, %v; want 2", at, err)
		}
	})
}

// The server that led the stream comes back without what it had, before the
// others have elected another.
func TestClusterWhoseLeaderLosesItsDiskHaltsNoPartition(t *testing.T) {
	t.Parallel()
	long(t)
	c := natstest.StartCluster(t, 3)
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	js := c.JetStream(t)
	lost := 0
	for round := 0; lost < 3; round++ {
		r := &logRig{t: t, ctx: ctx, js: js, Stream: Stream{Name: fmt.Sprint("log", round)}}
		insist(t, func(ctx context.Context) error {
			return second(js.CreateStream(ctx, jetstream.StreamConfig{Name: r.Name, Subjects: []string{r.Name}, Replicas: 3}))
		})
		n := -1
		poll(t, "the stream has a leader", func() bool { n = c.Leader(r.Name); return n >= 0 })
		if c.Nodes()[n].Embedded().JetStreamIsLeader() {
			continue // the others would have to elect one of the cluster first
		}
		lost++
		var last uint64
		for range 100 {
			insist(t, func(ctx context.Context) error {
				ack, err := js.Publish(ctx, r.Name, nil)
				if err == nil {
					last = ack.Sequence
				}
				return err
			})
		}
		r.log = r.open(js)
		must(t, c.Stop(n))
		must(t, os.RemoveAll(c.Nodes()[n].Dir()))
		must(t, c.Start(n))
		r.look(last, 15*time.Second)
		must(t, c.Await(ctx))
		poll(t, "the node has what it lost", func() bool {
			info, err := r.log.look(ctx)
			return err == nil && !slices.ContainsFunc(info.Cluster.Replicas, func(p *jetstream.PeerInfo) bool { return !p.Current })
		})
	}
}

// look asks again and again, for as long as it is told, and wants no answer that would halt a
// partition at the end of the stream.
func (r *logRig) look(last uint64, long time.Duration) {
	ctx, cancel := context.WithTimeout(r.ctx, long)
	defer cancel()
	var asked, refused atomic.Int32
	var done sync.WaitGroup
	defer done.Wait()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for ctx.Err() == nil {
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
		done.Go(func() {
			once, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			info, err := r.log.request(once)
			asked.Add(1)
			if errors.Is(err, jsapi.ErrNoLeader) {
				refused.Add(1)
			}
			if err != nil {
				return
			}
			rd := &reader{l: r.log, in: r.log.incarnation(), p: r.partition(0), at: last + 1, print: -1}
			if err := errors.Join(rd.sameIncarnation(info), rd.fits(once, info)); err != nil {
				r.t.Errorf("%v, because of %+v of %+v", err, info.State, info.Cluster)
			}
		})
	}
	done.Wait()
	r.t.Logf("of %d requests %d were answered by no leader", asked.Load(), refused.Load())
}
