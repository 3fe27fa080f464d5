package kafkasource

import (
	"bytes"
	"context"
	"log/slog"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"
)

func TestOptionsThatAreWrongAreRefusedWithTheReason(t *testing.T) {
	for name, c := range map[string]struct {
		o   Options
		say string
	}{
		"no group":             {Options{Topics: []string{"t"}}, "Group is empty"},
		"group not UTF-8":      {Options{Group: "\xff", Topics: []string{"t"}}, "UTF-8"},
		"group with NUL":       {Options{Group: "a\x00b", Topics: []string{"t"}}, "NUL"},
		"group too long":       {Options{Group: strings.Repeat("g", 1<<15), Topics: []string{"t"}}, "up to 32767"},
		"no topics":            {Options{Group: "g"}, "Topics is empty"},
		"an empty topic":       {Options{Group: "g", Topics: []string{""}}, "1 to 249"},
		"a topic with quotes":  {Options{Group: "g", Topics: []string{`or"ders`}}, "does not allow"},
		"a topic of 250":       {Options{Group: "g", Topics: []string{strings.Repeat("t", 250)}}, "1 to 249"},
		"a topic twice":        {Options{Group: "g", Topics: []string{"t", "t"}}, "twice"},
		"a pattern":            {Options{Group: "g", Topics: []string{"^t.*"}}, "name the topics"},
		"negative buffer":      {Options{BufferBytes: -1}, "BufferBytes is -1"},
		"tiny buffer":          {Options{BufferBytes: 1 << 10}, "BufferBytes"},
		"huge buffer":          {Options{BufferBytes: math.MaxInt}, "BufferBytes"},
		"negative start":       {Options{StartTimeout: -1}, "StartTimeout"},
		"huge drain":           {Options{DrainTimeout: 1000 * time.Hour}, "DrainTimeout"},
		"long drain":           {Options{DrainTimeout: 55 * time.Second}, "rebalance timeout of 1m0s"},
		"negative mirror":      {Options{MirrorInterval: -time.Second}, "MirrorInterval"},
		"slow heartbeat":       {Options{Client: []kgo.Opt{kgo.HeartbeatInterval(20 * time.Second)}}, "kgo.SessionTimeout"},
		"short rebalance":      {Options{Client: []kgo.Opt{kgo.RebalanceTimeout(5 * time.Second)}}, "third of the rebalance timeout"},
		"no address":           {Options{Client: []kgo.Opt{kgo.SeedBrokers("")}}, `address "" of kgo.SeedBrokers`},
		"a port alone":         {Options{Client: []kgo.Opt{kgo.SeedBrokers("a:9092", ":9092")}}, `address ":9092" of kgo.SeedBrokers`},
		"a user":               {Options{Client: []kgo.Opt{kgo.SeedBrokers("sasl://bob:s3cret@a:9092")}}, "kgo.SeedBrokers has a user; want host:port"},
		"a second group":       {Options{Client: []kgo.Opt{kgo.ConsumerGroup("x")}}, "kgo.ConsumerGroup"},
		"topics of the client": {Options{Client: []kgo.Opt{kgo.ConsumeTopics("x")}}, "kgo.ConsumeTopics"},
		"regex":                {Options{Client: []kgo.Opt{kgo.ConsumeTopics("x"), kgo.ConsumeRegex()}}, "patterns"},
		"partitions":           {Options{Client: []kgo.Opt{kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{"x": {0: kgo.NewOffset()}})}}, "kgo.ConsumePartitions"},
		"autocommit":           {Options{Client: []kgo.Opt{kgo.GreedyAutoCommit()}}, "autocommit"},
		"marks":                {Options{Client: []kgo.Opt{kgo.AutoCommitMarks()}}, "autocommit"},
		"callbacks":            {Options{Client: []kgo.Opt{kgo.OnPartitionsLost(func(context.Context, *kgo.Client, map[string][]int32) {})}}, "callbacks"},
		"adjust": {Options{Client: []kgo.Opt{kgo.AdjustFetchOffsetsFn(func(_ context.Context, m map[string]map[int32]kgo.Offset) (map[string]map[int32]kgo.Offset, error) {
			return m, nil
		})}}, "kgo.AdjustFetchOffsetsFn"},
		"start offset":    {Options{Client: []kgo.Opt{kgo.ConsumeStartOffset(kgo.NewOffset().AtEnd())}}, "kgo.ConsumeStartOffset"},
		"reset offset":    {Options{Client: []kgo.Opt{kgo.ConsumeResetOffset(kgo.NewOffset().AtEnd())}}, "kgo.ConsumeResetOffset"},
		"fetch bytes":     {Options{Client: []kgo.Opt{kgo.FetchMaxBytes(1 << 20)}}, "kgo.FetchMaxBytes"},
		"partition bytes": {Options{ReadClient: []kgo.Opt{kgo.FetchMaxPartitionBytes(2 << 20)}}, "kgo.FetchMaxPartitionBytes"},
		"block":           {Options{GroupClient: []kgo.Opt{kgo.BlockRebalanceOnPoll()}}, "kgo.BlockRebalanceOnPoll"},
		"transactions":    {Options{Client: []kgo.Opt{kgo.TransactionalID("x")}}, "kgo.TransactionalID"},
		"share group":     {Options{Client: []kgo.Opt{kgo.ShareGroup("x")}}, "kgo.ShareGroup"},
		"old versions":    {Options{Client: []kgo.Opt{kgo.MaxVersions(kversion.V2_8_0())}}, "Kafka 3.1"},
		"empty instance":  {Options{Client: []kgo.Opt{kgo.InstanceID("")}}, "InstanceID"},
		"no such option":  {Options{Client: []kgo.Opt{kgo.SeedBrokers()}}, "no seed brokers"},
	} {
		t.Run(name, func(t *testing.T) {
			o := c.o
			if o.Group == "" && o.Topics == nil {
				o.Group, o.Topics = "g", []string{"t"}
			}
			_, err := New(o)
			if err == nil || !strings.Contains(err.Error(), c.say) || !strings.HasPrefix(err.Error(), "kafkasource: ") {
				t.Errorf("New = %v, want it to say %q", err, c.say)
			}
		})
	}
}

// optIn is kgo's own key, a string as any.
var optIn any = "opt_in_kafka_next_gen_balancer_beta"

func TestOptionsThatOnlyNeedBrokersWork(t *testing.T) {
	for name, opts := range map[string][]kgo.Opt{
		"nothing":   nil,
		"static":    {kgo.InstanceID("a"), kgo.ClientID("me"), kgo.Rack("r")},
		"next gen":  {kgo.ServerSideBalancer(), kgo.Balancers(kgo.StickyBalancer())},
		"old style": {kgo.WithContext(context.WithValue(context.Background(), optIn, true))},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := New(Options{Group: `gr"oup with 'quotes'`, Topics: []string{strings.Repeat("t", 249)}, Client: opts})
			if err != nil {
				t.Fatal(err)
			}
			if next := strings.HasPrefix(name, "next") || strings.HasPrefix(name, "old"); s.set.nextGen != next {
				t.Errorf("KIP-848: %v", s.set.nextGen)
			}
			l := s.contact.lease()
			if l.term() != 40500*time.Millisecond || l.drain != 51*time.Second {
				t.Errorf("term %v, drain %v", l.term(), l.drain)
			}
		})
	}
}

func TestRunIsCalledOnce(t *testing.T) {
	virtually(t, 1, func(r *rig) {
		s := r.source()
		run := r.run(s, (&worker{sink: r.sink}).own)
		r.until("claimed", func() bool { return len(r.sink.claims) == 1 })
		if err := s.Run(r.Context(), func(error) {}, nil); err == nil || !strings.Contains(err.Error(), "new Source") {
			r.Errorf("a second Run = %v", err)
		}
		if err := run.stop(); err != nil {
			r.Error(err)
		}
	})
}

func TestUnderKIP848TheBrokerSaysHowLongASessionLasts(t *testing.T) {
	virtually(t, 1, func(r *rig) {
		r.cluster.SetGroupConfigs(testGroup, map[string]string{"consumer.session.timeout.ms": "6000", "consumer.heartbeat.interval.ms": "1000"})
		_, one, _ := r.hold(with(protocols[2].opts...), with(kgo.SessionTimeout(20*time.Second)))
		if one.Term() != 5400*time.Millisecond {
			r.Errorf("the term is %v, want nine tenths of the broker's 6s", one.Term())
		}
	})
	virtually(t, 1, func(r *rig) {
		r.cluster.SetGroupConfigs(testGroup, map[string]string{"consumer.session.timeout.ms": "6000", "consumer.heartbeat.interval.ms": "3000"})
		r.wantRefusal(r.source(with(protocols[2].opts...)), time.Second, "consumer.session.timeout.ms", "third of the session timeout")
	})
	virtually(t, 1, func(r *rig) { // without the permission to ask
		r.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.DescribeConfigs}, Err: kerr.GroupAuthorizationFailed, Count: -1})
		var said bytes.Buffer
		_, one, run := r.hold(with(protocols[2].opts...), with(kgo.SessionTimeout(20*time.Second)),
			func(o *Options) { o.Logger = slog.New(slog.NewTextHandler(&said, nil)) })
		if one.Term() != 18*time.Second {
			r.Errorf("the term is %v, want nine tenths of the client's 20s", one.Term())
		}
		if err := run.stop(); err != nil {
			r.Error(err)
		}
		for _, want := range []string{"level=WARN", "session_timeout=20s", "DESCRIBE_CONFIGS", "kgo.SessionTimeout"} {
			if !strings.Contains(said.String(), want) {
				r.Errorf("the log lacks %q:\n%s", want, &said)
			}
		}
	})
}
