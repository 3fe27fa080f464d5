package kafkasource

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
)

// membership is a way to be a member of a group.
type membership struct {
	name    string
	opts    []kgo.Opt
	retains bool // partitions that stay with a member are not touched in a rebalance
	nextGen bool
	static  bool
}

var protocols = []membership{
	{"eager", []kgo.Opt{kgo.Balancers(kgo.RangeBalancer())}, false, false, false},
	{"cooperative-sticky", []kgo.Opt{kgo.Balancers(kgo.CooperativeStickyBalancer())}, true, false, false},
	{"KIP-848", []kgo.Opt{kgo.Balancers(kgo.StickyBalancer()), kgo.ServerSideBalancer()}, true, true, false},
}

// underEach runs a test under each protocol, with dynamic and static members.
func underEach(t *testing.T, partitions int32, f func(r *rig, p membership, member func(n int) func(*Options))) {
	for _, p := range protocols {
		for _, static := range []bool{false, true} {
			p, name := p, p.name
			if p.static = static; static {
				name += " static"
			}
			t.Run(name, func(t *testing.T) {
				virtually(t, partitions, func(r *rig) {
					f(r, p, func(n int) func(*Options) {
						opts := slices.Clone(p.opts)
						if static {
							opts = append(opts, kgo.InstanceID(fmt.Sprint("instance-", n)))
						}
						return with(append(opts, kgo.ClientID(fmt.Sprint("client-", n)), kgo.MetadataMaxAge(10*time.Second))...)
					})
				})
			})
		}
	}
}

func TestASecondMemberTakesOverDrainedPartitionsAndEachMessageIsAppliedOnce(t *testing.T) {
	underEach(t, 4, func(r *rig, m membership, member func(int) func(*Options)) {
		for p := range int32(4) {
			r.produce(p, 50)
		}
		all := func(n int) func() bool {
			return func() bool {
				for p := range int32(4) {
					if !r.sink.exactly(part(p), n) {
						return false
					}
				}
				return true
			}
		}
		first := r.run(r.source(member(1)), (&worker{sink: r.sink}).own)
		r.until("the first has applied all", all(50))
		second := r.run(r.source(member(2)), (&worker{sink: r.sink}).own)
		r.until("both own partitions", func() bool { return len(r.sink.owners()) == 2 })
		for p := range int32(4) {
			r.produce(p, 50)
		}
		r.until("both together have applied all", all(100))
		if err := first.stop(); err != nil {
			r.Errorf("the first returned %v", err)
		}
		for p := range int32(4) {
			r.produce(p, 50)
		}
		if m.static { // its partitions wait for it
			r.run(r.source(member(1)), (&worker{sink: r.sink}).own)
		}
		r.until("the rest is applied after the first has left", all(150))
		if err := second.stop(); err != nil {
			r.Errorf("the second returned %v", err)
		}
		for p := range int32(4) {
			for _, err := range r.sink.errors(part(p)) {
				if !errors.Is(err, consumer.ErrLost) {
					r.Logf("partition %d: on the way: %v", p, err)
				}
			}
		}
	})
}

func TestALeaseCarriesTheGenerationTheCoordinatorAcceptedAndNamesItsOrigin(t *testing.T) {
	underEach(t, 1, func(r *rig, p membership, member func(int) func(*Options)) {
		run := r.run(r.source(member(1)), (&worker{sink: r.sink}).own)
		r.until("claimed", func() bool { return len(r.sink.claims[part(0)]) > 0 })
		info := r.cluster.GroupInfo(testGroup)
		got := r.sink.fence(part(0))
		if got.Generation != int64(info.Epoch) || got.Generation <= 0 {
			r.Errorf("the lease carries %d, the group is at %d", got.Generation, info.Epoch)
		}
		if got.Epoch != epoch.Epoch(got.Generation) {
			r.Errorf("on an ordinary day the epoch %d is the generation %d", got.Epoch, got.Generation)
		}
		id := r.cluster.TopicInfo(testTopic).TopicID
		s := &Source{cluster: "one", set: settings{Options: Options{Group: testGroup}}}
		if want := s.origin(topicPartition{testTopic, 0}, id); got.Origin != want {
			r.Errorf("origin %+v, want %+v", got.Origin, want)
		}
		if err := run.stop(); err != nil {
			r.Error(err)
		}
	})
}

func TestAPartitionRetainedThroughARebalanceKeepsItsTenure(t *testing.T) {
	underEach(t, 2, func(r *rig, p membership, member func(int) func(*Options)) {
		if !p.retains {
			return
		}
		r.run(r.source(member(1)), (&worker{sink: r.sink}).own)
		r.until("the first has claimed both", func() bool { return len(r.sink.claims) == 2 })
		r.run(r.source(member(2)), (&worker{sink: r.sink}).own)
		r.until("both own one", func() bool { return len(r.sink.owners()) == 2 })
		claims, ended := 0, 0
		for n := range int32(2) {
			c, e := r.sink.count(part(n))
			claims, ended = claims+c, ended+e
		}
		if claims != 3 || ended != 1 {
			r.Errorf("%d claims and %d ended tenures, want 3 and 1: the retained partition was touched", claims, ended)
		}
	})
}

func TestEagerRebalancesEndEveryTenureByADrain(t *testing.T) {
	virtually(t, 2, func(r *rig) {
		opts := with(kgo.Balancers(kgo.RangeBalancer()))
		var lost []error
		w := &worker{sink: r.sink}
		r.run(r.source(opts), func(ctx context.Context, t consumer.Tenure) {
			w.own(ctx, t)
			w.do(func() { lost = append(lost, context.Cause(ctx)) })
		})
		r.until("the first has claimed both", func() bool { return len(r.sink.claims) == 2 })
		r.run(r.source(opts), (&worker{sink: r.sink}).own)
		r.until("both tenures of the first have ended", func() bool { return len(lost) == 2 })
		if lost[0] != nil || lost[1] != nil {
			r.Errorf("lost instead of drained: %v", lost)
		}
	})
}
